"""Checks for Month 7, scale out and give back."""

import io
import math
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from numbers import Real
from typing import Any

from minipaged.course.checks import two_ranks  # noqa: F401  (7.1, 7.2 and 7.8)
from minipaged.course.expect import Unmet, same
from minipaged.course.faulty_pools import BUGS, MakeManager, make_manager
from minipaged.course.frames import describe_line, last_learner_frame
from minipaged.course.framework import Expect, exercise
from minipaged.course.line_limit import Endless, line_limit
from minipaged.course.vllm_source import metrics, names
from minipaged.kv_cache import BlockPool, CacheRequest, KVCacheBlock, KVCacheManager

# What older texts and releases say → (the name in 0.32, what it is for)
OLD_NAMES = {
    "get_cached_blocks": ("KVCacheManager.get_computed_blocks", "finds the cached blocks of a prompt"),
    "BlockSpaceManager": ("KVCacheManager", "keeps the blocks of all requests"),
    "BlockAllocator": ("BlockPool", "hands out physical blocks and takes them back"),
    "PhysicalTokenBlock": ("KVCacheBlock", "is the bookkeeping of one physical block"),
    "PhysicalTokenBlock.ref_count": ("KVCacheBlock.ref_cnt", "counts the tables that point to a block"),
    "append_slots": ("KVCacheManager.allocate_slots", "makes room for the next tokens of a request"),
    "free_blocks, a list": ("FreeKVCacheBlockQueue", "is the queue of free blocks, with removal from the middle"),
    "cached_block_hash_to_block, a dict": ("BlockHashToBlockMap", "leads from a hash to the blocks with this content"),
}

ATTRIBUTES_OF = {
    "FreeKVCacheBlockQueue": ("free_block_queue",),
    "BlockHashToBlockMap": ("cached_block_hash_to_block",),
}
"""Class → attributes of the pool that hold one of it."""


@exercise(
    "7.3",
    title="Old names, new names",
    stars=1,
    minutes=15,
    hints=(
        "What does the thing do? Which word would you expect in its name today?",
        "find(word) lists all names of the outlines that contain a word. Read a few of them; the class says where you "
        "are.",
        'find("computed"), find("ref"), find("allocate"), find("Queue"), find("Map"); the rest are class names that '
        "begin with KVCache or Block",
    ),
    vllm="vllm/v1/core/kv_cache_manager.py, block_pool.py and kv_cache_utils.py: the names of this exercise",
)
def check_names(answer: dict[str, str], expect: Expect) -> None:
    """today: {old name: name in 0.32}."""
    rule = "One name of 0.32 for each old name."
    expect.that(isinstance(answer, dict), rule="A dict.", got=answer, hint="today = {old name: name in 0.32}")
    missing = [old for old in OLD_NAMES if old not in answer]
    expect.equal(missing, [], rule=rule, case="old names without an answer", hint="Keep the keys as they are given.")
    known = names()
    for old, (want, purpose) in OLD_NAMES.items():
        got = answer[old]
        case = f"today[{old!r}]: what {purpose}"
        expect.that(isinstance(got, str), rule="A name is a text.", case=case, got=got, hint="As find() prints it.")
        got = got.strip().removesuffix("()")
        if got in (want, want.rpartition(".")[2]):
            continue
        hint = f"{got} exists in 0.32, and it is for something else. Which name tells that it {purpose}?"
        if got.rpartition(".")[2] in ATTRIBUTES_OF.get(want, ()):
            hint = f"{got} exists in 0.32: it holds what is asked for. Of which class is it? find('Queue'), find('Map')"
        elif got not in known and not any(name.endswith(f".{got}") for name in known):
            hint = f"Renamed: no class, function or attribute of these files is called {got!r} today. find(…) searches."
            alike = [name for name in sorted(known) if name.lower() == got.lower()]
            if alike:
                hint = f"Upper and lower case count: {alike[0]}."
            elif " " in got or "/" in got:
                hint = "The name alone, without the file: as find(…) prints it."
        expect.fail(rule="The name as it stands in the source of 0.32.", case=f"{case}; got {got!r}", hint=hint)


@exercise(
    "7.4",
    title="Read the start-up line",
    stars=1,
    minutes=10,
    hints=(
        "How many requests of 4,096 tokens fill 123,456 slots? And which unit does a short request take memory in?",
        "Concurrency = tokens in the cache / tokens of the longest request. Short requests take whole blocks.",
        "concurrency = 123456 / 4096; blocks = 123456 // 16; fit = blocks // ceil(500 / 16)",
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · update_kv_cache_capacity (the log line)",
)
def check_log(answer: tuple[float, int], expect: Expect) -> None:
    """(concurrency, fit)."""
    pair = isinstance(answer, list | tuple) and len(answer) == 2
    expect.that(pair, rule="Two numbers.", got=answer, hint="(concurrency, fit)")
    concurrency, fit = answer
    case = "123,456 tokens, at most 4,096 tokens per request"
    mistakes = {
        123456: "That is the number of tokens. Divide by the tokens of one request.",
        4096: "That is the longest request. How many of them fit? Divide.",
        30: "The line has two digits after the point: 30 whole requests, and a part of the next.",
        7716: "7716 blocks of 16 hold the 123,456 tokens. Divide by the blocks of one request of 4,096.",
    }
    hint = "Divide the tokens in the cache by the tokens of one request, and keep two digits."
    for wrong, meant in mistakes.items():
        hint = meant if same(concurrency, wrong) else hint
    if same(concurrency, 241):
        hint = "The concurrency comes first, then the number of requests that fit."
    if isinstance(concurrency, int | float) and abs(concurrency - 4096 / 123456) < 0.01:
        hint = "Upside down: how many requests does the cache hold, not how many caches does a request fill."
    rule = "Maximum concurrency = tokens in the cache / tokens of the longest request."
    expect.close(concurrency, 123456 / 4096, rule=rule, case=case, hint=hint, rtol=0, atol=0.0051)
    expect.equal(
        fit, 241, rule="Each request takes whole blocks: round up for each.", case="requests of 500 tokens, B = 16",
        hint="Blocks in the cache // blocks of one request.",
        mistakes={
            246: "123,456 // 500 forgets the last, partly filled block of each request: 500 tokens take 32 blocks.",
            248: "500 // 16 rounds down: 31 blocks hold 496 tokens, and 4 tokens have no place.",
            30: "The line speaks of the longest requests. These have 500 tokens.",
            247: "Whole requests only: round down at the end, and up for each request's blocks.",
            241.125: "241 whole requests, and a part of the next: // keeps the whole ones.",
            246.912: "123,456 / 500 forgets the last, partly filled block of each request. And only whole ones count.",
            15: "16 tokens are a block, and a request has 500 tokens.",
        },
    )  # fmt: skip


@exercise(
    "7.5",
    title="An error message for 3 a.m.",
    stars=2,
    minutes=20,
    hints=(
        "You are woken at 3 a.m. by this one line. Which numbers do you need, and what will you try first?",
        "Name what was asked, what is free, what there is in all, the block size, and a way out; raise it before "
        "anything has changed.",
        "if n > pool.num_free_blocks: raise ValueError(f'asked for {n} blocks of {block_size} tokens, but …free of …; "
        "…what to do'); return pool.get_new_blocks(n)",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockPool.get_new_blocks (its message names only the blocks asked for)",
)
def check_message(answer: Callable[[BlockPool, int, int], list[KVCacheBlock]], expect: Expect) -> None:
    """take(pool, n, block_size)."""
    for total, used, count in ((6, 0, 2), (6, 1, 5), (3, 3, 0)):
        pool = BlockPool(total)
        pool.get_new_blocks(used)
        want = [block.block_id for block in pool.free_queue][:count]
        got = expect.call(answer, pool, count, 16)
        case = f"take(pool, {count}, 16), {total - used} of {total} blocks free"
        shown = [getattr(block, "block_id", block) for block in got] if isinstance(got, list) else got
        hint = "With enough blocks there is no error: return pool.get_new_blocks(n)."
        expect.equal(shown, want, rule="Enough are free: the blocks.", case=case, hint=hint)
    what = "What would you need at 3 a.m.? "
    for total, used, count, size in ((640, 583, 71, 16), (1300, 1277, 408, 32)):
        pool = BlockPool(total)
        pool.get_new_blocks(used)
        free = total - used
        case = f"take(pool, {count}, {size}), {free} of {total} blocks free"
        rule = "Too few blocks: a ValueError, before anything has changed."
        hint = "Compare n with pool.num_free_blocks first, and raise a ValueError."
        expect.raises(ValueError, answer, pool, count, size, rule=rule, hint=hint)
        hint = "Nothing may be taken before the error: the caller will try again with a pool that is whole."
        expect.equal(pool.num_free_blocks, free, rule=rule, case=f"{case}: free blocks afterwards", hint=hint)
        message = _message(answer, pool, count, size)
        for number, name, why in (
            (count, "the blocks requested", "How many blocks did somebody ask for?"),
            (free, "the free blocks", "Was nothing free, or only a little too few?"),
            (total, "all blocks of the pool", "Is this pool small, or is it large and full? Only the total tells."),
            (size, "the block size", "How many tokens is that? Blocks alone do not say."),
        ):
            expect.that(
                re.search(rf"(?<!\d){number}(?!\d)", message.replace(",", "")),
                rule="The message names requested, free, total and block size.",
                case=f"{case}: {name}",
                want=f"{number} in the message",
                got=message,
                hint=what + why,
            )
        expect.that(
            re.search(_WAYS_OUT, re.sub(_NO_WAY_OUT, " ", message, flags=re.IGNORECASE), re.IGNORECASE),
            rule="The message says what to do.",
            case=case,
            got=message,
            hint=what + "The way out: fewer or shorter requests, or more memory. Say it, with the name of the setting.",
        )


_WAYS_OUT = (
    r"\b(raise|raising|enlarge|larger|bigger|increase|increasing|more (\w+ )?(memory|blocks|vram|gpus?)|lower|shorten|"
    r"shorter|reduc|decrease|decreasing|fewer|smaller|split|preempt|evict|free (up|some|a|one|other)\b|abort|cancel|"
    r"stop|wait|retry|try again|num_blocks|gpu_memory_utilization|max_model_len|max_num_seqs|max_tokens)"
)
# Words of the same kind that only compare, or name a value: "71 is larger than 57", "num_blocks=640".
_NO_WAY_OUT = (
    r"\b(larger|bigger|lower|fewer|smaller|shorter|more)( \w+)? than\b|\bmore blocks\b(?= (are|were|is)\b)|"
    r"\b\w+ ?[=:] ?\d[\d,_]*|\b\d+ (more|fewer|larger)\b"
)


def _message(function: Callable, *args: Any) -> str:
    try:
        function(*args)
    except ValueError as error:
        return str(error)
    return ""


@exercise(
    "7.6",
    title="Tests that find bugs",
    stars=3,
    minutes=60,
    hints=(
        "Which sentence about free blocks, slots, hits or owners is true after every call? Would your test notice if "
        "it were false?",
        "Assert state, not only results: free blocks before and after, slots at a block's border, what hits after "
        "reuse, the order of the free queue, what a second free does, what is left after a refusal.",
        "m = make(8, 4); r = run(m, 'a', list(range(9))); assert slots == [ids[p // 4] * 4 + p % 4 ...]; m.free(r); "
        "assert m.num_free_blocks == 8; assert [b.block_id for b in m.pool.free_queue] == [2, 3, 4, 5, 6, 7, 1, 0]; …",
    ),
    vllm="tests/v1/core/test_kv_cache_utils.py and test_prefix_caching.py: tests of the pool to learn from",
    reference=("minipaged.course.faulty_pools.BUGS", "minipaged.course.faulty_pools.make_manager"),
)
def check_pool_tests(answer: Callable[[MakeManager], None], expect: Expect) -> None:
    """pool_tests(make_manager): raises AssertionError when a rule is broken. Four of the eight bugs must be found."""
    _passes_when_right(answer, expect)
    survivors = []
    with redirect_stdout(io.StringIO()):  # what the tests print was seen in the first run
        for bug in BUGS.values():
            if not _finds(answer, bug.make):
                survivors.append(bug.question)
            _passes_when_right(answer, expect)  # once more: it must look at the manager, not count its calls or guess
    found = len(BUGS) - len(survivors)
    hint = (
        "Assert state: your test calls the manager and looks at nothing that a bug would change." if not found else ""
    )
    expect.that(
        found >= 4, rule="Good tests find bugs: at least 4 of the 8 seeded ones.", case="bugs found",
        want=f"4 of {len(BUGS)} or more", got=f"{found} of {len(BUGS)}", hint=hint or next(iter(survivors), ""),
        picture="Not found yet. Ask yourself:\n" + "\n".join(f"- {question}" for question in survivors),
    )  # fmt: skip
    print(f"Your tests find {found} of {len(BUGS)} seeded bugs." + (" Not found yet:" if survivors else ""))
    for question in survivors:
        print(f"- {question}")


MOST_LINES = 100_000


def _passes_when_right(answer: Callable, expect: Expect) -> None:
    rule, case = "Tests pass on a manager that is right, within limited time.", "a manager without a bug"
    try:
        with line_limit(MOST_LINES):
            returned = expect.call(answer, make_manager)
    except Endless:
        hint = "Small pools and a few requests find these bugs. Does every loop end?"
        expect.fail(rule=rule, case=f"{case}: broken off after {MOST_LINES:,} lines of your code", hint=hint)
    except (KeyboardInterrupt, Unmet):
        raise
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, Exception) and error.__cause__ is not None else error
        where = last_learner_frame(cause.__traceback__)
        asserted = isinstance(cause, AssertionError) or not isinstance(cause, Exception)  # pytest's own: no Exception
        if not asserted or where is None:
            raise
        hint = "A test that fails on healthy code proves nothing: work this assertion out by hand once more."
        expect.fail(rule=rule, case=f"{case}: {describe_line(where)}", hint=hint)
    hint = "A test says what is wrong by raising: `assert condition`, not `return condition`."
    expect.that(returned is None, rule="A test returns nothing.", case=case, got=returned, hint=hint)


def _finds(answer: Callable, make: MakeManager) -> bool:
    """Whether the tests fail, by whatever error, on this manager. A run that does not end counts, too."""
    try:
        with line_limit(MOST_LINES):
            answer(make)
    except KeyboardInterrupt:
        raise
    except BaseException:  # pytest.fail and pytest.raises raise what is no Exception
        return True
    return False


FIELDS = ("metric", "kind", "issue", "reproduction", "duplicates")
KINDS = ("gauge", "counter", "histogram")
RENAMED = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits",
}
COMPUTED = {
    "hit rate": ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
    "total blocks": ("vllm:cache_config_info",),
}
EARLIER = {
    "vllm:num_prefix_cached_blocks": "33435",
    "vllm:num_prefix_cached_tokens": "33435",
    "vllm:num_kv_cache_total_blocks": "33435",
    "vllm:prefix_cache_usage_perc": "33435",
    "vllm:kv_cache_avg_lifetime_seconds": "25736",
}
"""Metrics that were proposed to vLLM before: the number of the pull request (github.com/vllm-project/vllm/pull/N)."""

FIRST = "Search /metrics first: "


@exercise(
    "7.7",
    title="Prepare a contribution",
    stars=3,
    minutes=60,
    hints=(
        "What can nobody see today who runs a pool? How do you prove that it cannot be seen, and that nobody else is "
        "at it?",
        "The plan names the gap, shows it (what you ran, expected, got), says where you searched and what you found. "
        "The test fails without the change and passes with it.",
        "metric: free blocks that are still cached (the nearest one today: vllm:kv_cache_usage_perc). measure: sum "
        "over pool.blocks of ref_cnt == 0 and block_hash is not None. test: 0 when new, 0 while it runs, then 2",
    ),
    vllm="vllm/v1/metrics/loggers.py · PrometheusStatLogger, vllm/v1/core/block_pool.py · BlockPool.get_usage",
)
def check_plan(answer: tuple[dict, Callable, Callable], expect: Expect) -> None:
    """(plan, measure, test_measure)."""
    well = isinstance(answer, list | tuple) and len(answer) == 3 and all(map(callable, answer[1:]))
    hint = 'check("7.7", (plan, measure, test_measure))'
    expect.that(well, rule="A dict and two functions.", got=answer, hint=hint)
    plan, measure, test = answer
    expect.that(isinstance(plan, dict), rule="The plan is a dict.", got=plan, hint=f"Keys: {', '.join(FIELDS)}.")
    missing = [field for field in FIELDS if not plan.get(field)]
    hint = "A reviewer asks for each of them: what, why, how to see it, and whether it is there already."
    expect.equal(missing, [], rule="All fields of the plan are filled in.", case="empty or missing", hint=hint)
    _check_metric_is_new(plan["metric"], expect)
    _check_texts(plan, expect)
    values = _measure_states(measure, expect)
    _check_measure(plan, values, expect)
    _check_test(test, measure, expect)


def _check_metric_is_new(name: object, expect: Expect) -> None:
    case = f"plan['metric'] = {name!r}"
    hint = "Lower case, words joined by _, and the prefix vllm: as in /metrics."
    well = isinstance(name, str) and re.fullmatch(r"vllm:[a-z][a-z0-9_]*", name)
    expect.that(well, rule="A metric has a name like vllm:kv_cache_usage_perc.", case=case, got=name, hint=hint)
    today, rule = metrics(), "The metric does not exist yet."
    plain = re.sub(r"_(total|count|sum|bucket)$", "", name)
    there = name if name in today else plain if plain in today else RENAMED.get(name)
    if there:
        hint = FIRST + f"{there} is in 0.32 already ({today[there].documentation.rstrip('.')})."
        expect.fail(rule=rule, case=case, hint=hint)
    words = _words(name)
    for other, metric in today.items():
        if words == _words(other):
            hint = FIRST + f"{other} says the same ({metric.documentation.rstrip('.')})."
            expect.fail(rule=rule, case=case, hint=hint)
    for told, sources in COMPUTED.items():
        if set(told.split()) <= set(re.split(r"[:_]", name)):
            hint = FIRST + f"the {told} can be computed from {' and '.join(sources)}."
            expect.fail(rule=rule, case=case, hint=hint)


def _words(name: str) -> frozenset[str]:
    """The words of a metric's name that carry its meaning, without plural endings."""
    plain = {"num", "number", "total", "count", "perc", "percent", "ratio", "of", "the", "gpu", "current", "vllm"}
    return frozenset(word.rstrip("s") for word in re.split(r"[:_]", name)) - plain


def _check_texts(plan: Mapping[str, Any], expect: Expect) -> None:
    hint = "Say what cannot be seen today, who needs it, and what they would do with it."
    _expect_words(plan["issue"], 12, "issue", hint, expect)
    kind = plan["kind"]
    hint = "A gauge goes up and down, a counter only up, a histogram collects single values."
    expect.that(kind in KINDS, rule=f"kind is one of {', '.join(KINDS)}.", got=kind, hint=hint)
    text = plan["reproduction"]
    hint = "Somebody else must be able to do it again: the command or the code, what you expected, what you got."
    _expect_words(text, 12, "reproduction", hint, expect)
    rule = "A reproduction has a command or code, what was expected, and what was seen."
    found = {
        "a command or code": re.search(r"/metrics|curl|pytest|python|grep|vllm |minipaged|\(.*\)", text),
        "expected": re.search("expect", text, re.IGNORECASE),
        "got": re.search(r"\b(got|get|gets|saw|see|shows?|observed|actual\w*|instead|prints?)\b", text, re.IGNORECASE),
    }
    lacking = [part for part, match in found.items() if not match]
    expect.equal(lacking, [], rule=rule, case="plan['reproduction'] lacks", hint=hint)
    where = plan["duplicates"]
    hint = "Three places: today's metrics, the issues, and the pull requests, the closed ones too."
    places = ("metrics", "issues", "pull requests")
    well = isinstance(where, dict) and all(where.get(place) for place in places)
    rule = f"The duplicate check covers {', '.join(places)}."
    expect.that(well, rule=rule, case="plan['duplicates']", got=where, hint=hint)
    for place in places:
        ask = f"For what did you search in the {place}, and what did you find? 'Nothing' is a result: name the words."
        _expect_words(where[place], 5, f"duplicates[{place!r}]", ask, expect)
    named = [name for name in metrics() if name in where["metrics"]]
    hint = FIRST + "which of today's metrics comes nearest to yours? metrics() lists them. Name it, and what it lacks."
    rule = "The duplicate check names the nearest metric of today."
    expect.that(named, rule=rule, case="plan['duplicates']['metrics']", got=where["metrics"], hint=hint)
    number = EARLIER.get(plan["metric"])
    if number:
        said = any(number in where[place] for place in places)
        hint = f"It was proposed before, in pull request {number} of vLLM. Closed ones count: say what became of it."
        expect.that(said, rule="Earlier proposals are named.", case=f"plan['metric'] = {plan['metric']!r}", hint=hint)


def _expect_words(text: object, least: int, field: str, hint: str, expect: Expect) -> None:
    rule = (
        f"plan[{field!r}] is a text of {least} words or more."
        if "[" not in field
        else f"A text of {least} words or more."
    )
    expect.that(
        isinstance(text, str) and len(text.split()) >= least, rule=rule, case=f"plan: {field}", got=text, hint=hint
    )


def _states() -> dict[str, KVCacheManager]:
    """One pool of 8 blocks in different states."""
    states = {"a new pool": KVCacheManager(8, 4)}
    for told, lengths, ended in (
        ("a request of 9 tokens runs", (9,), ()),
        ("it has ended", (9,), (0,)),
        ("two run, one has ended", (9, 6, 5), (1,)),
        ("three have ended", (9, 6, 5), (0, 1, 2)),
    ):
        manager = states[told] = KVCacheManager(8, 4)
        requests = [CacheRequest(f"r{n}", range(100 * n, 100 * n + length)) for n, length in enumerate(lengths)]
        for request in requests:
            manager.allocate_slots(request, request.num_tokens)
            request.num_computed_tokens = request.num_tokens
        for number in ended:
            manager.free(requests[number])
    for told in ("two share a prompt", "a stranger has taken the whole pool"):
        manager = states[told] = KVCacheManager(8, 4)
        requests = [CacheRequest(f"r{n}", range(9)) for n in range(2)]
        for request in requests:
            blocks, hit = manager.get_computed_blocks(request)
            manager.allocate_slots(request, request.num_tokens - hit, hit, blocks)
            request.num_computed_tokens = request.num_tokens
        if "stranger" in told:
            for request in requests:
                manager.free(request)
            manager.allocate_slots(CacheRequest("stranger", range(500, 532)), 32)
    return states


def _snapshot(manager: KVCacheManager) -> tuple:
    """All that a look must leave as it is."""
    blocks = [(block.ref_cnt, block.block_hash) for block in manager.pool.blocks]
    return manager.num_free_blocks, [block.block_id for block in manager.pool.free_queue], blocks


def _measure_states(measure: Callable[[KVCacheManager], float], expect: Expect) -> dict[str, float]:
    values = {}
    for told, manager in _states().items():
        before = _snapshot(manager)
        values[told] = expect.call(measure, manager)
        number = isinstance(values[told], Real) and not isinstance(values[told], bool) and math.isfinite(values[told])
        hint = "Return the number that the metric would show now."
        expect.that(number, rule="measure returns a number.", case=told, got=values[told], hint=hint)
        hint = "Whoever looks must not touch: read attributes, take, free and reset nothing."
        free, queue, blocks = _snapshot(manager)
        rule = "Measuring changes nothing."
        expect.equal((free, queue), before[:2], rule=rule, case=f"{told}: free blocks", hint=hint)
        changed = [number for number, block in enumerate(blocks) if block != before[2][number]]
        expect.equal(changed, [], rule=rule, case=f"{told}: blocks whose count or hash has changed", hint=hint)
        manager.check_integrity()
    return values


def _check_measure(plan: Mapping[str, Any], values: dict[str, float], expect: Expect) -> None:
    seen = list(values.values())
    case = ", ".join(f"{told}: {value:.3g}" for told, value in values.items())
    hint = "It is the same in every state of the pool: what would anybody learn from it?"
    expect.that(len(set(seen)) > 1, rule="A metric shows something that changes.", case=case, hint=hint)
    usage = [manager.usage for manager in _states().values()]
    hint = FIRST + "this is vllm:kv_cache_usage_perc under another name."
    hundred = [100 * value for value in usage]
    is_usage = any(all(abs(a - b) < 1e-9 for a, b in zip(seen, known, strict=True)) for known in (usage, hundred))
    expect.that(not is_usage, rule="The metric does not exist yet.", case=case, hint=hint)
    hint = FIRST + "this can be computed from vllm:kv_cache_usage_perc and num_gpu_blocks in vllm:cache_config_info."
    expect.that(not _follows_from(usage, seen), rule="The metric says something new.", case=case, hint=hint)
    falls = values["a request of 9 tokens runs"] > values["it has ended"]
    hint = "Here it goes down when a request ends. A counter never goes down: this is a gauge."
    expect.that(not (falls and plan["kind"] == "counter"), rule="The kind fits the metric.", case=case, hint=hint)


def _follows_from(known: list[float], seen: list[float]) -> bool:
    """Whether `seen` is a straight line over `known`: known · a + b in every state."""
    low, high = min(range(len(known)), key=known.__getitem__), max(range(len(known)), key=known.__getitem__)
    slope = (seen[high] - seen[low]) / (known[high] - known[low])
    return all(abs(seen[low] + slope * (x - known[low]) - y) < 1e-9 for x, y in zip(known, seen, strict=True))


def _check_test(test: Callable, measure: Callable, expect: Expect) -> None:
    rule = "The test passes with the change, and fails without it."
    try:
        expect.call(test, measure)
    except Exception as error:
        cause = error.__cause__ if error.__cause__ is not None else error
        where = last_learner_frame(cause.__traceback__)
        if not isinstance(cause, AssertionError) or where is None:
            raise
        hint = "Work out by hand what measure must give in this state."
        expect.fail(rule=rule, case=f"your test on your measure: {describe_line(where)}", hint=hint)
    for told, wrong in (
        ("there is no such metric: it is always 0", lambda manager: 0),
        ("a measure that is one too high", lambda manager: measure(manager) + 1),
        ("the usage instead", lambda manager: manager.usage),
        ("the free blocks instead", lambda manager: manager.num_free_blocks + (measure(manager) == 8)),
    ):
        try:
            test(wrong)
        except Exception:
            continue
        hint = "Your test passes without your change. Assert the number itself, in a state where it is not 0."
        expect.fail(rule=rule, case=f"your test passes, although: {told}", hint=hint)
