"""Month 5's dashboard: an engine over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minipaged.course.canvas import SERIES, WIDTH, Canvas, new_axes, picture

if TYPE_CHECKING:
    from minipaged.scraping import MetricsSample


@picture
def draw_dashboard(
    samples: Sequence[MetricsSample], title: str = "", xlabel: str = "seconds", height: float = 4.6
) -> tuple[Canvas, str]:
    """An engine over time: the cache's usage, requests that run and wait, and the share of prompt tokens that hit.

    samples: looks at an engine or at /metrics, in order. What a server does not report stays empty.
    """
    if not samples:
        raise ValueError("no samples given: look at an engine first")
    canvas, first = new_axes(WIDTH, height)
    first.remove()
    usage, queue, hits = canvas.subplots(3, 1, sharex=True)
    times, lines = [sample.time for sample in samples], [title or "An engine over time"]
    rates = [100 * s.prefix_hits / s.prefix_queries if s.prefix_queries else None for s in samples]
    panels = (
        (usage, "KV usage, %", {"KV usage": [None if s.usage is None else 100 * s.usage for s in samples]}),
        (queue, "requests", {"running": [s.running for s in samples], "waiting": [s.waiting for s in samples]}),
        (hits, "prefix hits, %", {"prefix hits since the start": rates}),
    )
    for place, (axes, ylabel, series) in enumerate(panels):
        for name, values in series.items():
            colour, dash = (SERIES[3], ":") if name == "waiting" else (SERIES[place], "-")
            known = [(time, value) for time, value in zip(times, values, strict=True) if value is not None]
            if known:
                point = "o" if len(known) == 1 else None
                axes.plot(*zip(*known, strict=True), color=colour, linestyle=dash, marker=point, label=name)
            lines.append(f"{name}: " + _course(known))
        axes.set_ylabel(ylabel)
        axes.set_ylim(0, 105 if "%" in ylabel else max(1, axes.get_ylim()[1]))
        if axes.lines:
            axes.legend(fontsize=8, loc="lower right" if axes is hits else "upper left")
    if len(samples) == 1:
        usage.set_xlim(times[0] - 0.05, times[0] + 1)
    usage.set_title(title)
    hits.set_xlabel(xlabel)
    lines.append(f"preemptions: {(samples[-1].preemptions or 0) - (samples[0].preemptions or 0):g}")
    return canvas, "\n".join(lines)


def _course(known: Sequence[tuple[float, float]]) -> str:
    """A line in words: where it begins, its highest value and when, where it ends."""
    if not known:
        return "not reported"
    when, most = max(known, key=lambda point: point[1])
    return f"begins at {known[0][1]:.3g}, highest {most:.3g} at {round(when, 1):g}, ends at {known[-1][1]:.3g}"
