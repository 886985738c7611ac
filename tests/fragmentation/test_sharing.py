"""Forks save what the tables say: the real manager against plain arithmetic and a plain list of histories."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.fragmentation import beam_savings, parallel_savings
from minipaged.workloads import Workload, alpaca_like

SHAPES = st.tuples(st.integers(1, 20), st.integers(1, 20))


@settings(deadline=None, max_examples=60)
@given(shape=SHAPES, width=st.integers(1, 5), block_size=st.integers(1, 6))
def test_parallel_samples_share_the_full_blocks_of_the_prompt(shape, width, block_size):
    prompt, output = shape
    got = parallel_savings([Workload(0.0, prompt, output)], width, block_size)
    blocks = [-(-(prompt + step) // block_size) for step in range(1, output + 1)]
    assert got.listed == width * sum(blocks)
    assert got.listed - got.held == (width - 1) * (prompt // block_size) * output


@settings(deadline=None, max_examples=60)
@given(shape=SHAPES, width=st.integers(1, 5), block_size=st.integers(1, 6), seed=st.integers(0, 99))
def test_beams_hold_one_block_for_each_different_history(shape, width, block_size, seed):
    """A block is the same for two beams when both had it from one ancestor: equal ids of who wrote each token."""
    prompt, output = shape
    rng = random.Random(seed)
    histories = [[("prompt", i) for i in range(prompt)] for _ in range(width)]
    held = listed = 0
    for step in range(output):
        parents = [rng.randrange(width) if rng.random() < 0.5 else i for i in range(width)]
        histories = [[*histories[p], (step, i)] for i, p in enumerate(parents)]
        stops = range(0, prompt + step + 1, block_size)
        held += len({tuple(history[: stop + block_size]) for history in histories for stop in stops})
        listed += width * len(stops)
    got = beam_savings([Workload(0.0, prompt, output)], width, block_size, fresh=0.5, seed=seed)
    assert (got.listed, got.held) == (listed, held)


def test_beams_share_more_than_samples():
    requests = alpaca_like(20)
    assert 0 < parallel_savings(requests, 4).percent < beam_savings(requests, 4).percent < 75
    assert beam_savings(requests, 4, fresh=0.0) == parallel_savings(requests, 4)
    assert parallel_savings([], 4).percent == 0


def test_bad_input():
    with pytest.raises(ValueError, match="width is 0"):
        parallel_savings([Workload(0.0, 1, 1)], 0)
    with pytest.raises(ValueError, match="block_size is 0"):
        beam_savings([Workload(0.0, 1, 1)], 2, 0)
    with pytest.raises(ValueError, match="request 1: output_tokens is 0"):
        parallel_savings([Workload(0.0, 1, 1), Workload(0.0, 1, 0)], 2)
    with pytest.raises(ValueError, match="fresh is 2"):
        beam_savings([], 2, fresh=2)
