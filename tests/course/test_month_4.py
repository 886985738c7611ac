"""Month 4's helpers: theory meets simulation, and the pictures say what they show."""

import pytest

from minipaged.course.figures_month_4 import draw_hole_map, row_spans
from minipaged.course.month_4 import (
    a_and_b,
    bars,
    bars_table,
    batch_by_rate,
    block_size_costs,
    explore,
    five_bars,
    length_histogram,
    record,
    refused_for_shape,
    steps_with_budget,
    tokens_to_compute,
)
from minipaged.fragmentation import compare, time_share
from minipaged.os_paging.contiguous import BestFit
from minipaged.workloads import shared_prefix, sharegpt_like, workload_a, workload_b


def test_waste_is_half_a_block_less_half_a_slot():
    for cost in block_size_costs(sharegpt_like(120), (1, 4, 16, 64)):
        assert cost.waste_slots == pytest.approx((cost.block_size - 1) / 2, abs=0.02 * cost.block_size)


def test_pagings_lead_grows_with_the_rate_of_arrival():
    leads = [float(row[-1]) for row in batch_by_rate((0.3, 4), n=800).rows]
    assert leads[0] == pytest.approx(1, abs=0.05)  # neither is ever full
    assert leads[1] > 1.5


def test_what_cannot_be_averaged_or_counted_is_refused():
    with pytest.raises(ValueError, match="nobody ever waits for paged: 3 requests"):
        block_size_costs(sharegpt_like(3), [16])
    with pytest.raises(ValueError, match="width is 0"):
        length_histogram(sharegpt_like(3), width=0)


def test_steps_with_a_token_budget():
    assert (steps_with_budget(workload_a(), 2048), steps_with_budget(workload_b(), 2048)) == (12, 2002)
    assert steps_with_budget(workload_a(1), 2048) == 10
    assert steps_with_budget(workload_a(1), 20) == 12
    with pytest.raises(ValueError, match="budget is 0"):
        steps_with_budget(workload_a(1), 0)


def test_every_request_is_in_one_bar_of_the_histogram():
    bars = length_histogram(sharegpt_like(300))
    assert list(bars)[:2] == ["to 128", "to 256"]
    assert [sum(row[kind] for row in bars.values()) for kind in ("prompt", "output")] == [300, 300]


def test_tokens_of_a_and_b():
    assert {name: tokens_to_compute(result) for name, result in a_and_b(20_000).items()} == {"A": 5_900, "B": 204_900}


def test_rows_of_the_hole_map_cover_the_pool():
    samples = record(sharegpt_like(40, seed=2), "oracle", "first fit", every=60)
    for sample in samples:
        end = 0
        for start, slots, _ in row_spans(sample):
            assert start == end
            end += slots
        assert end == 4096
    figure = draw_hole_map(samples[:3], "Holes")
    assert f"step {samples[2].step}: {samples[2].running} requests" in figure.text
    with pytest.raises(ValueError, match="no samples"):
        draw_hole_map([])
    with pytest.raises(ValueError, match="no layout"):
        draw_hole_map(record(sharegpt_like(5), layout=False))


def test_refusals_for_shape_only_where_memory_is_contiguous():
    requests = sharegpt_like(100, seed=2)
    assert time_share(record(requests, "oracle", "first fit"), refused_for_shape) > 0.1
    assert time_share(record(requests, "paged"), refused_for_shape) == 0


def test_bars_and_explorer():
    with pytest.raises(ValueError, match="nobody ever waits for Max: 3 requests never fill its 15,728 slots"):
        bars(compare(sharegpt_like(3)))
    with pytest.raises(ValueError, match="nobody ever waits for Max"):
        bars_table(compare(sharegpt_like(3)))
    assert "duplicate" in bars_table(compare(shared_prefix(400))).headers
    assert "duplicate" not in bars_table(compare(sharegpt_like(80))).headers
    assert "Pow2\npaper" in bars(compare(sharegpt_like(80))).text
    assert bars(five_bars(BestFit, sharegpt_like(80))).text.count("mine") == 1
    figure = explore("paged", "A: 50 + 10", 4096, 16)
    assert "most 64" in figure.text
    assert "nobody waits" in explore("paged", "A: 50 + 10", 15728, 16).text
