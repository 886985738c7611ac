"""Random work in tiny pools: the text is that of an ample pool without sharing, the pool is whole after every step,
and everything ends."""

from __future__ import annotations

import os
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.serving.helpers import (
    BeamSearchParams,
    ContentOfTheCache,
    HashModel,
    SamplingParams,
    assert_empty,
    greedy,
    make_llm,
    naive_beam_search,
)

EXAMPLES = int(os.environ.get("MINIPAGED_EXAMPLES", "100"))

# Few different prompts, with common beginnings: so that blocks are shared and hit.
PROMPTS = st.builds(
    lambda start, tail: [1, 2, 3, 4, 5, 6, 7, 8, 9][:start] + tail,
    st.integers(0, 9),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
)
SAMPLING = st.builds(
    SamplingParams,
    n=st.sampled_from([1, 1, 1, 2, 3]),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 3),
    max_tokens=st.sampled_from([1, 4, 8, 12, 16]),
    ignore_eos=st.booleans(),
    sharing=st.sampled_from(["fork", "prefix_cache"]),
)
BEAM = st.builds(
    BeamSearchParams,
    beam_width=st.integers(1, 3),
    max_tokens=st.integers(1, 7),
    length_penalty=st.sampled_from([1.0, 0.5, 2.0]),
    early_stopping=st.booleans(),
)
ARRIVAL = st.sampled_from([0, 0, 1, 2, 9])  # the step
PRIORITY = st.integers(0, 2)
REQUESTS = st.lists(
    st.tuples(PROMPTS, st.one_of(SAMPLING, SAMPLING, SAMPLING, BEAM), ARRIVAL, PRIORITY),
    min_size=3,
    max_size=8,
)

def without_idle_swap(engine: dict) -> dict:
    """Room to swap to is refused where nothing is ever swapped."""
    swaps = engine["preemption"] == "swap"
    return {name: value for name, value in engine.items() if swaps or not name.endswith(("cpu_blocks", "disk_blocks"))}


ENGINES = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 3, 4, 8]),
        "enable_prefix_caching": st.booleans(),
        "null_block": st.booleans(),
        "max_num_seqs": st.integers(3, 8),
        "max_num_batched_tokens": st.sampled_from([3, 5, 16, 64]),
        "watermark": st.sampled_from([0.0, 0.1, 0.5]),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "num_cpu_blocks": st.sampled_from([0, 3, 40]),
        "num_disk_blocks": st.sampled_from([0, 0, 4]),
    }
).map(without_idle_swap)


def blocks_needed(prompt, params, block_size) -> int:
    width = getattr(params, "beam_width", 1)
    return width * -(-(len(prompt) + params.max_tokens - 1) // block_size)


YES = st.just(True)
# Beams whose sequences hold many blocks, beside an older request that wants them.
BEAMS_UNDER_PRESSURE = st.lists(
    st.tuples(
        st.lists(st.integers(1, 3), min_size=1, max_size=4),
        st.one_of(
            st.builds(BeamSearchParams, beam_width=st.integers(2, 4), max_tokens=st.integers(4, 10), ignore_eos=YES),
            st.builds(SamplingParams, max_tokens=st.integers(10, 30), ignore_eos=YES),
        ),
        st.integers(0, 4),
        st.just(0),
    ),
    min_size=2,
    max_size=4,
)


@lru_cache(maxsize=4096)
def _alone(prompt, params):
    """The continuations of one prompt, each generated alone, in a pool that is never short, with nothing shared."""
    if isinstance(params, BeamSearchParams):
        return [tokens for tokens, _ in naive_beam_search(list(prompt), params)]
    if params.temperature == 0:
        return [greedy(list(prompt), params.max_tokens, params.ignore_eos)] * params.n
    answers = []
    for index in range(params.n):
        llm = make_llm(enable_prefix_caching=False, num_blocks=200, check_integrity=False)
        one = SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=params.seed + index,
            max_tokens=params.max_tokens,
            ignore_eos=params.ignore_eos,
        )
        answers.append(llm.generate(list(prompt), one)[0].outputs[0].token_ids)
    return answers


@given(
    engine=ENGINES,
    requests=REQUESTS,
    spare=st.integers(0, 3),
    aborts=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 7)), max_size=2),
    fail_on=st.one_of(st.just(set()), st.sets(st.integers(1, 12), max_size=2)),
)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_text_is_that_of_an_ample_pool(engine, requests, spare, aborts, fail_on):
    check(engine, requests, spare, aborts, fail_on)


@given(engine=ENGINES, requests=BEAMS_UNDER_PRESSURE, spare=st.integers(0, 2))
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_beams_under_pressure(engine, requests, spare):
    check(engine | {"max_num_seqs": 20, "watermark": 0.0, "null_block": False}, requests, spare)


def check(engine, requests, spare, aborts=(), fail_on=frozenset()):
    """Run all to the end in a pool that holds the largest of them and ``spare`` blocks, checking at every step."""
    most = max(blocks_needed(prompt, params, engine["block_size"]) for prompt, params, _, _ in requests)
    num_blocks = most + spare + engine["null_block"]
    llm = make_llm(HashModel(fail_on=fail_on), num_blocks=num_blocks, **engine)
    outputs, given_up, aborted = {}, set(), set()
    content = ContentOfTheCache(llm)
    for step in range(3000):
        for number, (prompt, params, arrival, priority) in enumerate(requests):
            if arrival == step:
                rank = priority if engine["policy"] == "priority" else 0
                llm.engine.add_request(prompt, params, str(number), priority=rank)
        for when, number in aborts:
            if when == step and llm.engine.abort(str(number)):
                aborted.add(number)
        try:
            for output in llm.engine.step():
                outputs[int(output.request_id)] = output
        except RuntimeError as error:
            assert str(error) == "the device was lost", error  # noqa: PT017 (any other error is a finding)
            llm.engine.check_integrity()
            given_up |= {int(output.request_id) for output in llm.engine.take_failed()}
        content.check()
        if step > 12 and not llm.engine.has_unfinished_requests():
            break
    else:
        pytest.fail(f"not finished after 3000 steps: {llm.engine.scheduler.running} {llm.engine.scheduler.waiting}")
    assert_empty(llm)
    for number, (prompt, params, _, _) in enumerate(requests):
        if number in given_up or number in aborted:
            continue
        got = [completion.token_ids for completion in outputs[number].outputs]
        assert got == _alone(tuple(prompt), params)
    stats = llm.stats
    event(f"preempted {min(stats.num_preemptions, 3)}")
    event(f"swapped {stats.num_swapped_in_blocks > 0}, no room {stats.num_swap_fallbacks > 0}")
    event(f"copies {stats.num_copied_blocks > 0}")
    event(f"failed {len(given_up)}")
