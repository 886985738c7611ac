"""Checks for Month 2, the block table; those on sharing (2.8 to 2.12) are in `sharing.py`."""

import random
from collections.abc import Callable

import torch

from minipaged.course.checks import sharing  # noqa: F401  (the exercises from 2.8 on)
from minipaged.course.framework import Expect, exercise
from minipaged.course.pictures import block_table_text


@exercise(
    "2.1",
    title="How many blocks?",
    stars=1,
    minutes=5,
    hints=(
        "How many blocks do 7 tokens need if a block holds 4? And 8 tokens? And 9?",
        "n tokens need n / block_size blocks, rounded up: the last block may be only partly filled.",
        "add block_size - 1 to the number of tokens, then divide with // by block_size",
    ),
    vllm="vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager.get_num_blocks_to_allocate",
)
def check_num_blocks(answer: Callable[[int, int], int], expect: Expect) -> None:
    """num_blocks(num_tokens, block_size) -> int."""
    rule = "n tokens need n / block_size blocks, rounded up."
    for num_tokens, blocks in ((0, 0), (1, 1), (7, 2), (8, 2), (9, 3)):
        expect.returns(
            blocks,
            answer,
            num_tokens,
            4,
            rule=rule,
            hint="Look at exact multiples: 8 tokens fill 2 blocks of 4, and no token needs a third."
            if num_tokens % 4 == 0
            else "The last block counts even when it holds a single token: round up.",
        )
    for num_tokens in range(1, 70):
        expect.returns(-(-num_tokens // 16), answer, num_tokens, 16, rule=rule, hint="Does it use block_size?")


@exercise(
    "2.2",
    title="The block table after the prefill",
    stars=1,
    minutes=5,
    hints=(
        "How many of the 7 tokens fit into the first block? How many are left for the second?",
        "A row says where a logical block lies and how many of its slots hold a token. Blocks fill up from the front.",
        "row 0: (first block handed out, 4); row 1: (second block handed out, 7 - 4)",
    ),
    vllm="vllm/v1/worker/block_table.py · BlockTable.add_row (it keeps the block numbers; the lengths are kept apart)",
)
def check_table_after_prefill(answer: list[tuple[int, int]], expect: Expect) -> None:
    """[(physical block, slots filled), …]."""
    seven = "Count again: there are 7 tokens, so the second block holds 7 - 4 of them."
    expect.equal(
        answer,
        [(7, 4), (1, 3)],
        rule="One row for each logical block: (physical block, slots filled).",
        case='"Four score and seven years ago our", blocks 7 and 1, block size 4',
        hint="The first block handed out is logical block 0; blocks fill up from the front.",
        mistakes={
            ((7, 4), (1, 4)): seven,
            ((1, 4),): "The first four tokens have a block too: two rows. And count: there are 7 tokens.",
            (
                (1, 4),
                (7, 3),
            ): "Block 7 was handed out first, so it is logical block 0. The order of a table is logical.",
            ((0, 4), (1, 3)): "A row holds the physical number: where the block lies in the pool.",
            ((4, 7), (3, 1)): "First the physical block, then how many slots are filled.",
        },
        picture=block_table_text([(7, 4), (1, 3)], 4) if answer == [(7, 4), (1, 4)] else "",
    )


@exercise(
    "2.3",
    title="The block table during decode",
    stars=2,
    minutes=15,
    hints=(
        "The last block has 3 of 4 slots filled. Does the next token need a new block? Does the one after it?",
        "A block is taken when a token needs a slot and the last block has none left, and not before.",
        "if there is a last row and it is not full: add 1 to it; else: add a row (first free block, 1)",
    ),
    vllm="vllm/v1/core/kv_cache_manager.py · KVCacheManager.allocate_slots",
)
def check_store_token(answer: Callable[..., list[tuple[int, int]]], expect: Expect) -> None:
    """store_token(rows, free_blocks, block_size) -> rows."""
    early = "Allocate when a token needs a slot: the last block had one left, so nothing is taken from the pool yet."
    rule = "A token goes into the last block while that has a free slot; only then is a block taken from the pool."
    before, free = [(7, 4), (1, 3)], [3, 5]
    kept = list(before)
    after = expect.returns(
        [(7, 4), (1, 4)], answer, before, free, 4, rule=rule, hint=early, picture=block_table_text([(7, 4), (1, 4)], 4)
    )
    expect.equal(free, [3, 5], rule=rule, case="the free blocks after that call", hint=early)
    expect.equal(before, kept, rule="The old rows stay as they are.", hint="Build a new list; leave `rows` alone.")
    third = "The last block is full, so this token needs logical block 2: the first free block, with 1 slot filled."
    expect.returns([(7, 4), (1, 4), (3, 1)], answer, list(after), free, 4, rule=rule, hint=third)
    expect.equal(free, [5], rule="A block in use is not free.", hint="Take the block out of the free list: pop(0).")
    expect.returns(
        [(6, 1)], answer, [], [6, 2], 4, rule=rule, hint="A new sequence has no rows: its first token needs one."
    )
    for size in (1, 3, 16):
        rows: list[tuple[int, int]] = []
        blocks = [9, 2, 7, 4, 0, 1, 3, 5, 6, 8]
        left = list(blocks)
        for stored in range(1, min(10, 3 * size + 2)):
            full, rest = divmod(stored, size)
            want = [(b, size) for b in blocks[:full]] + ([(blocks[full], rest)] if rest else [])
            rows = expect.returns(want, answer, rows, left, size, rule=rule, hint="Does it use block_size?")


@exercise(
    "2.4",
    title="From position to slot",
    stars=1,
    minutes=5,
    hints=(
        "Position 5 with blocks of 4: which logical block is that, and which place in it?",
        "slot = physical block · block size + offset; the block table gives the physical block.",
        "block_table[position // block_size] * block_size + position % block_size",
    ),
    vllm="vllm/v1/worker/block_table.py · ComputeSlotMappingKernel.kernel",
    reference=("minipaged.kv_cache.block_table.BlockTable.slot_mapping",),
)
def check_slot_of(answer: Callable[[list[int], int, int], int], expect: Expect) -> None:
    """slot_of(block_table, position, block_size) -> int."""
    rule = "slot = block_table[position // block size] · block size + position % block size."
    for position, slot in ((2, 30), (5, 5), (8, 12)):
        logical = f"Position {position} is logical, not physical: look up block {position // 4} of the table first."
        expect.returns(
            slot,
            answer,
            [7, 1, 3],
            position,
            4,
            rule=rule,
            hint="Blocks before it in the pool have block_size slots each; then add the offset within the block.",
            mistakes={
                position: logical,
                [7, 1, 3][position // 4]: "That is the block. The slot also needs its size and the offset.",
                [7, 1, 3][position // 4] * 4: "That is the first slot of the block: add the offset.",
            }
            if position != slot
            else None,
        )
    for size in (1, 16):
        expect.returns(9 * size, answer, [9, 0], 0, size, rule=rule, hint="Does it use block_size?")
        expect.returns(size - 1, answer, [9, 0], 2 * size - 1, size, rule=rule, hint="Does it use block_size?")


@exercise(
    "2.5",
    title="The slot mapping of one step",
    stars=2,
    minutes=15,
    hints=(
        "How many tokens run through the model in this step? Each of them, and no other, writes K and V.",
        "The new tokens of a sequence have the positions computed … computed + new - 1. The slot mapping says where to "
        "write; the block table says what to read.",
        "for each (table, computed, new): for position in range(computed, computed + new): append the slot of position",
    ),
    vllm="vllm/v1/worker/block_table.py · BlockTable.compute_slot_mapping",
    reference=("minipaged.kv_cache.block_table.BlockTable.slot_mapping",),
)
def check_step_slot_mapping(answer: Callable[..., list[int]], expect: Expect) -> None:
    """step_slot_mapping(batch, block_size) -> slots."""
    rule = "The slot mapping has one slot for each token that is computed in this step, and no more."
    where = "The mapping says where to write, the table what to read: a decode step writes one token only."
    expect.returns(
        [24],
        answer,
        [([5, 2, 6], 8, 1)],
        4,
        rule=rule,
        hint=where,
        mistakes={(8,): "A position is logical: use the table."},
    )
    mixed = [([7, 1], 0, 7), ([5, 2, 6], 8, 1)]
    slots = [28, 29, 30, 31, 4, 5, 6, 24]
    expect.returns(
        slots,
        answer,
        mixed,
        4,
        rule=rule,
        hint="A prefill writes all its new tokens, flat, one sequence after the other.",
        mistakes={(*slots[:7], 20, 21, 22, 23, 8, 9, 10, 11, 24): where},
    )
    chunk = "The new tokens of a chunk come after the computed ones: start at `computed`, not at 0."
    expect.returns([31, 4, 5], answer, [([7, 1], 3, 3)], 4, rule=rule, hint=chunk)
    expect.returns([3, 7, 0], answer, [([3, 7], 0, 2), ([1, 2, 0], 2, 1)], 1, rule=rule, hint="Does it use block_size?")
    expect.returns([], answer, [], 4, rule=rule, hint="An empty batch writes nothing.")


FOUR_SCORE = ["Four", "score", "and", "seven", "years", "ago", "our"]
BEST_OF_TIMES = ["It", "was", "the", "best", "of", "times"]


@exercise(
    "2.6",
    title="Two sequences in one pool",
    stars=2,
    minutes=20,
    hints=(
        "Two sequences share the pool. What must they not share?",
        "Each sequence has a block table of its own; the blocks come from one free list, so no block has two owners.",
        "for each prompt: start an empty table; for every piece of block_size tokens: take a block, store, append",
    ),
    vllm="vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager.req_to_blocks",
)
def check_two_sequences(answer: tuple[Callable, Callable], expect: Expect) -> None:
    """(store, read)."""
    store, read = answer
    one_each = "One block table per sequence: each starts empty."
    rule = "Each sequence has its own block table, and no block belongs to two sequences."
    pool: dict[int, list[str]] = {}
    free = [7, 1, 5, 2, 3]
    tables = expect.call(store, [list(FOUR_SCORE), list(BEST_OF_TIMES)], pool, free, 4)
    case = "store of Figure 7's two prompts, free blocks [7, 1, 5, 2, 3]"
    expect.that(
        isinstance(tables, list) and len(tables) == 2,
        rule=rule,
        case=case,
        want="two block tables",
        got=tables,
        hint=one_each,
    )
    expect.that(
        not set(tables[0]) & set(tables[1]), rule=rule, case=case, want=[[7, 1], [5, 2]], got=tables, hint=one_each
    )
    expect.equal(
        tables, [[7, 1], [5, 2]], rule=rule, case=case, hint="Take blocks from the front of the free list, in order."
    )
    expect.equal(
        free, [3], rule="A block in use is not free.", case=case, hint="Take each block out of the list: pop(0)."
    )
    for table, tokens in zip(tables, (FOUR_SCORE, BEST_OF_TIMES), strict=True):
        got = expect.call(read, pool, table, len(tokens))
        hint = "Go through the table in its order: logical neighbours may lie anywhere in the pool."
        expect.equal(got, tokens, rule="Reading through the table gives the tokens in logical order.", hint=hint)
    rng = random.Random(0)
    for size in (1, 2, 5):
        prompts = [[f"{s}.{t}" for t in range(rng.randint(1, 11))] for s in range(4)]
        free, pool = rng.sample(range(60), 60), {}
        tables = expect.call(store, [list(p) for p in prompts], pool, free, size)
        for tokens, table in zip(prompts, tables, strict=True):
            got = expect.call(read, pool, table, len(tokens))
            expect.equal(
                got, tokens, rule="What is stored can be read.", hint="Does it use block_size, to the last piece?"
            )
            part = expect.call(read, pool, table, len(tokens) // 2)
            hint = "read stops after num_tokens tokens."
            expect.equal(part, tokens[: len(tokens) // 2], rule="Only the first num_tokens are read.", hint=hint)


@exercise(
    "2.7",
    title="Write to slots, read blocks",
    stars=2,
    minutes=20,
    hints=(
        "Which block and which offset is slot 30, with 4 slots in a block? How do you index both in one go?",
        "cache[block, offset] = value writes in place. cache[block] with a list of blocks is a copy: writing to it is "
        "lost.",
        "write: cache[slots // B, slots % B] = key; read: cache[tensor of the table], join the first two dims, cut",
    ),
    vllm="vllm/v1/attention/ops/triton_reshape_and_cache_flash.py · triton_reshape_and_cache_flash",
    reference=(
        "minipaged.kv_cache.storage.write_slots",
        "minipaged.kv_cache.storage.KVCacheStorage.write",
        "minipaged.attention.reference.write_slots",
        "minipaged.attention.reference.gather",
    ),
)
def check_scatter_gather(answer: tuple[Callable, Callable], expect: Expect) -> None:
    """(write_slots, read_blocks)."""
    write, read = answer
    written = "Writing changes the cache itself, in place."
    copy = "Did you write to a copy? Indexing with a list of blocks, reshape and flatten may copy the cache."
    for name, cache in (
        ("a cache of its own", torch.zeros(9, 4, 2, 3)),
        ("a part of a larger tensor", _half_of(9, 4, 2, 3)),
    ):
        key = torch.arange(1.0, 43.0).reshape(7, 2, 3)
        slots = torch.tensor([28, 29, 30, 31, 4, 5, 6])
        expect.call(write, cache, key, slots)
        expect.that(
            bool(cache.any()), rule=written, case=f"{name}, 7 tokens to blocks 7 and 1", got="all zeros", hint=copy
        )
        expect.equal(
            cache[7, 2], key[2], rule="slot = block · B + offset.", case="slot 30", hint="Slot 30 is cache[7, 2]."
        )
        expect.equal(cache[7], key[:4], rule=written, case=name, hint=copy)
        expect.equal(cache[1, :3], key[4:], rule=written, case=name, hint="Block 1 starts at slot 4.")
        others = torch.ones(9, 4, dtype=torch.bool)
        others[7], others[1, :3] = False, False
        hint = "Only the slots of the mapping may change, not the rest of their blocks."
        expect.that(not bool(cache[others].any()), rule="Other slots stay untouched.", case=name, hint=hint)
        got = expect.call(read, cache, [7, 1], 7)
        expect.equal(
            got, key, rule="Reading gives the tokens in logical order.", case="table [7, 1]", hint="First block 7."
        )
    cache = torch.zeros(5, 3, 1, 2)
    write(cache, torch.tensor([[[1.0, 2.0]]]), torch.tensor([7]))
    write(cache, torch.tensor([[[3.0, 4.0]]]), torch.tensor([6]))
    expect.equal(
        cache[2, :2, 0], torch.tensor([[3.0, 4.0], [1.0, 2.0]]), rule=written, case="block size 3", hint="Use B."
    )


def _half_of(*shape: int) -> torch.Tensor:
    """Zeros of this shape that are a view into a larger tensor, as where K and V of a block lie side by side."""
    return torch.zeros(shape[0], 2, *shape[1:])[:, 0]
