"""What lies where: the layout agrees with the parts at every event; holes and spans tile the pool; exact averages."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.fragmentation import Paged, Parts, Recorder, holes, make_system, simulate, time_average, time_share
from minipaged.workloads import Workload, shared_prefix, sharegpt_like

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=15)


@settings(deadline=None, max_examples=60)
@given(
    lengths=LENGTHS,
    name=st.sampled_from(["max", "pow2", "oracle", "paged"]),
    kind=st.sampled_from(["best fit", "buddy"]),
)
def test_layout_tiles_the_pool_and_agrees_with_the_parts(lengths, name, kind):
    system = make_system(name, 2048 + 64 if name == "max" else 120, kind, 4)
    recorder = Recorder(system)
    simulate([Workload(0.0, *pair) for pair in lengths], system, watch=recorder)
    for sample in recorder.samples:
        found = holes(sample)
        end = 0
        for start, slots in sorted([span[:2] for span in sample.spans] + found):
            assert (start, slots > 0) == (end, True)
            end = start + slots
        assert end == system.pool_slots
        sums = {part: sum(n for _, n, p in sample.spans if p == part) for part in Parts._fields}
        unowned = sum(slots for _, slots in found)
        assert sample.unowned == unowned
        for part in ("tokens", "reservation", "internal"):
            assert sums[part] == getattr(sample.parts, part)
        # Unowned slots are free, or external waste while somebody waits for memory.
        assert sums["external"] + (unowned if sample.refused else 0) == sample.parts.external
    assert recorder.samples[-1].refused == 0


def test_a_shared_block_is_listed_once():
    system = Paged(4096, share=True)
    recorder = Recorder(system)
    simulate(shared_prefix(20, prefix_tokens=80), system, watch=recorder)
    for sample in recorder.samples:
        assert sample.unowned == sample.parts.free
        assert sum(n for _, n, part in sample.spans if part == "tokens") == sample.parts.tokens


def test_samples_keep_their_distance():
    system = make_system("oracle", 4096)
    recorder = Recorder(system, every=50, layout=False)
    simulate(sharegpt_like(40), system, watch=recorder)
    steps = [sample.step for sample in recorder.samples]
    assert all(later >= earlier + 50 for earlier, later in pairwise(steps))
    assert recorder.samples[0].spans == []


def test_time_average_weighs_by_steps():
    system = Paged(64, 4)
    recorder = Recorder(system)
    simulate([Workload(0.0, 3, 5)], system, watch=recorder)
    # The tokens at the beginning of each of the 5 steps: 3, 4, 5, 6, 7; an event only where a block is full.
    assert [(s.step, s.parts.tokens) for s in recorder.samples] == [(0, 3), (1, 4), (5, 0)]
    assert time_average(recorder.samples, lambda s: s.step) == pytest.approx((0 * 1 + 1 * 4) / 5)
    assert time_share(recorder.samples, lambda s: s.step >= 1) == pytest.approx(0.8)


def test_bad_input():
    with pytest.raises(ValueError, match="every is -1"):
        Recorder(Paged(64), every=-1)
    with pytest.raises(TypeError, match=r"every must be an int, got 1\.5"):
        Recorder(Paged(64), every=1.5)
    with pytest.raises(ValueError, match="0 samples over 0 steps"):
        time_average([], lambda s: 1.0)
