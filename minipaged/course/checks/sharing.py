"""Checks for Month 2, second half: copy-on-write, free, beams, a table and pool of one's own, the bug hunt."""

import random
from collections.abc import Callable

from minipaged.course import plug_in_month_2 as plug_in
from minipaged.course.faulty_tables import faulty_line
from minipaged.course.framework import Expect, exercise
from minipaged.kv_cache import KVCacheBlock


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


@exercise(
    "2.11",
    title="Your own table and pool run the engine",
    stars=3,
    minutes=60,
    hints=(
        "A request can end, be aborted or be preempted. Which two of your methods give its blocks back each time?",
        "clear() hands over every block of the table; free_blocks() lowers each count and frees what reaches 0. Blocks "
        "free + blocks in use = all, after every call.",
        "take: check first, then cut n blocks off the free list and set ref_cnt to 1; free: ref_cnt -= 1, at 0 append; "
        "clear: keep the old list, start an empty one, return the old",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockPool, and vllm/v1/worker/block_table.py · BlockTable",
    plug_in=True,
)
def check_parts(answer: tuple[type, type], expect: Expect) -> None:
    """(MyBlockTable, MyBlockPool)."""
    table_class, pool_class = answer
    _check_table(table_class, expect)
    _check_pool(pool_class, expect)
    parts = {"block_table": table_class, "block_pool": pool_class}
    hint = "Print the table after each step, and compare it with exercise 2.3."
    with expect.no_error(rule="The engine runs on your parts.", hint=hint):
        texts = plug_in.texts(parts)
    for number, (mine, reference) in enumerate(zip(texts, plug_in.texts(None), strict=True)):
        rule = "The text does not depend on who keeps the tables."
        expect.equal(mine, reference, rule=rule, case=f"text {number} of {len(texts)}", hint=hint)
    leak = "Who frees a request that never finished? An abort gives back the same blocks as an end: all of the table."
    with expect.no_error(rule="200 random requests, many aborted, run to their end.", hint=leak):
        for step, (free, in_use, total) in enumerate(plug_in.storm(parts)):
            expect.that(
                free + in_use == total,
                rule="Blocks free + blocks in use = all blocks, after every step.",
                case=f"after step {step} of 200 random requests with aborts",
                want=f"{total} blocks",
                got=f"{free} free + {in_use} in use",
                hint=leak,
            )


def _check_table(table_class: type, expect: Expect) -> None:
    """The table by itself."""
    seven, one, three = (KVCacheBlock(number) for number in (7, 1, 3))
    table = expect.call(table_class, 4)
    rule = "n tokens need n / block size blocks, rounded up; those that are there do not count again."
    expect.returns(2, table.num_missing_blocks, 7, rule=rule, hint="An empty table lacks all of them.")
    expect.call(table.append_blocks, [seven, one])
    expect.returns(
        0, table.num_missing_blocks, 8, rule=rule, hint="Exact multiples: 8 tokens fill the 2 blocks there are."
    )
    expect.returns(0, table.num_missing_blocks, 3, rule=rule, hint="Never below 0.")
    expect.returns(1, table.num_missing_blocks, 9, rule=rule, hint="The ninth token needs a third block.")
    wrong = "slot = block_id · block size + offset, for the positions start … stop - 1."
    expect.returns(
        [31, 4, 5], table.slot_mapping, 3, 6, rule=wrong, hint="The block of position p is blocks[p // size]."
    )
    old = expect.call(table.replace_block, 1, three)
    expect.that(old is one, rule="replace_block returns the old block.", hint="The manager lowers its count.")
    given = expect.call(table.clear)
    hint = "Who frees a request that never finished? The manager frees what clear() returns; the rest is lost for ever."
    ids = [block.block_id for block in given or []]
    expect.equal(
        ids, [7, 3], rule="clear returns every block that the table had.", case="a table of 7 and 3", hint=hint
    )
    expect.equal(list(table.blocks), [], rule="A cleared table is empty.", hint="Start a new list.")


def _check_pool(pool_class: type, expect: Expect) -> None:
    """The pool by itself."""
    pool = expect.call(pool_class, 3)
    rule = "Blocks free + blocks in use = all blocks."
    taken = expect.call(pool.get_new_blocks, 2)
    expect.equal(pool.num_free_blocks, 1, rule=rule, case="2 of 3 blocks taken", hint="A block in use is not free.")
    counts = [block.ref_cnt for block in taken]
    expect.equal(counts, [1, 1], rule="A new block has one user.", hint="Set ref_cnt to 1 when it is handed out.")
    expect.raises(
        ValueError,
        pool.get_new_blocks,
        2,
        rule="A pool does not hand out more than it has.",
        hint="Look before you take.",
    )
    expect.equal(pool.num_free_blocks, 1, rule="A refusal changes nothing.", hint="Look before you take.")
    expect.call(pool.touch, taken[:1])
    expect.call(pool.free_blocks, list(taken))
    shared = "Somebody still uses a block with a count of 1: it is free only at 0."
    expect.equal((taken[0].ref_cnt, pool.num_free_blocks), (1, 2), rule=rule, case="shared, freed once", hint=shared)
    expect.call(pool.check_integrity)
    expect.call(pool.free_blocks, taken[:1])
    again = expect.call(pool.get_new_blocks, 3)
    numbers = sorted(block.block_id for block in again)
    expect.equal(numbers, [0, 1, 2], rule="No block is handed out twice.", case="all freed, 3 taken", hint=shared)


@exercise(
    "2.12",
    title="Bug hunt",
    stars=2,
    minutes=30,
    hints=(
        "Each error names a block and a rule, or a position and a slot. Which line of the method decides about it?",
        "A and B: compare the count with the number of tables. C: what came first, the copy or the write? D: compute "
        "the slot of position 0, then of position 4.",
        "A: who is not counted? B: pop the table. C: the copy comes before the write. D: position // size",
    ),
    vllm="vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager.pop_blocks_for_free (bug B), "
    "vllm/v1/core/block_pool.py · BlockPool.touch (bug A)",
)
def check_bug_hunt(answer: dict[str, int], expect: Expect) -> None:
    """{bug: line}."""
    rule = "The line that must change, for each of the bugs A, B, C and D."
    shape = 'One number for each bug: {"A": …, "B": …, "C": …, "D": …}.'
    expect.that(isinstance(answer, dict) and set(answer) == set("ABCD"), rule=rule, got=answer, hint=shape)
    think = {
        "A": "Two tables point to block 1, but its count is 1: which line should have counted every block?",
        "B": "The blocks are free, and a table still points to them: which line should have removed it?",
        "C": "The new token is gone: something was done after the write that belongs before it.",
        "D": "Position 4 went to position 0's slot: which line finds the logical block of a position?",
    }
    for bug, hint in think.items():
        right = {faulty_line(bug)} | ({faulty_line(bug) - 1} if bug == "C" else set())  # C: two lines change places
        expect.that(answer[bug] in right, rule=rule, case=f"bug {bug}, line {answer[bug]}", hint=hint)
