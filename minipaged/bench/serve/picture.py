"""A run over time as a picture: every request as a line, output tokens a second, KV usage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minipaged.bench.serve.report import percent
from minipaged.course.canvas import BLACK, BLUE, ORANGE, SKY, WIDTH, Canvas, picture

if TYPE_CHECKING:
    from minipaged.bench.serve.run import ServeResult

BINS = 60


@picture
def draw_run(result: ServeResult) -> tuple[Canvas, str]:
    """Top: a line a request, pale until the first token. Middle: tokens a second. Bottom: KV usage, if reported."""
    usage = [(s.time, 100 * s.usage) for s in result.samples if s.usage is not None and s.time >= 0]
    heights = [2.6, 1.5] + ([1.3] if usage else [])
    canvas = Canvas(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained")
    panels = canvas.subplots(len(heights), sharex=True, height_ratios=heights)
    _requests(panels[0], result)
    width, rates = tokens_over_time(result)
    panels[1].stairs(rates, [width * i for i in range(len(rates) + 1)], fill=True, color=SKY, hatch="..", ec=BLUE)
    panels[1].set_ylabel("output\ntokens a second")
    if usage:
        panels[2].plot(*zip(*usage, strict=True), color=BLUE, marker=".", markersize=3)
        panels[2].set_ylim(0, 105)
        panels[2].set_ylabel("KV usage, %")
    panels[-1].set_xlabel("seconds since the start")
    canvas.suptitle(f"Workload {result.plan.name}: {len(result.records)} requests", x=0.02, ha="left", weight="bold")
    return canvas, _words(result, rates)


def tokens_over_time(result: ServeResult) -> tuple[float, list[float]]:
    """(seconds a bin, output tokens a second in each bin). A request's tokens are spread evenly over its chunks."""
    width = max(result.summary.duration, 1e-9) / BINS
    rates = [0.0] * BINS
    for record in result.records:
        share = record.output_tokens / len(record.chunk_times) if record.chunk_times else 0.0
        for time in record.chunk_times:
            rates[min(BINS - 1, int(time / width))] += share / width
    return width, rates


def _requests(axes, result: ServeResult) -> None:
    ordered = sorted(result.records, key=lambda record: (record.sent, record.index))
    thick = min(6.0, 150 / max(1, len(ordered)))
    waiting, running, failed = [], [], []
    for row, record in enumerate(ordered):
        if record.chunk_times:
            waiting.append((row, record.sent, record.chunk_times[0]))
            running.append((row, record.chunk_times[0], record.chunk_times[-1]))
        if not record.ok:
            failed.append((record.chunk_times[-1] if record.chunk_times else record.sent, row))
    for lines, colour, dash, words in (
        (waiting, ORANGE, (0, (1, 0.6)), "sent, no token yet"),
        (running, BLUE, "-", "tokens arriving"),
    ):
        rows, starts, stops = zip(*lines, strict=True) if lines else ((), (), ())
        axes.hlines(rows, starts, stops, colors=colour, linestyles=[dash], linewidths=thick, label=words)
    if failed:
        axes.plot(*zip(*failed, strict=True), "x", color=BLACK, markersize=6, markeredgewidth=1.6, label="failed")
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_ylabel("request")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=8)


def _words(result: ServeResult, rates: list[float]) -> str:
    summary = result.summary
    first = [record.chunk_times[0] for record in result.records if record.chunk_times]
    lines = [
        f"A run over {summary.duration:.3g} s · workload {result.plan.name}",
        f"requests: {summary.completed} completed, {summary.failed} failed",
    ]
    if first:
        lines.append(f"first tokens came between {min(first):.3g} s and {max(first):.3g} s")
    lines.append(f"output tokens a second: {summary.output_throughput:,.0f} on average, {max(rates):,.0f} at the peak")
    if summary.mean_kv_usage is not None and summary.peak_kv_usage is not None:
        lines.append(f"KV usage: {percent(summary.mean_kv_usage)} on average, {percent(summary.peak_kv_usage)} peak")
    assert all(map(math.isfinite, rates))
    return "\n".join(lines)
