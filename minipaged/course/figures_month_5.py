"""Month 5's pictures: who runs in which step, who tells whom what, and the life of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.patches import Rectangle

from minipaged.course.canvas import (
    BLACK,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    WHITE,
    WIDTH,
    YELLOW,
    Canvas,
    Sketch,
    picture,
)
from minipaged.course.month_5 import Message, Schedule
from minipaged.course.words import counted

ROW, HIGH, LEGEND = 0.32, 0.27, 0.27


class Look(NamedTuple):
    colour: str
    hatch: str
    words: str


KINDS = {
    "waits": Look(WHITE, "", "waits"),
    "idle": Look(WHITE, "||", "no token budget left"),
    "prefill": Look(ORANGE, "//", "prefill"),
    "decode": Look(SKY, "", "decode: one token"),
    "again": Look(VERMILION, "xx", "computes again what it had before"),
    "holds": Look(PALE, "\\\\", "has ended, keeps its seat and its blocks"),
    "preempted": Look(PURPLE, "..", "gives back all its blocks"),
    "swapped": Look(YELLOW, "--", "its blocks are saved outside the pool"),
    "token": Look(SKY, "", "a token of a prompt"),
    "padding": Look(VERMILION, "xx", "padding: computed, and thrown away"),
}


def _cell(sketch: Sketch, x: float, y: float, width: float, height: float, kind: str) -> None:
    look, dashed = KINDS[kind], kind == "waits"
    style = {"facecolor": look.colour, "hatch": look.hatch, "hatchcolor": "#00000077"}
    edge = {"edgecolor": GREY if dashed else BLACK, "linewidth": 0.8, "linestyle": "--" if dashed else "-"}
    sketch.axes.add_patch(Rectangle((x, y), width, height, **style, **edge))


def _legend_places(kinds: Sequence[str]) -> list[tuple[str, float, int]]:
    placed, x, row = [], 0.15, 0
    for kind in kinds:
        needed = 0.5 + 0.066 * len(KINDS[kind].words)
        if x + needed > WIDTH and x > 0.15:
            x, row = 0.15, row + 1
        placed.append((kind, x, row))
        x += needed
    return placed


def _legend(sketch: Sketch, places: Sequence[tuple[str, float, int]], y: float) -> None:
    for kind, x, row in places:
        middle = y + 0.12 + LEGEND * row
        _cell(sketch, x, middle - 0.09, 0.26, 0.18, kind)
        sketch.text(x + 0.33, middle, KINDS[kind].words, size=8)


@picture
def draw_schedules(
    schedules: Sequence[Schedule],
    title: str = "",
    *,
    numbers: bool = False,
    pool: bool = False,
    upto: int | None = None,
    last: bool = True,
) -> tuple[Canvas, str]:
    """Who does what in which step: one panel a schedule, one row an order, one column a step, all on one time axis.

    numbers: write into each cell how many tokens it computes. pool: the blocks in use, below the rows. upto: only the
    first steps (the rest stays empty). last: the step of the last token beside each row.
    """
    steps = max(schedule.num_steps for schedule in schedules)
    kinds = {cell.kind for s in schedules for row in s.rows.values() for cell in row.values()}
    kinds = [kind for kind in KINDS if kind in kinds]
    places = _legend_places(kinds)
    named = any(schedule.name for schedule in schedules)
    heights = [ROW * len(s.rows) + 0.45 * pool + 0.3 * named + 0.38 for s in schedules]
    top = 0.5 if title else 0.15
    sketch = Sketch(WIDTH, top + sum(heights) + LEGEND * (places[-1][2] + 1) + 0.1, title)
    left = 0.35 + 0.085 * max(len(name) for s in schedules for name in (*s.rows, "blocks" * pool))
    wide = (WIDTH - left - (1.0 if last else 0.65 if pool else 0.2)) / steps
    lines, y = [title or "Who runs in which step"], top
    for schedule, height in zip(schedules, heights, strict=True):
        _panel(sketch, schedule, y, left, wide, numbers, pool, upto, last)
        lines += _panel_words(schedule, pool, upto, last)
        y += height
    _legend(sketch, places, y)
    return sketch.canvas, "\n".join(lines)


@picture
def draw_padding(lengths: Mapping[str, int], title: str = "") -> tuple[Canvas, str]:
    """Prompts of these lengths as one rectangle: the shorter ones are filled up to the longest. One row a prompt."""
    longest, top = max(lengths.values()), 0.5 if title else 0.15
    left = 0.35 + 0.085 * max(map(len, lengths))
    wide = min(0.42, (WIDTH - left - 0.15) / longest)
    sketch = Sketch(WIDTH, top + ROW * len(lengths) + LEGEND + 0.1, title)
    lines = [title or "Prompts in one rectangle"]
    for row, (name, length) in enumerate(lengths.items()):
        y = top + ROW * row
        sketch.text(0.15, y + HIGH / 2, name, weight="bold")
        for place in range(longest):
            _cell(sketch, left + place * wide, y, wide, HIGH, "token" if place < length else "padding")
            if place < length and wide > 0.3:
                sketch.text(left + (place + 0.5) * wide, y + HIGH / 2, f"{name}{place}", ha="center", size=8)
        lines.append(f"{name}: {counted(length, 'token')}, {longest - length} padding")
    _legend(sketch, _legend_places(["token", "padding"]), top + ROW * len(lengths))
    return sketch.canvas, "\n".join(lines)


def _panel(sketch, schedule: Schedule, y: float, left: float, wide: float, numbers, pool, upto, last) -> None:
    shown = schedule.num_steps if upto is None else upto
    if schedule.name:
        sketch.text(0.15, y + 0.12, schedule.name, weight="bold")
        y += 0.3
    if last:
        sketch.text(WIDTH - 0.12, y - 0.1, "last token", size=8, ha="right", colour="#444444")
    for i, (name, row) in enumerate(schedule.rows.items()):
        at = y + ROW * i
        sketch.text(0.15, at + HIGH / 2, name, weight="bold")
        for step, cell in row.items():
            if step > shown:
                continue
            x = left + (step - 1) * wide
            _cell(sketch, x, at, wide, HIGH, cell.kind)
            if numbers and cell.num_tokens and wide > 0.16:
                sketch.text(x + wide / 2, at + HIGH / 2, cell.num_tokens, ha="center", size=8, halo=True)
        end = schedule.last_token.get(name, 0)
        if last and end and end <= shown:
            sketch.text(WIDTH - 0.12, at + HIGH / 2, f"step {end}", size=8.5, ha="right")
    bottom = y + ROW * len(schedule.rows)
    if pool:
        _pool_strip(sketch, schedule, bottom + 0.04, left, wide, shown)
        bottom += 0.45
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100) if n * wide >= 0.2)
    for step in range(1, schedule.num_steps + 1):
        if step % every == 0 or every == 1:
            sketch.text(left + (step - 0.5) * wide, bottom + 0.07, step, size=7.5, ha="center", colour="#444444")
    sketch.text(left - 0.08, bottom + 0.07, "step", size=7.5, ha="right", colour="#444444")


def _pool_strip(sketch, schedule: Schedule, y: float, left: float, wide: float, shown: int) -> None:
    """The blocks in use as a row of bars; the frame is the whole pool."""
    sketch.text(0.15, y + 0.17, "blocks", size=8, colour="#444444")
    for step, used in enumerate(schedule.used_blocks[:shown]):
        height = 0.34 * used / schedule.num_blocks
        sketch.axes.add_patch(
            Rectangle(
                (left + step * wide, y + 0.34 - height),
                wide,
                height,
                facecolor="#B8B8B8",
                edgecolor=WHITE,
                linewidth=0.6,
            )
        )
        if wide > 0.2:
            sketch.text(left + (step + 0.5) * wide, y + 0.22, used, size=7.5, ha="center", halo=True)
    frame = Rectangle((left, y), schedule.num_steps * wide, 0.34, facecolor="none", edgecolor=BLACK, linewidth=0.8)
    sketch.axes.add_patch(frame)
    x = left + schedule.num_steps * wide + 0.08
    sketch.text(x, y + 0.17, f"of {schedule.num_blocks}", size=8, colour="#444444")


def _panel_words(schedule: Schedule, pool, upto, last) -> list[str]:
    shown = schedule.num_steps if upto is None else upto
    lines = [f"{schedule.name or 'Steps'}: {counted(schedule.num_steps, 'step')}"]
    for name, row in schedule.rows.items():
        runs: list[list] = []
        for step, cell in sorted(row.items()):
            if step > shown:
                continue
            tokens = cell.num_tokens if cell.kind in ("prefill", "again") else 0
            if runs and runs[-1][2:] == [cell.kind, tokens] and runs[-1][1] == step - 1:
                runs[-1][1] = step
            else:
                runs.append([step, step, cell.kind, tokens])
        said = [_run_words(*run) for run in runs]
        end = f"; last token in step {schedule.last_token[name]}" if last and name in schedule.last_token else ""
        lines.append(f"{name}: " + ("; ".join(said) or "nothing yet") + (end if shown == schedule.num_steps else ""))
    if pool:
        lines.append(f"blocks in use, of {schedule.num_blocks}: " + " ".join(map(str, schedule.used_blocks[:shown])))
    return lines


def _run_words(first: int, final: int, kind: str, tokens: int) -> str:
    steps = f"step {first}" if first == final else f"steps {first}–{final}"
    return f"{steps} {KINDS[kind].words}" + (f" ({tokens} tokens)" if tokens > 1 else "")


PARTS = {"scheduler": "Scheduler", "manager": "KVCacheManager", "worker": "ModelRunner (worker)", "model": "model"}


@picture
def draw_messages(messages: Sequence[Message], title: str = "") -> tuple[Canvas, str]:
    """Who tells whom what, from top to bottom: one lifeline a part, one arrow a message. Answers are dashed."""
    places = dict(zip(PARTS, (3.05, 0.95, 5.65, 7.75), strict=True))
    top, row = (0.55 if title else 0.2), 0.33
    sketch = Sketch(WIDTH, top + 0.5 + row * len(messages) + 0.1, title)
    for part, x in places.items():
        sketch.axes.plot([x, x], [top + 0.2, sketch.height - 0.06], color=GREY, linewidth=0.9, linestyle=":")
        sketch.axes.add_patch(Rectangle((x - 0.8, top - 0.1), 1.6, 0.3, facecolor=PALE, edgecolor=BLACK, zorder=2))
        sketch.text(x, top + 0.05, PARTS[part], ha="center", weight="bold", size=8.5)
    lines = [title or "One step of the engine"]
    for i, message in enumerate(messages):
        y = top + 0.62 + row * i
        start, stop = places[message.sender], places[message.receiver]
        sketch.arrow(start, y, stop, y, dash="--" if message.answer else "-")
        sketch.text((start + stop) / 2, y - 0.11, message.words, ha="center", size=8, halo=True)
        lines.append(f"{i + 1}. {PARTS[message.sender]} → {PARTS[message.receiver]}: {message.words}")
    return sketch.canvas, "\n".join(lines)


@picture
def draw_request_times(
    arrival: float, first_scheduled: float, tokens: Sequence[float], title: str = ""
) -> tuple[Canvas, str]:
    """A request on a time line: queue, prefill, tokens; below it what the metrics measure. Times in seconds."""
    sketch = Sketch(WIDTH, 2.75 if title else 2.45, title)
    y, left = (1.0 if title else 0.7), 0.35
    scale = (WIDTH - 2 * left) / (tokens[-1] - arrival)
    place = lambda time: left + (time - arrival) * scale  # noqa: E731
    for start, stop, kind, words in (
        (arrival, first_scheduled, "waits", "queue"),
        (first_scheduled, tokens[0], "prefill", "prefill"),
    ):
        _cell(sketch, place(start), y, (stop - start) * scale, 0.3, kind)
        sketch.text((place(start) + place(stop)) / 2, y + 0.15, words, ha="center", size=8.5, halo=True)
    for start, stop in pairwise(tokens):
        _cell(sketch, place(start), y, (stop - start) * scale, 0.3, "decode")
        sketch.text((place(start) + place(stop)) / 2, y + 0.15, f"{stop - start:.2g}", ha="center", size=8.5)
    for number, time in enumerate(tokens, 1):
        sketch.arrow(place(time), y - 0.05, place(time), y - 0.24)
        sketch.text(place(time), y - 0.34, f"token {number}", ha="center" if number < len(tokens) else "right", size=8)
    first, final, gaps = tokens[0] - arrival, tokens[-1] - arrival, len(tokens) - 1
    measures = [
        (arrival, tokens[0], f"TTFT {first:.2g} s"),
        (tokens[0], tokens[-1], f"{gaps} gaps (ITL each), {final - first:.2g} s: TPOT {(final - first) / gaps:.3g} s"),
        (arrival, tokens[-1], f"E2EL {final:.2g} s"),
    ]
    for row, (start, stop, words) in zip((0, 0, 1), measures, strict=True):
        at = y + 0.6 + 0.55 * row
        sketch.arrow(place(start), at, place(stop), at)
        sketch.arrow(place(stop), at, place(start), at)
        sketch.text((place(start) + place(stop)) / 2, at + 0.16, words, ha="center", size=8.5)
    times = ", ".join(f"{time:g}" for time in tokens)
    lines = [
        title or "The life of a request",
        f"arrives at {arrival:g} s, runs from {first_scheduled:g} s, tokens at {times} s",
        *(words for _, _, words in measures),
    ]
    return sketch.canvas, "\n".join(lines)
