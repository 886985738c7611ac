"""Month 4's pictures: the map of holes, the price of a block size, and the explorer's card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minipaged.course.canvas import (
    BLACK,
    DASHES,
    MARKERS,
    SERIES,
    STATES,
    WIDTH,
    Canvas,
    Sketch,
    legend_height,
    new_axes,
    picture,
)
from minipaged.course.charts import number
from minipaged.fragmentation import Parts, Sample, holes

STATE_OF = {
    "tokens": "token",
    "duplicate": "duplicate",
    "reservation": "reserved",
    "internal": "internal",
    "external": "external",
    "free": "free",
}
LEFT, ROW, HIGH = 0.95, 0.36, 0.28


def row_spans(sample: Sample) -> list[tuple[int, int, str]]:
    """The whole memory from slot 0 on as (first slot, slots, state of the picture kit); equal neighbours are joined.

    A hole is external waste while somebody waits for memory, else it is free.
    """
    hole = "external" if sample.refused else "free"
    spans = [(start, slots, STATE_OF[part]) for start, slots, part in sample.spans]
    joined: list[tuple[int, int, str]] = []
    for start, slots, state in sorted(spans + [(*found, hole) for found in holes(sample)]):
        if joined and joined[-1][2] == state:
            start, slots = joined[-1][0], joined.pop()[1] + slots
        joined.append((start, slots, state))
    return joined


def _words(sample: Sample) -> str:
    found = holes(sample)
    largest = max((slots for _, slots in found), default=0)
    batch = f"{sample.running} request" + "s" * (sample.running != 1)
    where = f"{len(found)} hole" + "s" * (len(found) != 1)
    words = f"{batch}; {sum(n for _, n in found):,} slots in {where}" + f", largest {largest:,}" * bool(found)
    return words + (f"; the next request asks for {sample.refused:,}" if sample.refused else "")


def _put_map(sketch: Sketch, samples: Sequence[Sample], top: float, right: float) -> set[str]:
    """Rows of memory to scale, one a sample; returns the states that occur."""
    total, states = samples[0].parts.total, set()
    scale = (sketch.width - LEFT - right) / total
    for i, sample in enumerate(samples):
        y = top + ROW * i
        sketch.text(0.15, y + HIGH / 2, f"step {sample.step}", size=8.5)
        stretches: dict[str, list[tuple[float, float]]] = {}
        for start, slots, state in row_spans(sample):
            stretches.setdefault(state, []).append((LEFT + start * scale, slots * scale))
        for state, where in stretches.items():  # one artist for all of them: hundreds of hatched boxes are slow
            look = STATES[state]
            style = {"facecolor": look.colour, "edgecolor": BLACK, "hatch": look.hatch, "hatchcolor": "#00000066"}
            sketch.axes.broken_barh(where, (y, HIGH), linewidth=0.3, **style)
        states |= set(stretches)
        if right > 1:
            largest = max((slots for _, slots in holes(sample)), default=0)
            asked = f"{sample.refused:,}" if sample.refused else "–"
            for x, value in ((1.75, f"{sample.unowned:,}"), (1.0, f"{largest:,}"), (0.2, asked)):
                sketch.text(sketch.width - x, y + HIGH / 2, value, size=8.5, ha="right")
    foot = top + ROW * len(samples) + 0.05
    for mark in (0, total // 2, total):
        sketch.text(LEFT + mark * scale, foot, f"{mark:,}", size=8, ha="center", colour="#444444")
    return states


@picture
def draw_hole_map(samples: Sequence[Sample], title: str = "") -> tuple[Canvas, str]:
    """Memory over time: every row is the whole pool at one step, from the first slot to the last.

    Beside each row: the slots without an owner, the largest hole, and what the request in front of the queue asks for.
    """
    if not samples:
        raise ValueError("no samples given: hand a Recorder to simulate(..., watch=…) first")
    if not any(sample.spans for sample in samples):
        raise ValueError("the samples hold no layout: record them with Recorder(system, layout=True)")
    used = {state for sample in samples for _, _, state in row_spans(sample)}
    top = 0.85
    bottom = top + ROW * len(samples) + 0.25
    sketch = Sketch(WIDTH, bottom + legend_height(used, WIDTH) + 0.05, title)
    for x, words in ((1.75, "no owner"), (1.0, "largest"), (0.2, "asked")):
        sketch.text(WIDTH - x, 0.68, words, size=8, ha="right", colour="#444444")
    _put_map(sketch, samples, top, right=2.6)
    sketch.legend(bottom + 0.1, used)
    lines = [title or "Memory over time", *(f"step {sample.step}: {_words(sample)}" for sample in samples)]
    return sketch.canvas, "\n".join(lines)


@picture
def draw_stacked_lines(
    x: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[float]]], title: str = "", xlabel: str = ""
) -> tuple[Canvas, str]:
    """Panels on top of each other with one x axis (logarithmic): {label of the y axis: {series: values}}."""
    canvas, first = new_axes(WIDTH, 1.55 * len(panels) + 0.6)
    first.remove()
    all_axes = canvas.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    lines, looks = [title or "Lines", f"x: {xlabel}"], 0
    for axes, (ylabel, series) in zip(all_axes, panels.items(), strict=True):
        for name, ys in series.items():
            look = {"color": SERIES[looks], "linestyle": DASHES[looks], "marker": MARKERS[looks]}
            axes.plot(x, ys, markersize=4, label=name, **look)
            looks += 1
            points = ", ".join(f"({number(a)}, {number(b)})" for a, b in zip(x, ys, strict=True))
            lines.append(f"{ylabel}; {name}: {points}")
        axes.set_ylabel(ylabel)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, handlelength=2.6)
    all_axes[-1].set_xscale("log")
    all_axes[-1].set_xticks(list(x), [number(v) for v in x])
    all_axes[-1].minorticks_off()
    all_axes[-1].set_xlabel(xlabel)
    all_axes[0].set_title(title)
    return canvas, "\n".join(lines)


@picture
def draw_card(
    samples: Sequence[Sample], shares: Mapping[str, float], running: Sequence[tuple[int, int]], mean: float, title: str
) -> tuple[Canvas, str]:
    """The explorer's card: one bar of mean shares, the map of holes, and the number of requests in the batch.

    running: (step, requests) at every event; mean: their time average while somebody waits.
    """
    used = {"token", "reserved", "internal", "external", "free"}
    used |= {"duplicate"} if shares["duplicate"] else set()
    top, map_top = 0.5, 1.35
    plot_top = map_top + ROW * len(samples) + 0.35
    sketch = Sketch(WIDTH, plot_top + 1.5 + legend_height(used, WIDTH) + 0.2, title)
    x, wide = LEFT, WIDTH - LEFT - 0.3
    sketch.text(0.15, top + 0.2, "mean", size=8.5)
    for part in Parts._fields:
        length = shares[part] / 100 * wide
        if length:
            sketch.box(x, top, length, 0.4, STATE_OF[part])
            if length > 0.5:
                sketch.text(x + length / 2, top + 0.2, f"{shares[part]:.1f} %", ha="center", halo=True, size=8.5)
        x += length
    sketch.text(0.15, map_top - 0.2, "The whole pool, slot by slot, over time", size=8.5, colour="#444444")
    _put_map(sketch, samples, map_top, right=0.3)
    axes = sketch.canvas.add_axes(
        (LEFT / WIDTH, 1 - (plot_top + 1.25) / sketch.height, wide / WIDTH, 1.05 / sketch.height)
    )
    axes.step([s for s, _ in running], [n for _, n in running], where="post", color=SERIES[0], linewidth=1)
    axes.axhline(mean, color=BLACK, linestyle="--", linewidth=1, label=f"mean {mean:.1f}")
    axes.legend(fontsize=8, loc="upper right")
    axes.set_ylim(0, max(n for _, n in running) * 1.35)
    axes.set_ylabel("requests")
    axes.set_xlabel("step", labelpad=1)
    sketch.legend(plot_top + 1.78, used)
    parts = ", ".join(f"{STATES[STATE_OF[part]].words} {shares[part]:.1f} %" for part in Parts._fields if shares[part])
    most = max(n for _, n in running)
    lines = [title, f"Mean shares: {parts}.", f"Requests in the batch: mean {mean:.1f}, most {most}."]
    return sketch.canvas, "\n".join([*lines, *(f"step {sample.step}: {_words(sample)}" for sample in samples)])
