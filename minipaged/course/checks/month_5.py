"""Checks for Month 5, serving."""

import random
from collections.abc import Callable, Sequence
from numbers import Real

from minipaged.course.framework import Expect, exercise
from minipaged.course.line_limit import Endless, line_limit
from minipaged.course.plug_in_month_5 import (
    AllocatingManager,
    PreemptingScheduler,
    ReturningManager,
    chunks_of,
    make_engine,
    make_request,
    same_texts,
    steps_of,
)
from minipaged.course.swap_costs import OPT_13B, SwapCosts
from minipaged.kv_cache import BlockPool, BlockTable, CacheRequest, KVCacheBlock, KVCacheManager
from minipaged.serving import Request, Scheduler
from minipaged.serving.baselines import RequestLevelScheduler
from minipaged.serving.outputs import RequestTimes


@exercise(
    "5.1",
    title="Two ways to batch",
    stars=2,
    minutes=25,
    hints=(
        "In the static batch (2, 8): what does the first seat do from step 3 on? And in the continuous one?",
        "Static: each batch takes as long as its longest answer. Continuous: a seat that becomes free is filled at the "
        "next step.",
        "static: sum of max(lengths[i : i + width]) for i = 0, width, …; continuous: seats = [0] * width; for each "
        "length: add it to the seat that is free first; the answer is the latest seat",
    ),
    vllm="vllm/v1/core/sched/scheduler.py · Scheduler.schedule (once a step, not once a batch)",
    reference=("minipaged.course.plug_in_month_5.steps_of",),
)
def check_batching(answer: tuple[Callable, Callable], expect: Expect) -> None:
    """(static_steps, continuous_steps), each (lengths, width) -> steps."""
    well = isinstance(answer, list | tuple) and len(answer) == 2 and all(map(callable, answer))
    expect.that(well, rule="Two functions.", got=answer, hint='check("5.1", (static_steps, continuous_steps))')
    seats = "Slots run in parallel: in one step every seat of the batch makes one token."
    rng = random.Random(1)
    some = [[rng.randint(1, 9) for _ in range(rng.randint(1, 8))] for _ in range(40)]
    cases = [([3], 1), ([2, 8, 3], 2), ([2, 8, 3], 1), ([2, 8, 3], 3), ([], 2), *((one, 1 + n % 4) for n, one in
             enumerate(some))]  # fmt: skip
    for lengths, width in cases:
        case = f"lengths {lengths}, width {width}"
        static, continuous = (steps_of(kind, lengths, width) for kind in (RequestLevelScheduler, Scheduler))
        got = expect.call(answer[0], list(lengths), width)
        hint = "The next batch starts when the longest of this one is done."
        if got == sum(lengths):
            hint = seats
        elif got == continuous != static:
            hint = "That is continuous batching. Here an empty seat stays empty until the whole batch has ended."
            if got == max(lengths, default=0):
                hint = f"The longest of all, as if everybody had a seat at once, or took one that became free: {hint}"
        rule = "A static batch takes as many steps as its longest answer."
        expect.equal(got, static, rule=rule, case=f"static, {case}", hint=hint)
        got = expect.call(answer[1], list(lengths), width)
        hint = "In order of arrival: the next request takes the seat that becomes free first."
        if got == sum(lengths):
            hint = seats
        elif got == static != continuous:
            hint = "That is the static batch. Here the next request takes a seat as soon as one is free."
        elif got == max(lengths, default=0):
            hint = "So many steps are enough only if everybody finds a seat at once: there are width seats."
        elif got == steps_of(Scheduler, sorted(lengths, reverse=True), width):
            hint = "First come, first served: the longest may not go first. Nobody knows how long an answer will be."
        elif got == -(-sum(lengths) // width):
            hint = "One answer cannot be cut over two seats: each runs on its own seat from begin to end."
        rule = "Continuous: a seat that becomes free is filled at the next step, first come, first served."
        expect.equal(got, continuous, rule=rule, case=f"continuous, {case}", hint=hint)


@exercise(
    "5.2",
    title="The price of padding",
    stars=1,
    minutes=5,
    hints=(
        "How long is the longest of the three? To which length are the others filled up?",
        "A rectangle has requests * longest places; those without a token are padding.",
        "places = 3 * 10; padding = places - (3 + 5 + 10)",
    ),
    vllm="vllm/v1/worker/gpu_model_runner.py · GPUModelRunner._prepare_inputs (one flat batch, query_start_loc)",
)
def check_padding(answer: tuple[int, int], expect: Expect) -> None:
    """(padding, places)."""
    expect.equal(
        answer,
        (12, 30),
        rule="A padded batch has requests * longest places; padding = the places without a token.",
        case="prompts of 3, 5 and 10 tokens",
        hint="Draw three rows of 10 places, and count the empty ones in each.",
        mistakes={
            (15, 30): "Row by row: 7 and 5 empty places. The longest needs none.",
            (18, 30): "18 places hold a token. The empty ones are asked for.",
            (12, 18): "12 are empty, but of how many places in all? The rectangle has the padding, too.",
            (12, 10): "10 is the longest. All three rows have 10 places.",
            (30, 12): "The other way round: first the padding, then all places.",
            (22, 30): "7 for the first row, 5 for the second, and the longest needs none.",
        },
    )


@exercise(
    "5.3",
    title="A prompt in pieces",
    stars=2,
    minutes=15,
    hints=(
        "Three requests are decoding. How many tokens does each of them need in a step, and what is left of 8?",
        "Decodes first, one token each; the prompt gets the rest of the budget, until all of it is computed.",
        "room = budget - num_decodes; while tokens are left: chunk = min(room, tokens left); append",
    ),
    vllm="vllm/v1/core/sched/scheduler.py · Scheduler.schedule (token_budget)",
    reference=("minipaged.course.plug_in_month_5.chunks_of",),
)
def check_chunks(answer: Callable[[int, int, int], list[int]], expect: Expect) -> None:
    """chunks(num_prompt_tokens, num_decodes, budget)."""
    rule = "Decodes first, one token each; the prompt gets what is left of the budget."
    first = "Decodes first: in every step the 3 running requests take 3 of the 8 tokens."
    expect.returns(
        [5, 5, 2], answer, 12, 3, 8,
        rule=rule,
        hint="What is left of 8 in the first step, the second, the third?",
        mistakes={
            (8, 4): first,
            (8, 8): first,
            (5, 5, 5): "The last chunk is what is left of the prompt: 12 - 10.",
            (5, 7): "The second step has a budget of 8, too, and the decodes are still there.",
            (4, 4, 4): "Not in equal parts: each step takes as much of the prompt as fits.",
            (2, 2, 2, 2, 2, 2): "The budget of 8 is shared by all; only 3 of it go to the decodes.",
            (12,): "12 tokens and 3 decodes are 15: more than the budget of 8.",
        },
    )  # fmt: skip
    for num_prompt, num_decodes, budget in ((5, 3, 8), (6, 3, 8), (1, 0, 1), (9, 0, 4), (8, 0, 8), (7, 4, 5)):
        want = chunks_of(num_prompt, num_decodes, budget)
        hint = "Every step has the whole budget again. A chunk is at least 1 token."
        expect.returns(want, answer, num_prompt, num_decodes, budget, rule=rule, hint=hint)
    rng = random.Random(2)
    for _ in range(30):
        num_decodes = rng.randint(0, 6)
        args = (rng.randint(1, 40), num_decodes, num_decodes + rng.randint(1, 12))
        expect.returns(chunks_of(*args), answer, *args, rule=rule, hint="As the scheduler cuts it: compare by hand.")
    hint = "A budget that the decodes eat up leaves nothing, for ever: say so instead of looping."
    rule = "When nothing is left for the prompt: ValueError, with the budget in its message."
    for num_decodes in (8, 9):
        try:
            with line_limit(20_000):
                answer(12, num_decodes, 8)
        except Endless:
            case = f"chunks(12, {num_decodes}, 8) was broken off after 20,000 lines"
            expect.fail(rule=rule, case=case, hint=hint)
        except Exception:
            pass  # which one it is, is looked at now
        expect.raises(ValueError, answer, 12, num_decodes, 8, rule=rule, hint=hint, names=(8,))


@exercise(
    "5.4",
    title="All the blocks, or None",
    stars=2,
    minutes=20,
    hints=(
        "Two blocks are missing, one is free. What must have happened to that one when the answer is None?",
        "Count first: the missing blocks against the free ones. Only then take them, all at once.",
        "missing = table.num_missing_blocks(num_tokens); if missing > pool.num_free_blocks: return None; "
        "new = pool.get_new_blocks(missing); table.append_blocks(new); return new",
    ),
    vllm="vllm/v1/core/kv_cache_manager.py · KVCacheManager.allocate_slots",
    reference=("minipaged.kv_cache.manager.KVCacheManager.allocate_slots",),
    requires=("torch",),
)
def check_allocate(answer: Callable[..., list[KVCacheBlock] | None], expect: Expect) -> None:
    """allocate(pool, table, num_tokens) -> new blocks | None."""
    before = (
        "Check before popping: compare the missing blocks with pool.num_free_blocks, then take all of them at once."
    )
    for owned, num_tokens, free in ((0, 9, 3), (1, 9, 2), (1, 9, 4), (2, 8, 0), (2, 7, 1), (0, 9, 2), (1, 9, 1),
                                    (1, 40, 5), (3, 13, 0), (1, 5, 0)):  # fmt: skip
        pool, table = BlockPool(owned + free), BlockTable(4)
        table.append_blocks(pool.get_new_blocks(owned))
        queue, mine = [block.block_id for block in pool.free_queue], table.block_ids
        case = f"{num_tokens} tokens, a table of {owned} blocks of 4, {free} free"
        got = expect.call(answer, pool, table, num_tokens)
        missing = max(0, -(-num_tokens // 4) - owned)
        after = [block.block_id for block in pool.free_queue]
        if got is None and 0 < missing <= free:
            hint = f"Missing blocks: {missing}, free blocks: {free}; that is enough. None only if more are missing."
            expect.fail(rule="Enough blocks are free: they are taken.", case=case, hint=hint)
        if missing > free:
            shown = got if got is None else [getattr(block, "block_id", block) for block in got]
            expect.equal(shown, None, rule="Too few blocks: None.", case=case, hint=before)
            rule = "A refusal changes nothing: not the pool, not the table."
            expect.equal(after, queue, rule=rule, case=f"{case}: the free queue", hint=before)
            expect.equal(table.block_ids, mine, rule=rule, case=f"{case}: the table", hint=before)
            continue
        expect.that(
            isinstance(got, list) and all(isinstance(block, KVCacheBlock) for block in got),
            rule="The new blocks, as a list; an empty one when the last block has room.", case=case, got=got,
            hint="Return what pool.get_new_blocks gave. None means refused." if missing
            else "Nothing is missing, so nothing is refused: the answer is an empty list. None means refused.",
        )  # fmt: skip
        rule = "Exactly the missing blocks are taken, from the front of the free queue."
        hint = "The table's last block may have room left: table.num_missing_blocks(num_tokens) counts what is missing."
        expect.equal([block.block_id for block in got], queue[:missing], rule=rule, case=case, hint=hint)
        expect.equal(after, queue[missing:], rule=rule, case=f"{case}: the free queue", hint=hint)
        hint = "The new blocks go behind the old ones: table.append_blocks(new)."
        rule = "The table holds its old blocks, then the new ones."
        expect.equal(table.block_ids, mine + queue[:missing], rule=rule, case=f"{case}: the table", hint=hint)
    engine = make_engine(AllocatingManager(11, 4, answer))
    same_texts(expect, engine, num_blocks=11, caching=False, case="four prompts, a pool of 11 blocks", hint=before)


@exercise(
    "5.5",
    title="Who gives way?",
    stars=3,
    minutes=30,
    hints=(
        "Of all that run, who has waited least for its turn? How much of its memory is of use without the rest?",
        "The newest loses all its blocks and goes to the front of the waiting queue. Its tokens are kept, the "
        "generated ones too; none of them counts as computed.",
        "victim = running.pop(); manager.free(victim); victim.num_computed_tokens = 0; waiting.insert(0, victim); "
        "return victim",
    ),
    vllm="vllm/v1/core/sched/scheduler.py · Scheduler._preempt_request",
    reference=("minipaged.serving.scheduler.Scheduler._preempt",),
    requires=("torch",),
)
def check_preempt(answer: Callable[..., Request], expect: Expect) -> None:
    """preempt(running, waiting, manager) -> victim."""
    for lengths in ((6, 5, 9), (6,), (4, 4)):
        _preempt_once(answer, expect, lengths)

    def make(config, manager):
        return PreemptingScheduler(config, manager, answer)

    hint = "All or nothing: the newest, with all its blocks; prompt and generated tokens are computed again."
    engine = make_engine(KVCacheManager(9, 4, enable_caching=False), make)
    same_texts(expect, engine, num_blocks=9, caching=False, case="four prompts, a pool of 9 blocks", hint=hint)


def _preempt_once(answer: Callable, expect: Expect, lengths: Sequence[int]) -> None:
    manager = KVCacheManager(8, 4, enable_caching=False)
    running = [make_request(arrival, range(1, length - 2)) for arrival, length in enumerate(lengths)]
    for request, length in zip(running, lengths, strict=True):
        for token in range(length - request.num_tokens):  # the last three tokens are generated
            request.append_token(40 + token)
        manager.allocate_slots(request, length)
        request.num_computed_tokens = length - 1
    waiting = [make_request(len(lengths), [1, 2])]
    names, newest = [request.request_id for request in running], running[-1]
    tokens, later = list(newest.token_ids), list(waiting)
    blocks = {request.request_id: manager.block_ids(request.request_id) for request in running}
    case = f"running {', '.join(names)} with {', '.join(map(str, lengths))} tokens; r{len(lengths)} waits"
    victim = expect.call(answer, running, waiting, manager)
    name = getattr(victim, "request_id", victim)
    last = "FCFS: the latest gives way. "
    hint = (
        last + "The oldest would lose the most work, and starve; and it is all or nothing: one victim, all its blocks."
    )
    nothing = {None: "Return the request that gave way: the scheduler counts it."}
    rule = "The newest running request is the victim."
    expect.equal(name, newest.request_id, rule=rule, case=case, hint=hint, mistakes=nothing)
    rule = "All blocks of the victim are freed, and nobody else's."
    held = {request: manager.block_ids(request) for request in names}
    hint = "All or nothing: a sequence without one of its blocks cannot run, so the others would lie there unused."
    expect.equal(held, blocks | {name: []}, rule=rule, case=f"{case}: block tables", hint=hint)
    hint = "The tokens stay: prompt and generated ones are computed again in one prefill, and no text is lost."
    expect.equal(newest.token_ids, tokens, rule="The victim keeps its tokens.", case=f"{case}: tokens", hint=hint)
    hint = "Its K and V are gone with the blocks: prompt and generated tokens, all are computed again."
    got, rule = newest.num_computed_tokens, "Nothing of the victim counts as computed any more."
    expect.equal(got, 0, rule=rule, case=f"{case}: num_computed_tokens", hint=hint)
    got, rule = [getattr(request, "request_id", request) for request in running], "The victim leaves the running ones."
    expect.equal(got, names[:-1], rule=rule, case=f"{case}: running", hint="Take it out of the list itself.")
    got, want = [getattr(request, "request_id", request) for request in waiting], [name, later[0].request_id]
    hint = "It came before all that wait: to the front of the queue."
    rule = "The victim waits before all that came later."
    expect.equal(got, want, rule=rule, case=f"{case}: waiting", hint=hint)


@exercise(
    "5.6",
    title="TTFT and TPOT",
    stars=1,
    minutes=10,
    hints=(
        "11 tokens: how many gaps lie between the first and the last of them?",
        "TTFT: from the arrival to the first token. TPOT: the mean gap between tokens; n tokens have n - 1 gaps.",
        "ttft = times[0] - arrival; tpot = (times[-1] - times[0]) / (len(times) - 1), or None with one token",
    ),
    vllm="vllm/v1/metrics/stats.py · IterationStats.update_from_finished_request (mean_time_per_output_token)",
    reference=("minipaged.serving.outputs.RequestTimes",),
)
def check_latencies(answer: Callable[[float, list[float]], tuple[float, float | None]], expect: Expect) -> None:
    """latencies(arrival, times) -> (ttft, tpot)."""
    rng = random.Random(3)
    eleven = [0.5 + 0.1 * n for n in range(11)]
    cases = [(0.0, eleven), (2.0, [3.0, 3.5]), (1.0, [1.25])]
    for _ in range(30):
        arrival = rng.random()
        cases.append((arrival, sorted(arrival + rng.random() for _ in range(rng.randint(1, 12)))))
    for arrival, times in cases:
        case = (
            f"arrival {arrival:.4g}, {len(times)} tokens, the first at {times[0]:.4g} s, the last at {times[-1]:.4g} s"
        )
        got = expect.call(answer, arrival, list(times))
        pair = isinstance(got, list | tuple) and len(got) == 2
        expect.that(pair, rule="Two numbers: (ttft, tpot).", case=case, got=got, hint="return ttft, tpot")
        want = RequestTimes(arrival, tokens=list(times))
        hint = "TTFT counts from the arrival: waiting in the queue is part of it."
        rule = "TTFT: seconds from the arrival to the first token."
        expect.close(got[0], want.ttft, rule=rule, case=case, hint=hint, rtol=1e-9, atol=1e-9)
        rule = "TPOT: the mean time between two tokens, after the first."
        if want.tpot is None:
            hint = "One token has no gap: None. Zero would look like a very fast server."
            expect.equal(got[1], None, rule=rule, case=case, hint=hint)
            continue
        hint = "n - 1 gaps: between the first and the last of n tokens lie n - 1 steps."
        total = times[-1] - arrival
        if (
            isinstance(got[1], int | float)
            and min(abs(got[1] - total / n) for n in (len(times), len(times) - 1)) < 1e-9
        ):
            hint = "The time to the first token is not part of it: it is TTFT already. Then count n - 1 gaps."
        expect.close(got[1], want.tpot, rule=rule, case=case, hint=hint, rtol=1e-9, atol=1e-9)


@exercise(
    "5.7",
    title="After the end",
    stars=2,
    minutes=20,
    hints=(
        "The request has ended: does anybody use its blocks? Did anybody erase what lies in them?",
        "Nobody uses them, so the usage is 0. Full blocks keep their name until they are handed out again. Give back "
        "the tail first: it is then handed out before the head.",
        "blocks = table.clear(); pool.free_blocks(blocks[::-1]). Computed: 9 + 4 - 1 tokens, so 3 full blocks",
    ),
    vllm="vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager.free",
    reference=("minipaged.kv_cache.manager.KVCacheManager.free",),
    requires=("torch",),
)
def check_give_back(answer: tuple[float, int, Callable], expect: Expect) -> None:
    """(usage, hit_tokens, give_back); give_back(pool, table)."""
    well = isinstance(answer, list | tuple) and len(answer) == 3 and callable(answer[2])
    expect.that(
        well, rule="Two numbers and a function.", got=answer, hint='check("5.7", (usage, hit_tokens, give_back))'
    )
    usage, hit, give_back = answer
    forgotten = "Free ≠ forgotten: the blocks have no user any more, and their content still lies there under its name."
    case = "prompt 9, generated 4; then a chat turn of 18 tokens begins with these 13"
    rule = "A finished request uses nothing; its full blocks can still be found."
    expect.that(isinstance(usage, int | float), rule="usage is a number, 0 to 1.", got=usage, hint="See manager.usage.")
    hint = "Its blocks are in the free queue: nobody uses them. Cached blocks without a user count as free."
    expect.close(usage, 0.0, rule=rule, case=f"{case}: usage", hint=hint, atol=1e-9)
    expect.equal(
        hit, 12, rule=rule, case=f"{case}: tokens that hit", hint=forgotten,
        mistakes={
            8: "Generated tokens fill blocks, too: tokens 8 to 11 are one prompt token and three generated ones.",
            13: "Full blocks only, and the 13th token was never computed: nothing came after it.",
            16: "The earlier request had 13 tokens; the rest is new.",
            9: "Full blocks only.",
            3: "3 is the number of blocks; tokens are asked for.",
        },
    )  # fmt: skip
    _give_back_once(give_back, expect, forgotten)
    hint = "Freed, findable, the tail first: then the hits are those of the reference."
    case = "four prompts, one after the other, a pool of 9 blocks"
    engine = make_engine(ReturningManager(9, 4, give_back))
    same_texts(expect, engine, num_blocks=9, caching=True, case=case, hint=hint, together=False)


def _give_back_once(give_back: Callable, expect: Expect, forgotten: str) -> None:
    manager = KVCacheManager(6, 4)
    request = CacheRequest("r0", list(range(13)))
    manager.allocate_slots(request, 12)
    table = manager.block_table("r0")
    expect.call(give_back, manager.pool, table)
    case = "give_back of the table [0, 1, 2] in a pool of 6"
    hint = "pool.free_blocks(blocks) takes one user from each of them."
    free = manager.num_free_blocks
    expect.equal(free, 6, rule="A finished request uses no block.", case=f"{case}: free blocks", hint=hint)
    hint = "table.clear() empties the table and returns its blocks. An old entry would lead to somebody else's block."
    expect.equal(table.block_ids, [], rule="The table of a finished request is empty.", case=case, hint=hint)
    rule = "Full blocks stay findable after their request has ended."
    with expect.no_error(rule=rule, case=case, hint=forgotten):
        again = manager.get_computed_blocks(CacheRequest("r1", list(range(18))))[1]
    expect.equal(again, 12, rule=rule, case=f"{case}: tokens that hit", hint=forgotten)
    order = [block.block_id for block in manager.pool.free_queue]
    hint = "The tail first: what is given back first is handed out first, and without the head the rest is of no use."
    rule = "The tail of a sequence is evicted before its head."
    expect.equal(order, [3, 4, 5, 2, 1, 0], rule=rule, case=f"{case}: free queue", hint=hint)
    hint = "pool.free_blocks and table.clear do all that is to do: the blocks' own fields are the pool's matter."
    with expect.no_error(rule="The pool is whole afterwards.", case=case, hint=hint):
        manager.check_integrity()


@exercise(
    "5.8",
    title="Swap or compute again?",
    stars=3,
    minutes=30,
    hints=(
        "Which part of a transfer's time depends on its bytes, and which part does not? How many transfers are there?",
        "Swap: whole blocks, out and back. Each transfer costs its fixed time; all bytes together cost bytes / speed. "
        "Computing again knows nothing of blocks.",
        "blocks = ceil(n / B); swap = 2 * blocks * (transfers_per_block * seconds_per_transfer + B * bytes_per_token / "
        "bytes_per_second); again = n / prefill_per_second; then try B = 1, 2, 4, …",
    ),
    vllm="none: vLLM V1 computes again (Scheduler._preempt_request). The paper compares both in §7.3, Fig. 19",
)
def check_swap(answer: tuple[Callable, Callable, int], expect: Expect) -> None:
    """(swap_seconds, recompute_seconds, smallest_block)."""
    well = isinstance(answer, list | tuple) and len(answer) == 3 and all(map(callable, answer[:2]))
    hint = 'check("5.8", (swap_seconds, recompute_seconds, smallest_block))'
    expect.that(well, rule="Two functions and a number.", got=answer, hint=hint)
    swap_seconds, recompute_seconds, smallest = answer
    plain = SwapCosts(100, 4, 1.0, 100.0, 50.0)
    cases = [(8, 8, plain), (8, 2, plain), (9, 4, plain), (1, 16, plain)]
    cases += [(n, 2**k, OPT_13B) for n in (1024, 1000, 1) for k in range(9)]
    for num_tokens, size, costs in cases:
        case = f"{num_tokens} tokens, blocks of {size}, {'OPT_13B' if costs is OPT_13B else costs}"
        want = swap_seconds_of(num_tokens, size, costs)
        got = expect.call(swap_seconds, num_tokens, size, costs)
        rule = "Swap: whole blocks, out and back; each transfer has its fixed time, each byte its share."
        hint = _swap_hint(got, num_tokens, size, costs)
        expect.close(got, want, rule=rule, case=case, hint=hint, rtol=1e-6, atol=1e-12)
        got = expect.call(recompute_seconds, num_tokens, costs)
        rule = "Computing again: one prefill of all tokens, whatever the block size."
        hint = "tokens / (tokens in a second). No transfer takes part in it."
        expect.close(got, num_tokens / costs.prefill_per_second, rule=rule, case=case, hint=hint, rtol=1e-6, atol=1e-12)
    sizes = [2**k for k in range(9)]
    want = next(b for b in sizes if swap_seconds_of(1024, b, OPT_13B) <= 1024 / OPT_13B.prefill_per_second)
    expect.equal(
        smallest, want, rule="The smallest power of two at which swapping costs no more than computing again.",
        case="1024 tokens, OPT_13B", hint="Print both times for B = 1, 2, 4, …, 256, and look where they cross.",
        mistakes={
            1: "With blocks of 1 token there are 1024 * 80 transfers each way: their fixed time is most of the cost.",
            8: "At 8, swapping is still the dearer one: out and back.",
            4: "Out and back: each block moves twice.",
            256: "The largest is the cheapest for swapping. The first one that is cheap enough is asked for.",
        },
    )  # fmt: skip


def swap_seconds_of(num_tokens: int, block_size: int, costs: SwapCosts, ways: int = 2) -> float:
    """The cost model of exercise 5.8: seconds to swap a sequence out and back."""
    blocks = -(-num_tokens // block_size)
    fixed = costs.transfers_per_block * costs.seconds_per_transfer
    return ways * blocks * (fixed + block_size * costs.bytes_per_token / costs.bytes_per_second)


def _swap_hint(got: object, num_tokens: int, block_size: int, costs: SwapCosts) -> str:
    """What the wrong number gives away."""
    if isinstance(got, bool) or not isinstance(got, Real):
        return "One number of seconds."

    def is_like(value: float) -> bool:
        return abs(got - value) <= 1e-6 * value

    free, whole = costs._replace(seconds_per_transfer=0.0), -(-num_tokens // block_size) * block_size
    bytes_only = [swap_seconds_of(count, 1, free, ways) for count in (num_tokens, whole) for ways in (1, 2)]
    if any(map(is_like, bytes_only)):
        return (
            "Then the block size would not matter: the curve is flat. Add the per-transfer overhead, paid by every one."
        )
    if is_like(swap_seconds_of(num_tokens, block_size, costs, ways=1)):
        return "That is one way. A sequence is swapped out, and later back in: both cost time."
    one = costs._replace(transfers_per_block=1)
    if is_like(swap_seconds_of(num_tokens, block_size, one)):
        return "A block is not moved in one piece: transfers_per_block copies, K and V of every layer."
    blocks = -(-num_tokens // block_size)
    moved = 2 * (blocks * costs.transfers_per_block * costs.seconds_per_transfer
                 + num_tokens * costs.bytes_per_token / costs.bytes_per_second)  # fmt: skip
    if is_like(moved):
        return "Whole blocks are moved, the empty places of the last one too."
    if is_like(swap_seconds_of(num_tokens // block_size * block_size, block_size, costs)):
        return "The last, partly filled block is moved, too: round up."
    return "Blocks, times two ways, times (the fixed time of all its transfers + its bytes / bytes_per_second)."


@exercise(
    "5.9",
    title="Plug in: your scheduler",
    stars=3,
    minutes=60,
    plug_in=True,
    hints=(
        "Who is served first in a step, the running or the waiting? Who gives blocks back when there are too few?",
        "Running ones first, oldest first, out of one budget. Short of blocks: preempt the newest, to the front of the "
        "queue. Then, if nobody was preempted, admit from the front while budget, seats and blocks last.",
        "for request in list(running): n = min(uncomputed, budget); while request still runs and allocate_slots is "
        "None: preempt(running[-1]); if it still runs: output.add(request, n); budget -= n. "
        "while waiting and budget and seats and no preemption: try waiting[0]; None → stop; else move it to running",
    ),
    vllm="vllm/v1/core/sched/scheduler.py · Scheduler.schedule",
    reference=(
        "minipaged.serving.scheduler.Scheduler",
        *(f"minipaged.serving.scheduler.Scheduler.{name}" for name in ("schedule", "add_request", "finish_request")),
    ),
    requires=("torch",),
)
def check_my_scheduler(answer: type, expect: Expect) -> None:
    """MyScheduler."""
    from minipaged.course.watched_scheduler import A, B, serve

    expect.that(isinstance(answer, type), rule="A class.", got=answer, hint="Hand the class itself to the check.")
    serve(answer, expect, "workload A", A)
    serve(answer, expect, "workload B", B)
    serve(answer, expect, "workload B with aborts", B, {3: (1,), 5: (4, 3), 20: (6,), 30: (2,)})
