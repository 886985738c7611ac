"""Checks for Month 2, the block table."""

import random
from collections.abc import Callable

import torch

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
    where = "The mapping says where to *write*, the table what to *read*: a decode step writes one token only."
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


@exercise(
    "2.8",
    title="Share, then copy on write",
    stars=2,
    minutes=20,
    hints=(
        "A1 has just copied the shared block. How many tables point to the old block now?",
        "Count above 1: take a free block, copy, let the table point to it, lower the old count. Count 1: in place.",
        "if ref_counts[block] == 1: return None; own = free_blocks.pop(0); lower the old count; ref_counts[own] = 1; "
        "put own into the table; return (block, own)",
    ),
    vllm="the paper's §4.4; in V1 only a hit on a partial block is copied: "
    "vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager._apply_cow",
)
def check_copy_on_write(answer: tuple[Callable, Callable], expect: Expect) -> None:
    """(fork, before_write)."""
    fork, before_write = answer
    first, counts, free = [7, 1], {7: 1, 1: 1}, [3, 4]
    second = expect.call(fork, first, counts)
    expect.equal(
        second, [7, 1], rule="A fork shares every block.", hint="The child's table has the same block numbers."
    )
    hint = "Each shared block has one table more: raise its count."
    expect.equal(counts, {7: 2, 1: 2}, rule="The count is the number of tables.", case="after the fork", hint=hint)
    expect.that(
        second is not first, rule="Each sequence has a table of its own.", hint="Return a new list, not the same one."
    )
    expect.equal(
        free, [3, 4], rule="A fork copies nothing.", case="free blocks after the fork", hint="Share; copy later."
    )

    case = 'A1 writes "fathers" into logical block 1'
    rule = "A count above 1 and a write: copy, then write. A count of 1: write in place."
    copy = expect.call(before_write, first, 1, counts, free)
    expect.equal(copy, (1, 3), rule=rule, case=case, hint="Block 1 is shared: it is copied to the first free block.")
    expect.equal(first, [7, 3], rule=rule, case=case, hint="The writer's table points to the copy.")
    expect.equal(
        second, [7, 1], rule="The other sequence keeps the old block.", case=case, hint="Change one table only."
    )
    lowered = "The writer has left block 1: lower its count. The copy has one owner."
    expect.equal(counts, {7: 2, 1: 1, 3: 1}, rule="The count is the number of tables.", case=case, hint=lowered)

    case = 'then A2 writes "mothers" into logical block 1'
    copy = expect.call(before_write, second, 1, counts, free)
    hint = "The second writer sees a count of 1: nobody else reads the block any more, so it writes in place."
    expect.equal(copy, None, rule=rule, case=case, hint=hint)
    expect.equal((second, counts, free), ([7, 1], {7: 2, 1: 1, 3: 1}, [4]), rule=rule, case=case, hint=hint)
    counts, free, tables = {6: 1}, [9, 8], [[6]]
    tables += [expect.call(fork, tables[0], counts) for _ in range(2)]
    copies = [expect.call(before_write, table, 0, counts, free) for table in tables]
    want = [(6, 9), (6, 8), None]
    expect.equal(
        copies, want, rule=rule, case="three sequences write into one shared block", hint="n sharers, n - 1 copies."
    )


@exercise(
    "2.9",
    title="Free, but only once",
    stars=2,
    minutes=20,
    hints=(
        "After the second free of block 0 it stands in the free list twice. Two requests take it: who owns it now?",
        "Lower the count first; only at 0 does the block go back to the free list. At 0 already: refuse.",
        "if the count is 0: raise ValueError naming the block; count -= 1; if the count is 0: append to free_blocks",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockPool.free_blocks",
)
def check_free(answer: type, expect: Expect) -> None:
    """SmallPool."""
    owner = "Who owns it now? A block that is in the free list twice will be given to two sequences."
    rule = "Blocks free + blocks in use = all blocks, and no block is free twice."
    pool = expect.call(answer, 3)
    block = pool.take()
    expect.call(pool.free, block)
    expect.equal(
        pool.free_blocks, [1, 2, 0], rule=rule, case="take a block, free it", hint="At a count of 0 it is free again."
    )
    expect.raises(
        ValueError, pool.free, block, rule="A block that nobody uses cannot be freed.", hint=owner, names=(block,)
    )
    expect.equal(pool.free_blocks, [1, 2, 0], rule=rule, case="after the refused second free", hint=owner)
    expect.equal(pool.ref_counts, [0, 0, 0], rule="A refusal changes nothing.", hint="Look first, change afterwards.")
    pool = expect.call(answer, 2)
    block = pool.take()
    pool.share(block)
    expect.call(pool.free, block)
    shared = "Somebody still reads this block: it is free only at a count of 0."
    expect.equal((pool.ref_counts, pool.free_blocks), ([1, 0], [1]), rule=rule, case="shared, freed once", hint=shared)
    expect.call(pool.free, block)
    expect.equal((pool.ref_counts, pool.free_blocks), ([0, 0], [1, 0]), rule=rule, case="freed by both", hint=shared)
    rng, pool, owned = random.Random(2), expect.call(answer, 6), []
    for _ in range(300):
        if owned and (rng.random() < 0.5 or not pool.free_blocks):
            expect.call(pool.free, owned.pop(rng.randrange(len(owned))))
        elif owned and rng.random() < 0.4:
            owned.append(rng.choice(owned))
            pool.share(owned[-1])
        else:
            owned.append(pool.take())
        in_use = len(set(owned))
        expect.that(
            len(pool.free_blocks) == len(set(pool.free_blocks)) == 6 - in_use,
            rule=rule,
            case=f"{in_use} of 6 blocks are in use",
            got=pool.free_blocks,
            hint=owner,
        )


@exercise(
    "2.10",
    title="One step of beam search",
    stars=3,
    minutes=30,
    hints=(
        "Block 1 is in three old tables and in four new ones. Is it free at any moment in between?",
        "First the children share (counts up), then the old candidates let go (counts down). Free is what reaches 0.",
        "children = copies of the parents' tables; +1 for each of their blocks; -1 for each block of each old table; "
        "collect those at 0",
    ),
    vllm="the paper's §4.4, Figure 9. vLLM V1 has no beams in its engine: each candidate is a request, and the prefix "
    "cache shares the blocks",
)
def check_beam_step(answer: Callable, expect: Expect) -> None:
    """beam_step(tables, parents, ref_counts) -> (new tables, freed blocks)."""
    down = "Decrement each count and test for 0: a block that a survivor shares is not free."
    counts = {0: 2, 1: 1, 2: 1}
    rule = "A block is free when no table points to it any more."
    got = expect.call(answer, [[0, 1], [0, 2]], [0, 0], counts)
    expect.equal(
        _sorted(got), ([[0, 1], [0, 1]], [2]), rule=rule, case="tables [0, 1] and [0, 2], parents [0, 0]", hint=down
    )
    expect.equal(counts, {0: 2, 1: 2, 2: 0}, rule="The count is the number of tables.", hint="Both children count.")

    tables = [[0, 1, 3, 5], [0, 1, 3, 6], [0, 1, 3, 7], [0, 2, 4, 8]]
    counts = {0: 4, 1: 3, 2: 1, 3: 3, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1}
    case = "Figure 9: the parents are candidates 1, 1, 2 and 2"
    new, freed = expect.call(answer, [list(table) for table in tables], [1, 1, 2, 2], counts)
    expect.equal(sorted(freed), [2, 4, 5, 8], rule=rule, case=case, hint=down)
    want = [tables[1], tables[1], tables[2], tables[2]]
    expect.equal(new, want, rule="A child starts with its parent's blocks.", case=case, hint="parents[i] is an index.")
    now = {0: 4, 1: 4, 2: 0, 3: 4, 4: 0, 5: 0, 6: 2, 7: 2, 8: 0}
    expect.equal(
        counts, now, rule="The count is the number of tables.", case=case, hint="Up for children, down for parents."
    )
    own = "The children will grow apart: give each a list of its own."
    expect.that(new[0] is not new[1], rule="Each sequence has a table of its own.", case=case, hint=own)
    rng = random.Random(3)
    for _ in range(30):
        tables = [rng.sample(range(12), rng.randint(1, 5)) for _ in range(4)]
        parents = [rng.randrange(4) for _ in range(4)]
        counts = {block: sum(block in table for table in tables) for block in range(12)}
        used = {block for table in tables for block in table}
        kept = {block for parent in parents for block in tables[parent]}
        _, freed = expect.call(answer, [list(table) for table in tables], parents, counts)
        case = f"tables {tables}, parents {parents}"
        expect.equal(sorted(freed), sorted(used - kept), rule=rule, case=case, hint=down)


def _sorted(result: object) -> object:
    """(tables, freed) with the freed blocks in order, so that a set can be compared and shown."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], set | list | tuple):
        return result[0], sorted(result[1])
    return result
