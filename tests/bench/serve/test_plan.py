"""Plans: the promised lengths, prefixes that are shared token by token, and nothing else shared."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.bench.serve.plan import TOKEN_IDS, WORKLOADS, make_plan
from minipaged.workloads import Workload


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_can_be_planned_and_repeated(name):
    plan = make_plan(name, 8, seed=3)
    assert plan == make_plan(name, 8, seed=3)
    assert plan.requests != make_plan(name, 8, seed=4).requests
    assert [request.index for request in plan.requests] == list(range(8))
    assert all(set(request.prompt) <= set(TOKEN_IDS) for request in plan.requests)
    assert all(request.prompt and request.max_tokens >= 1 for request in plan.requests)
    assert name in plan.lines()[0]


def test_a_and_b_are_what_they_say():
    for name, output in (("A", 10), ("B", 2000)):
        plan = make_plan(name)
        assert {(len(request.prompt), request.max_tokens) for request in plan.requests} == {(50, output)}
        assert len(plan.requests) == 100
        assert {request.arrival for request in plan.requests} == {0.0}
        prompts = [request.prompt for request in plan.requests]
        assert all(common(a, b) < 16 for i, a in enumerate(prompts) for b in prompts[:i])  # no block is shared


def test_shared_prefixes_are_shared_and_the_rest_is_not():
    first, *others = make_plan("shared-prefix", 6).requests
    assert all(341 <= common(first.prompt, other.prompt) < 341 + 16 for other in others)
    first, *others = make_plan("shared-prefix", 6, unique=True).requests
    assert all(common(first.prompt, other.prompt) < 16 for other in others)
    assert len(first.prompt) == len(make_plan("shared-prefix", 6).requests[0].prompt)


def test_a_turn_begins_with_the_turn_before_and_waits_for_it():
    plan = make_plan("multi-turn", 12, scale=0.5)
    assert "a turn waits for the one before" in plan.lines()[0]
    chained = [request for request in plan.requests if request.follows is not None]
    assert len(chained) == 12 - 3
    for request in chained:
        before = plan.requests[request.follows]
        assert request.prompt[: len(before.prompt)] == before.prompt
        assert len(request.prompt) > len(before.prompt)
        assert request.arrival >= before.arrival


def test_rates():
    at_once = make_plan("sharegpt", 5, rate=math.inf)
    assert "at once" in at_once.arrivals
    slow = [request.arrival for request in make_plan("A", 2000, rate=4).requests]
    assert slow == sorted(slow)
    assert slow[-1] == pytest.approx(2000 / 4, rel=0.1)
    assert "4 a second (Poisson)" in make_plan("A", 5, rate=4).lines()[0]


def test_scaling_is_named():
    plan = make_plan("B", 2, scale=0.1)
    assert {(len(request.prompt), request.max_tokens) for request in plan.requests} == {(5, 200)}
    assert "× 0.1" in plan.lines()[1]
    assert len(make_plan("B", 2).lines()) == 1


def test_traces(tmp_path):
    trace = tmp_path / "mine.csv"
    trace.write_text("arrival,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n1.5,40,3,x,32\n0.5,33,2,x,32\n")
    plan = make_plan(trace)
    assert [(r.arrival, len(r.prompt), r.max_tokens) for r in plan.requests] == [(0.5, 33, 2), (1.5, 40, 3)]
    assert common(plan.requests[0].prompt, plan.requests[1].prompt) >= 32
    assert plan.name == "mine.csv"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workload": "C"}, "'C' is unknown; choose one of A, B"),
        ({"workload": "no.csv"}, "there is no trace no.csv"),
        ({"workload": []}, "empty list"),
        ({"workload": [Workload(0, 5, 5)], "requests": 2}, "has only 1"),
        ({"workload": [Workload(0, 5, -5)]}, "output_tokens is -5"),
        ({"workload": "A", "requests": 0}, "requests is 0"),
        ({"workload": "A", "rate": 0}, "rate is 0"),
        ({"workload": "A", "rate": math.nan}, "rate is nan"),
        ({"workload": "A", "scale": 0}, "scale is 0"),
        ({"workload": "A", "scale": math.inf}, "scale is inf"),
        ({"workload": "A", "token_ids": [7]}, "at least 2 ids"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_plan(**arguments)


def test_a_number_of_requests_is_whole():
    with pytest.raises(TypeError, match=r"requests must be an int, got 2\.5"):
        make_plan("A", requests=2.5)


lengths = st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300))


@settings(max_examples=50)
@given(st.lists(lengths, min_size=1, max_size=8), st.floats(0.01, 3))
def test_scaled_lengths_stay_possible(rows, scale):
    items = [Workload(0.0, p, o, "x", min(p, shared)) for p, o, shared in rows]
    plan = make_plan(items, scale=scale)
    for item, request in zip(items, plan.requests, strict=True):
        assert len(request.prompt) == max(1, round(item.prompt_tokens * scale))
        assert request.max_tokens == max(1, round(item.output_tokens * scale))
    assert plan.longest >= 2
