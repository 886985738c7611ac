"""A run as a table, and several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from minipaged.bench.serve.metrics import Spread, Summary

if TYPE_CHECKING:
    from minipaged.bench.serve.run import ServeResult
    from minipaged.course.charts import Table

NOT_REPORTED = "not reported"
LATENCIES = ("TTFT", "TPOT", "ITL", "E2EL")
ERRORS_SHOWN = 5
BUSY = 0.7  # of the time: above, waiting chunks may be read late


def percent(value: float | None) -> str:
    return NOT_REPORTED if value is None else f"{100 * value:.1f} %"


def count(value: int | None) -> str:
    return NOT_REPORTED if value is None else f"{value:,}"


def milliseconds(value: float | None) -> str:
    return "—" if value is None else f"{value:,.2f}"


def looks(summary: Summary) -> str:
    return "1 sample" if summary.usage_samples == 1 else f"{summary.usage_samples} samples"


def table(result: ServeResult) -> str:
    """What was sent, throughput, latencies, what the server says of its cache, and every kind of failure."""
    summary, server = result.summary, result.server
    eos = "on, so outputs are as long as asked" if server.ignore_eos else "off: an output may end early"
    lines = [
        f"{server.model} at {server.base_url}",
        *result.plan.lines(),
        f"temperature 0; ignore_eos is {eos}",
        *(f"note: {note}" for note in server.notes),
        "",
        f"{'completed / failed':<28}{summary.completed:>12,} / {summary.failed:,}   in {summary.duration:,.2f} s",
        f"{'requests a second':<28}{summary.request_throughput:>12,.2f}",
        f"{'input tokens a second':<28}{summary.input_throughput:>12,.1f}",
        f"{'output tokens a second':<28}{summary.output_throughput:>12,.1f}",
    ]
    if summary.goodput is not None:
        lines.append(f"{'goodput, requests a second':<28}{summary.goodput:>12,.2f}   {result.slo}")
    lines += ["", f"{'milliseconds':<28}" + "".join(f"{name:>12}" for name in ("mean", "median", "p99"))]
    for name in LATENCIES:
        spread: Spread | None = getattr(summary, name.lower())
        values = (spread.mean, spread.median, spread.p99) if spread else (None, None, None)
        lines.append(f"{name:<28}" + "".join(f"{milliseconds(value):>12}" for value in values))
    usage = NOT_REPORTED
    if summary.mean_kv_usage is not None:
        usage = f"{percent(summary.mean_kv_usage)} mean, {percent(summary.peak_kv_usage)} peak ({looks(summary)})"
    lines += [
        "",
        f"{'KV usage':<28}{usage}",
        f"{'prefix hit rate':<28}{percent(summary.prefix_hit_rate)}",
        f"{'prefill tokens computed':<28}{count(summary.prefill_tokens)} (prompts: {summary.input_tokens:,})",
        f"{'preemptions':<28}{count(summary.preemptions)}",
        *remarks(summary),
    ]
    return "\n".join(lines)


def remarks(summary: Summary) -> list[str]:
    """What a reader must know before trusting the figures."""
    lines = []
    if summary.short:
        lines.append(f"{summary.short} outputs are shorter than asked for")
    if summary.counted_by_chunks:
        lines.append(f"{summary.counted_by_chunks} requests came without usage: their tokens are counted by chunks")
    if summary.refused_then_taken:
        lines.append(f"{summary.refused_then_taken} requests were refused at first; their waits are in the TTFT")
    if summary.client_busy is not None and summary.client_busy > BUSY:
        lines.append(
            f"the client computed {percent(summary.client_busy)} of the time: it may be what limits the figures"
        )
    if summary.errors:
        lines.append(f"{summary.failed} requests failed and are in no figure above but the first:")
        ordered = sorted(summary.errors.items(), key=lambda item: -item[1])
        lines += [f"  {times} × {words}" for words, times in ordered[:ERRORS_SHOWN]]
        if more := ordered[ERRORS_SHOWN:]:
            lines.append(f"  and {sum(times for _, times in more)} with {len(more)} other messages (see the JSON)")
    return [""] * bool(lines) + lines


ROWS: dict[str, Callable[[Summary], str]] = {
    "completed / failed": lambda s: f"{s.completed:,} / {s.failed:,}",
    "seconds": lambda s: f"{s.duration:.2f}",
    "requests a second": lambda s: f"{s.request_throughput:,.2f}",
    "output tokens a second": lambda s: f"{s.output_throughput:,.1f}",
    "TTFT, median ms": lambda s: milliseconds(s.ttft and s.ttft.median),
    "TTFT, p99 ms": lambda s: milliseconds(s.ttft and s.ttft.p99),
    "TPOT, median ms": lambda s: milliseconds(s.tpot and s.tpot.median),
    "ITL, p99 ms": lambda s: milliseconds(s.itl and s.itl.p99),
    "E2EL, median ms": lambda s: milliseconds(s.e2el and s.e2el.median),
    "KV usage, mean": lambda s: percent(s.mean_kv_usage),
    "KV usage, peak": lambda s: percent(s.peak_kv_usage),
    "prefix hit rate": lambda s: percent(s.prefix_hit_rate),
    "prefill tokens computed": lambda s: count(s.prefill_tokens),
    "preemptions": lambda s: count(s.preemptions),
}


def comparison(results: Mapping[str, ServeResult]) -> Table:
    """Several runs side by side: {name: result}. A table in a notebook, aligned text elsewhere."""
    from minipaged.course.charts import Table

    rows = [[name, *(cell(result.summary) for result in results.values())] for name, cell in ROWS.items()]
    return Table(["", *results], rows)
