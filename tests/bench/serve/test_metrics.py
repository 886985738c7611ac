"""Figures from made-up times, with exact expected values, and properties of the statistics."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.bench.serve.client import RequestRecord
from minipaged.bench.serve.metrics import Slo, Spread, summarise
from minipaged.bench.serve.report import remarks
from minipaged.bench.serve.scrape import BEFORE
from minipaged.scraping import MetricsSample


def record(index: int = 0, sent: float = 0.0, times: tuple[float, ...] = (), **more) -> RequestRecord:
    more = {"output_tokens": len(times), "counted_by": "usage", **more}
    return RequestRecord(index, 50, 4, arrival=sent, sent=sent, chunk_times=list(times), **more)


FIRST = record(0, 1.0, (1.5, 1.75, 2.0, 2.5), cached_tokens=32)  # TTFT 0.5, ITL .25 .25 .5, E2EL 1.5, TPOT 1/3
SECOND = record(1, 2.0, (2.25, 3.25), cached_tokens=0)  # TTFT 0.25, ITL 1, E2EL 1.25, TPOT 1
ONE_TOKEN = record(2, 0.0, (0.125,), cached_tokens=16)
FAILED = record(3, 0.0, (0.5,), error="HTTP 500: no")


def test_one_request():
    assert (FIRST.ttft, FIRST.e2el, FIRST.itls) == (0.5, 1.5, [0.25, 0.25, 0.5])
    assert FIRST.tpot == pytest.approx(1 / 3)
    assert ONE_TOKEN.tpot is None
    assert [r.short for r in (FIRST, SECOND, FAILED)] == [False, True, False]


def test_a_run_in_exact_figures():
    summary = summarise([FIRST, SECOND, ONE_TOKEN, FAILED], duration=4.0)
    assert (summary.completed, summary.failed, summary.errors) == (3, 1, {"HTTP 500: no": 1})
    assert (summary.input_tokens, summary.output_tokens) == (150, 7)
    assert (summary.request_throughput, summary.input_throughput, summary.output_throughput) == (0.75, 37.5, 1.75)
    assert summary.ttft == Spread(mean=875 / 3, median=250.0, p99=pytest.approx(495.0))  # of 125, 250, 500
    assert summary.itl == Spread(500.0, 375.0, pytest.approx(985.0))  # of 250, 250, 500, 1000
    assert summary.tpot.mean == pytest.approx(2000 / 3)  # the single token has none
    assert summary.e2el.median == 1250.0
    assert summary.goodput is None
    assert (summary.prefill_tokens, summary.prefix_hit_rate) == (102, 48 / 150)


def test_chunks_that_carry_several_tokens():
    """TPOT divides by the tokens, ITL counts the chunks: as vLLM's benchmark does."""
    several = record(times=(1.0, 2.0), output_tokens=5)
    assert (several.tpot, several.itls) == (0.25, [1.0])


@pytest.mark.parametrize(
    ("slo", "per_second"),
    [
        (Slo(ttft_ms=250), 0.5),  # the limit itself is kept
        (Slo(tpot_ms=334), 0.5),  # a single token counts as 0
        (Slo(ttft_ms=400, tpot_ms=400), 0.25),
        (Slo(e2el_ms=10_000), 0.75),  # a failed request is never good
    ],
)
def test_goodput(slo, per_second):
    assert summarise([FIRST, SECOND, ONE_TOKEN, FAILED], 4.0, slo=slo).goodput == per_second


def test_a_limit_must_be_above_zero():
    with pytest.raises(ValueError, match="TPOT is 0 ms"):
        Slo(tpot_ms=0)


def test_the_server_counts_win_over_the_usage():
    samples = [
        MetricsSample(BEFORE, usage=0.9, prefix_queries=1000, prefix_hits=900, preemptions=3),
        MetricsSample(0.5, usage=0.2),
        MetricsSample(1.5, usage=0.6, prefix_queries=1100, prefix_hits=960),
        MetricsSample(4.5, usage=0.0, prefix_queries=1200, prefix_hits=1050, preemptions=5),
    ]
    summary = summarise([record(times=(1.0,))], 4.0, samples)
    assert (summary.mean_kv_usage, summary.peak_kv_usage) == (pytest.approx(0.4), 0.6)  # during the run only
    assert (summary.prefix_hit_rate, summary.prefill_tokens, summary.preemptions) == (0.75, 50, 2)


def test_a_busy_client_is_told():
    lazy, busy = (summarise([FIRST], 4.0, client_seconds=seconds) for seconds in (1.0, 3.0))
    assert (lazy.client_busy, busy.client_busy) == (0.25, 0.75)
    assert remarks(lazy) == []
    assert "the client computed 75.0 % of the time" in remarks(busy)[1]


def test_what_is_not_reported_is_none_and_never_zero():
    for samples in ([], [MetricsSample(BEFORE, prefix_queries=0, prefix_hits=0), MetricsSample(3, prefix_queries=0)]):
        summary = summarise([record(times=(1.0,))], 2.0, samples)
        assert summary.prefix_hit_rate is None
        assert summary.prefill_tokens is None
        assert summary.mean_kv_usage is None
        assert summary.tpot is None
    nothing = summarise([FAILED], 2.0)
    assert (nothing.ttft, nothing.e2el, nothing.request_throughput) == (None, None, 0)


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=200))
def test_spread_is_ordered_and_scales(seconds):
    spread = Spread.of(seconds)
    assert spread.median == pytest.approx(1000 * statistics.median(seconds))
    assert spread.mean == pytest.approx(1000 * math.fsum(seconds) / len(seconds))
    low, high = 1000 * min(seconds), 1000 * max(seconds)
    assert low <= spread.median <= spread.p99 * (1 + 1e-9)
    assert spread.p99 <= high * (1 + 1e-9)
    below = sum(1000 * s <= spread.p99 * (1 + 1e-9) for s in seconds)
    assert below >= math.floor(0.99 * (len(seconds) - 1)) + 1
    assert Spread.of(seconds[::-1]).p99 == spread.p99


gaps = st.lists(st.floats(0, 10), min_size=1, max_size=30)


@given(st.floats(0, 100), st.floats(0, 10), gaps)
def test_latencies_add_up(sent, wait, steps):
    times = [sent + wait]
    for step in steps:
        times.append(times[-1] + step)
    one = record(sent=sent, times=tuple(times))
    assert one.e2el == pytest.approx(one.ttft + sum(one.itls), abs=1e-6)
    assert one.tpot * len(steps) == pytest.approx(sum(one.itls), abs=1e-6)
    summary = summarise([one], one.e2el + 1)
    assert summary.output_throughput == pytest.approx(len(times) / (one.e2el + 1))
