"""Checks for Month 4, fragmentation experiments."""

import random
from collections.abc import Callable
from typing import Any

from minipaged.course.framework import Expect, exercise
from minipaged.fragmentation import Contiguous, Paged, Result, make_system, reserve_oracle, simulate
from minipaged.workloads import Workload, sharegpt_like, workload_a, workload_b

POOL = 6144  # slots: a multiple of every block size used here


@exercise(
    "4.1",
    title="Utilisation of reserved memory",
    stars=1,
    minutes=5,
    hints=(
        "How many slots are reserved, and how many of them hold a token?",
        "Utilisation = slots that hold tokens / slots that are reserved, over all live requests.",
        "sum(lengths) / (len(lengths) * max_len); with no request nothing is used: 0.0",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockPool.get_usage",
)
def check_utilisation(answer: Callable[[list[int], int], float], expect: Expect) -> None:
    """utilisation(lengths, max_len)."""
    rule = "Utilisation = the sum of the lengths / (requests * max_len)."
    cases = [([512], 2048), ([100, 300], 2048), ([100, 300, 1200], 2048), ([1, 1, 1, 1], 4), ([7, 3], 10)]
    for lengths, max_len in cases:
        size, count, case = sum(lengths), len(lengths), f"utilisation({lengths}, {max_len})"
        got = expect.call(answer, lengths, max_len)
        words = "A number, from 0 to 1."
        expect.that(isinstance(got, int | float), rule=words, case=case, got=got, hint="Divide; do not format.")
        hint = "Every live request reserves max_len slots, so the reserved memory grows with their number."
        if got == max(lengths) / max_len:
            hint = "That is the peak: the fullest request. Average over live requests."
        elif got == size / max_len:
            hint = "Every request reserves max_len: divide by the slots of all of them."
        elif got == 100 * size / (count * max_len):
            hint = "A share from 0 to 1, not percent."
        elif got == size // (count * max_len):
            hint = "// rounds down to a whole number. A share needs /."
        elif got == 1 - size / (count * max_len):
            hint = "That is the share that is empty. Asked for is the share that holds tokens."
        elif isinstance(got, float) and abs(got - size / (count * max_len)) < 0.01:
            hint = "Nearly: do not round the result."
        expect.close(got, size / (count * max_len), rule=rule, case=case, hint=hint, rtol=1e-9, atol=1e-12)
    rule, hint = "Without requests nothing is used.", "Nothing is reserved then: return 0.0 instead of dividing by 0."
    got = expect.call(answer, [], 2048)
    number = isinstance(got, int | float)
    expect.that(number and got == 0, rule=rule, case="utilisation([], 2048)", want=0.0, got=got, hint=hint)


@exercise(
    "4.2",
    title="Reserve to the next power of two",
    stars=1,
    minutes=5,
    hints=(
        "Which powers of two are there around 25? Which is the smallest that is large enough?",
        "The smallest power of two that is not below the length. A power of two stays itself.",
        "size = 1; while size < output_tokens: size *= 2",
    ),
    vllm="none: vLLM reserves nothing ahead. In this course: minipaged/fragmentation/systems.py · reserve_pow2",
    reference=("minipaged.fragmentation.systems.reserve_pow2",),
)
def check_pow2(answer: Callable[[int], int], expect: Expect) -> None:
    """pow2_slots(output_tokens)."""
    rule = "The smallest power of two that is not below the length of the output."
    exact = "A power of two is large enough for itself: it is not doubled."
    expect.returns(
        32, answer, 25,
        rule=rule,
        hint="16 < 25 <= 32.",
        mistakes={
            64: "The true length is exceeded by at most 2×: 64 is more than twice 25.",
            16: "16 slots cannot hold 25 tokens: round up.",
            50: "Not the doubled length: the next power of two.",
            5: "5 is the exponent. The slots are 2**5.",
            2048: "2048 for everybody is what Max reserves. Here the length is known roughly.",
        },
    )  # fmt: skip
    small = {2: "1 is a power of two, too: 2**0.", 16: "16 is far more than twice 1: a power of two, not whole blocks."}
    for length in (32, 1, 2, 64):
        expect.returns(length, answer, length, rule=rule, hint=exact, mistakes=small if length == 1 else {})
    for length in (*range(1, 70), 127, 128, 129, 2047, 2048):
        want = next(1 << k for k in range(13) if 1 << k >= length)
        hint = "Is the result at least the length, and below twice the length?"
        expect.returns(want, answer, length, rule=rule, hint=hint)


@exercise(
    "4.3",
    title="Mean waste of the last block",
    stars=2,
    minutes=10,
    hints=(
        "How many slots are empty when the last block holds 1 token? When it holds 16?",
        "The last block holds 1 to B tokens, each equally often. So 0 to B - 1 slots are empty: the mean of these.",
        "(0 + 1 + ... + (B - 1)) / B = (B - 1) / 2",
    ),
    vllm="vllm/v1/kv_cache_interface.py · KVCacheSpec.block_size",
)
def check_last_block(answer: Callable[[int], float], expect: Expect) -> None:
    """mean_waste(block_size)."""
    rule = "The last block holds 1 to B tokens, each equally often; the rest of it is empty."
    mistakes = {
        8: "A full block wastes 0: the waste runs from 0 to 15, not from 1 to 16.",
        8.5: "8.5 is the mean number of slots that are filled. The empty ones are asked for.",
        7: "7.5 slots, not 7: a mean need not be whole. // rounds down.",
        16: "The waste of one block cannot be the whole block: it holds at least 1 token.",
    }
    got = expect.call(answer, 16)
    expect.that(isinstance(got, int | float), rule="A number of slots.", got=got, case="mean_waste(16)")
    hint = mistakes.get(got, "Add up 16 - 1, 16 - 2, …, 16 - 16, and divide by 16.")
    expect.close(got, 7.5, rule=rule, case="mean_waste(16)", hint=hint, rtol=1e-9)
    for size in (1, 2, 4, 32, 256):
        want = sum(size - filled for filled in range(1, size + 1)) / size
        hint = "The block size is an argument. With B = 1 every block is full."
        expect.close(
            expect.call(answer, size), want, rule=rule, case=f"mean_waste({size})", hint=hint, rtol=1e-9, atol=1e-12
        )


@exercise(
    "4.4",
    title="Two prices of a block size",
    stars=2,
    minutes=15,
    hints=(
        "How many blocks does a sequence of 17 tokens need with B = 16? How many of their slots stay empty?",
        "Entries: the blocks, rounded up for each sequence, summed. Waste: blocks * B - tokens, summed.",
        "for B in block_sizes: entries = sum(-(-n // B) for n in lengths); waste = entries * B - sum(lengths)",
    ),
    vllm="vllm/v1/worker/block_table.py · BlockTable (max_num_blocks_per_req)",
    reference=("minipaged.course.month_2.block_size_price", "minipaged.course.month_4.block_size_costs"),
)
def check_sweep(answer: Callable[[list[int], list[int]], list[tuple[int, int, int]]], expect: Expect) -> None:
    """sweep(lengths, block_sizes) -> [(block_size, entries, waste)]."""
    entries_rule = "A table has one entry for each block: ceil(n / B), for every sequence."
    waste_rule = "Waste = slots of the blocks - tokens, over all sequences."
    got = expect.call(answer, [17], [1, 16])
    shape = "A list of one tuple (block_size, entries, waste) for each block size."
    rows = isinstance(got, list) and len(got) == 2 and all(isinstance(row, list | tuple) for row in got)
    expect.that(rows, rule=shape, case="sweep([17], [1, 16])", got=got, hint="Return a list of tuples.")
    hint = "Waste alone would make B = 1 the best. What does B=1 cost? Return the entries, too."
    expect.that(all(len(row) == 3 for row in got), rule=shape, case="sweep([17], [1, 16])", got=got, hint=hint)
    sizes = [2**k for k in range(9)]
    for lengths, wanted in (([17], [1, 16]), ([16], [16]), ([17, 17], [16]), ([5, 9, 100], sizes), ([], [4])):
        case = f"sweep({lengths}, {wanted})"
        got = expect.call(answer, lengths, wanted)
        hint = "In the order of block_sizes."
        if len(got) != len(wanted):
            hint = "One tuple for each block size: add the sequences up."
        expect.equal([row[0] for row in got], wanted, rule=shape, case=case, hint=hint)
        entries = [sum(-(-n // size) for n in lengths) for size in wanted]
        waste = [count * size - sum(lengths) for count, size in zip(entries, wanted, strict=True)]
        counted = [row[1] for row in got]
        hint = "Round up for each sequence by itself: two sequences never share their last block."
        if counted == [sum(n // size for n in lengths) for size in wanted]:
            hint = "The last, partly filled block needs an entry too: round up."
        elif counted == [sum(n // size + 1 for n in lengths) for size in wanted]:
            hint = "n // B + 1 is one too many where n is a multiple of B. -(-n // B) rounds up."
        elif counted == waste:
            hint = "The order in a tuple: block size, entries, waste."
        expect.equal(counted, entries, rule=entries_rule, case=case, hint=hint)
        hint = "A full last block wastes nothing: 16 tokens with B = 16 waste 0 slots, not 16."
        if any(isinstance(row[2], float) for row in got):
            hint = "Whole slots, added up over the sequences: no mean, no share."
        expect.equal([row[2] for row in got], waste, rule=waste_rule, case=case, hint=hint)


@exercise(
    "4.5",
    title="Three systems, one trace",
    stars=3,
    minutes=25,
    hints=(
        "What must be the same for all three, so that only the memory system differs?",
        "The same requests, and the same slots. A system is used up after a run: make a new one for each.",
        'for name, how, allocator in (("max", "max", "first fit"), ("buddy", "pow2", "buddy"), ("paged", "paged", '
        '"buddy")): results[name] = simulate(requests, make_system(how, pool_slots, allocator))',
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · get_kv_cache_config_from_groups",
    reference=("minipaged.fragmentation.experiment.compare",),
)
def check_three_systems(answer: Callable[[list[Workload], int], dict[str, Result]], expect: Expect) -> None:
    """three_systems(requests, pool_slots) -> {"max": Result, "buddy": Result, "paged": Result}."""
    requests = sharegpt_like(150, seed=4)
    case = f"three_systems(150 requests, {POOL})"
    got = expect.call(answer, requests, POOL)
    rule = 'A dict with the keys "max", "buddy" and "paged"; each value is what simulate returns.'
    well = isinstance(got, dict) and set(got) == {"max", "buddy", "paged"}
    expect.that(well, rule=rule, case=case, got=got, hint="Which names does the task give the three systems?")
    for name in ("max", "buddy", "paged"):
        hint = "simulate(requests, system) returns the Result: keep it whole."
        expect.that(isinstance(got[name], Result), rule=rule, case=f"{case}[{name!r}]", got=got[name], hint=hint)
    totals = {name: result.pool_slots for name, result in got.items()}
    hint = "Unequal totals prove nothing: the same bytes for all, pool_slots slots each."
    expect.equal(totals, dict.fromkeys(totals, POOL), rule="Same bytes for all.", case=f"{case}: slots", hint=hint)
    served = {name: result.finished for name, result in got.items()}
    hint = "Every system gets the whole list of requests."
    expect.equal(served, dict.fromkeys(served, 150), rule="The same trace for all.", case=f"{case}: served", hint=hint)
    external = round(got["paged"].shares["external"], 6)
    hint = 'make_system("paged", pool_slots): any free block fits any request.'
    expect.equal(external, 0.0, rule="Paged memory has no external waste.", case=f"{case}: external %", hint=hint)
    settings = {"max": ("max", "first fit"), "buddy": ("pow2", "buddy"), "paged": ("paged", "buddy")}
    hints = {
        "max": 'The first one reserves 2048 slots for everybody, over first fit: make_system("max", …, "first fit").',
        "buddy": 'The second one reserves the next power of two over buddy: make_system("pow2", …, "buddy").',
        "paged": "Blocks of 16, everything else as it comes.",
    }
    for name, (how, allocator) in settings.items():
        want = simulate(requests, make_system(how, POOL, allocator))
        expect.close(
            [got[name].mean_running, got[name].shares["tokens"], got[name].shares["external"]],
            [want.mean_running, want.shares["tokens"], want.shares["external"]],
            rule="Mean requests, percent of token slots, percent of external waste.",
            case=f"{case}[{name!r}]",
            hint=hints[name],
        )
    other = expect.call(answer, requests[:60], 2 * POOL)
    hint = "Use the arguments: another pool, and fewer requests."
    expect.equal(
        [(result.pool_slots, result.finished) for result in other.values()], [(2 * POOL, 60)] * 3,
        rule="Same bytes for all, the same trace for all.", case=f"three_systems(60 requests, {2 * POOL})", hint=hint,
    )  # fmt: skip


@exercise(
    "4.6",
    title="Blocks for workloads A and B",
    stars=2,
    minutes=8,
    hints=(
        "How many tokens does one request of A have at its end? How many blocks of 16 does it need?",
        "Each request needs ceil((prompt + output) / 16) blocks, and it shares none of them.",
        "A: 100 * ceil(60 / 16); B: 100 * ceil(2050 / 16)",
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · get_max_concurrency_for_kv_cache_config",
)
def check_blocks(answer: tuple[int, int], expect: Expect) -> None:
    """(blocks_a, blocks_b)."""
    rule = "100 requests, each with ceil(tokens / 16) blocks of its own."
    expect.that(isinstance(answer, tuple) and len(answer) == 2, rule="Two numbers.", got=answer)
    per_request = "Round per request: two requests never share a last block."
    prompt = "The prompt takes slots too."
    mistakes = {
        375: per_request,
        500: "Prompt and output stand in one table, one behind the other: round up their sum.",
        100: prompt,
        300: "Three blocks hold 48 tokens, not 60: round up.",
        4: "That is one request; there are 100.",
        6000: "Those are slots, not blocks.",
        12900: "That is workload B's number.",
    }
    expect.equal(
        answer[0], 400, rule=rule, case="workload A: 100 requests, 50 + 10 tokens",
        hint="One request: 60 tokens, 4 blocks.", mistakes=mistakes,
    )  # fmt: skip
    expect.equal(
        answer[1], 12900, rule=rule, case="workload B: 100 requests, 50 + 2000 tokens",
        hint="One request: 2050 tokens. 128 blocks hold 2048 of them.",
        mistakes={12813: per_request, 12812: per_request, 12500: prompt, 129: "That is one request; there are 100.",
                  12800: "128 blocks hold 2048 tokens; 2 are left over: round up.",
                  205000: "Those are slots, not blocks."},
    )  # fmt: skip


KEYS = ("requests_per_step", "tokens_to_compute", "output_per_token", "preemptions")


@exercise(
    "4.7",
    title="A against B: which throughput?",
    stars=3,
    minutes=30,
    hints=(
        "Requests, tokens and steps are three different things. Which of them does each number of the task divide?",
        "A Result has finished, steps, computed_tokens and preemptions. The last token of an answer never runs through "
        "the model: tokens to compute = computed_tokens - finished.",
        "a, b = (simulate(work(), Paged(num_blocks * 16)) for work in (workload_a, workload_b)); "
        '"requests_per_step": a.requests_per_step / b.requests_per_step; "tokens_to_compute": those of b / those of a; '
        '"output_per_token": (200_000 / those of b) / (1_000 / those of a); "preemptions": b.preemptions',
    ),
    vllm="vllm/v1/core/sched/scheduler.py · Scheduler._preempt_request",
    reference=("minipaged.course.month_4.a_and_b",),
)
def check_a_against_b(answer: Callable[[int], dict[str, float]], expect: Expect) -> None:
    """a_against_b(num_blocks) -> dict with KEYS."""
    for num_blocks, words in ((13_000, "ample"), (600, "tight")):
        a, b = (simulate(work(), Paged(num_blocks * 16)) for work in (workload_a, workload_b))
        tokens_a, tokens_b = a.computed_tokens - a.finished, b.computed_tokens - b.finished
        want = {
            "requests_per_step": a.requests_per_step / b.requests_per_step,
            "tokens_to_compute": tokens_b / tokens_a,
            "output_per_token": (200_000 / tokens_b) / (1_000 / tokens_a),
            "preemptions": b.preemptions,
        }
        case = f"a_against_b({num_blocks}), a pool that is {words}"
        got = expect.call(answer, num_blocks)
        rule = f"A dict with the keys {', '.join(KEYS)}."
        hint = '"A is 3–5× faster": which throughput? Requests, tokens and steps give three different answers.'
        expect.that(isinstance(got, dict) and set(got) == set(KEYS), rule=rule, case=case, got=got, hint=hint)
        for key in KEYS:
            number = isinstance(got[key], int | float)
            shape, told = "Each value is a number.", "Divide two numbers of the two Results."
            expect.that(number, rule=shape, case=f"{case}: {key}", got=got[key], hint=told)
            expect.close(
                got[key], want[key], rule=RULES_AB[key], case=f"{case}: {key}",
                hint=_hint_ab(key, got[key], want[key], words, a, b), rtol=0.005, atol=0.01,
            )  # fmt: skip


RULES_AB = {
    "requests_per_step": "Finished requests per step: A's over B's.",
    "tokens_to_compute": "Tokens that run through the model: B's over A's.",
    "output_per_token": "Output tokens for each token that runs through the model: B's over A's.",
    "preemptions": "How often a request of B was preempted.",
}


def _hint_ab(key: str, got: Any, want: float, words: str, a: Result, b: Result) -> str:
    """What the wrong number gives away."""
    number = got if isinstance(got, int | float) else 0.0
    if key != "preemptions" and 3 <= number <= 5:
        return '"3–5×": which throughput? Divide what the rule says, and nothing else.'
    if number and abs(number * want - 1) < 0.05:
        return "The ratio is upside down: look at what stands over what."
    last = "The last token of each answer never runs through the model: subtract one for each request."
    if key == "tokens_to_compute" and abs(number - b.computed_tokens / a.computed_tokens) < 0.01:
        return last
    if key == "tokens_to_compute" and words == "tight":
        return "Preempted requests compute their tokens again: take computed_tokens of this run, not the lengths."
    if key == "output_per_token":
        with_last = 200 * a.computed_tokens / b.computed_tokens
        outputs = "A has 1,000 output tokens, B 200,000. Divide each by its own tokens to compute, then B's by A's."
        return last if abs(number - with_last) < 0.001 else outputs
    if key == "requests_per_step" and abs(number - 1) < 0.01:
        return "Both finish 100 requests: divide by the steps that each of them took."
    if key == "requests_per_step" and words == "ample" and number > want:
        return "B is short of memory here, with an ample pool. Paged takes slots: a block has 16."
    if key == "requests_per_step" and words == "tight" and abs(number - 200) < 1:
        return "The same number as with an ample pool. Make the pool as large as num_blocks says."
    if key == "preemptions" and words == "tight":
        return "600 blocks are too few for B: simulate with num_blocks blocks of 16, and count B's preemptions."
    return "Which attribute of the two Results does the rule speak of?"


@exercise(
    "4.8",
    title="Plug in: your allocator",
    stars=3,
    minutes=40,
    plug_in=True,
    hints=(
        "What do you need to know about memory to find a hole? What happens to two holes side by side?",
        "Keep the holes sorted by address. allocate takes the beginning of one; free puts a hole back and joins it to "
        "the holes beside it, before and behind.",
        "allocate: for each hole (start, length): if length >= size: shrink or drop the hole, remember start → size, "
        "return start. free: size = owned.pop(address), else ValueError; add the hole; sort; join where end == start",
    ),
    vllm="none: blocks of one size need no such search. In this course: minipaged/os_paging/contiguous.py",
    reference=(
        "minipaged.os_paging.contiguous.Allocator.allocate",
        "minipaged.os_paging.allocators.allocator",
    ),
)
def check_allocator(answer: type, expect: Expect) -> None:
    """MyAllocator(total): free_total, allocate(size) -> address | None, free(address)."""
    expect.that(isinstance(answer, type), rule="A class.", got=answer, hint="Hand the class itself to the check.")
    _story(answer, expect)
    for seed in range(6):
        _storm(answer, expect, seed)
    requests = sharegpt_like(60, seed=8)
    system = Contiguous("mine", reserve_oracle, POOL, expect.call(answer, POOL))
    rule = "The simulation runs on your allocator: every slot has one owner at every step."
    broken: list[int] = []

    def watch(step, running, parts):
        if parts.total != POOL or min(parts) < 0:
            broken.append(step)

    with expect.no_error(rule=rule, case="60 requests", hint="free gets exactly the addresses that allocate returned."):
        result = simulate(requests, system, watch=watch)
    hint = "Is free_total right after every allocate and every free?"
    expect.equal(broken, [], rule=rule, case="steps at which the parts do not sum to the pool", hint=hint)
    buddy = simulate(requests, make_system("oracle", POOL, "buddy"))
    expect.that(
        result.finished == 60 and result.mean_running > buddy.mean_running,
        rule="Without rounding, at least as many requests run as over buddy.",
        case="60 requests, mean in the batch", want=f"more than {buddy.mean_running:.2f}", got=result.mean_running,
        hint="Do you refuse although a hole is large enough, or round sizes up?",
    )  # fmt: skip


def _story(answer: type, expect: Expect) -> None:
    """The smallest cases, one rule each."""
    memory = expect.call(answer, 10)
    say = "MyAllocator(10)"
    start = "All slots are free at the beginning."
    expect.equal(memory.free_total, 10, rule=start, case=f"{say}.free_total", hint="free_total is an attribute.")
    first = expect.call(memory.allocate, 4)
    hint = "The memory is empty, so any address from 0 to 6 will do."
    expect.that(
        isinstance(first, int), rule="allocate returns an address.", case=f"{say}.allocate(4)", got=first, hint=hint
    )
    case = f"{say}.allocate(4), then free_total"
    expect.equal(memory.free_total, 6, rule="free_total: slots that nobody owns.", case=case, hint="10 - 4 are free.")
    second = expect.call(memory.allocate, 6)
    rule = "A hole of exactly the right size is large enough."
    case = f"{say}: allocate(4), allocate(6)"
    expect.that(second is not None, rule=rule, case=case, got=second, hint=">= and not >.")
    refused = expect.call(memory.allocate, 1)
    hint = "Return None itself; do not raise, and return no other value."
    expect.that(
        refused is None, rule="None when no hole is large enough.", case=f"{case}, allocate(1)", got=refused, hint=hint
    )
    expect.call(memory.free, first)
    expect.call(memory.free, second)
    case += ", free both"
    back = "After both are freed, all 10 slots belong to nobody: they are free again."
    expect.equal(memory.free_total, 10, rule="free gives the slots back.", case=f"{case}; free_total", hint=back)
    whole = expect.call(memory.allocate, 10)
    hint = "4 and 6 free slots side by side are one hole of 10: neighbours join, the one before and the one behind."
    expect.that(
        whole == 0, rule="Neighbouring holes become one.", case=f"{case}, allocate(10)", want=0, got=whole, hint=hint
    )
    rule = "An address that is not allocated cannot be freed: ValueError, and nothing has changed."
    hint = "Who frees twice would hand the same slots out twice. Look the address up before you change anything."
    expect.call(memory.free, 0)
    expect.raises(ValueError, memory.free, 0, rule=rule, hint=hint)
    expect.equal(memory.free_total, 10, rule=rule, case="free(0) twice; free_total", hint=hint)


def _storm(answer: type, expect: Expect, seed: int) -> None:
    """Random requests against a plain picture of the memory: a list of owners, slot by slot."""
    rng, total = random.Random(seed), 24
    memory, owners, live = expect.call(answer, total), [0] * 24, {}
    story: list[str] = []
    for number in range(1, 120):
        if live and rng.random() < 0.45:
            address = rng.choice(sorted(live))
            story.append(f"free({address})")
            expect.call(memory.free, address)
            size = live.pop(address)
            owners[address : address + size] = [0] * size
        else:
            size = rng.randint(1, 9)
            address = expect.call(memory.allocate, size)
            story.append(f"allocate({size}) → {address}")
            longest = max(len(run) for run in "".join("x" if owner else "." for owner in owners).split("x"))
            case = f"MyAllocator({total}): {', '.join(story[-8:])}"
            if address is None:
                hint = f"A hole of {longest} slots was there. Did two neighbours stay apart?"
                expect.that(longest < size, rule="None only when no hole is large enough.", case=case, hint=hint)
                continue
            hint = "Take the slots out of the hole before you return the address."
            inside = isinstance(address, int) and 0 <= address <= total - size
            free = inside and not any(owners[address : address + size])
            expect.that(free, rule="The slots handed out belong to nobody else.", case=case, got=address, hint=hint)
            owners[address : address + size] = [number] * size
            live[address] = size
        case = f"MyAllocator({total}): {', '.join(story[-8:])}; free_total"
        rule, hint = "free_total: slots that nobody owns.", "A piece takes exactly the slots that were asked for."
        expect.equal(memory.free_total, owners.count(0), rule=rule, case=case, hint=hint)
