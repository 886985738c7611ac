"""The pictures of Month 1 that follow time: the replacement table, and contiguous memory row by row."""

from __future__ import annotations

from collections.abc import Sequence

from minipaged.course.canvas import GREY, VERMILION, WIDTH, Canvas, Sketch, picture
from minipaged.course.figures_os import DARK, legend
from minipaged.course.words import counted
from minipaged.os_paging import AllocatorStep, Simulation


@picture
def draw_replacement(run: Simulation, title: str = "", upto: int | None = None) -> tuple[Canvas, str]:
    """The textbook table: a column a reference, a row a frame; below it hit or fault, and who left.

    `upto`: draw only the first steps (the card keeps its size). At most 24 references.
    """
    steps = run.steps
    if not steps or len(steps) > 24:
        raise ValueError(f"{len(steps)} references: a table shows 1 to 24; pass run of a shorter trace")
    shown = steps[: len(steps) if upto is None else upto]
    frames = len(steps[0].frames)
    left, wide = 1.15, min(0.6, (WIDTH - 1.3) / len(steps))
    top = 0.6 if title else 0.25
    high, foot = 0.32, top + 0.42
    bottom = foot + 0.32 * frames
    sketch = Sketch(WIDTH, bottom + 1.0, title)
    sketch.text(0.15, top + 0.12, "page used", weight="bold", size=8.5)
    sketch.text(0.15, bottom + 0.2, "outcome", weight="bold", size=8.5)
    sketch.text(0.15, bottom + 0.42, "leaves", weight="bold", size=8.5)
    for frame in range(frames):
        sketch.text(0.15, foot + high * (frame + 0.5), f"frame {frame}", size=8.5)
    for i, step in enumerate(steps):
        x = left + i * wide
        done = i < len(shown)
        sketch.text(
            x + wide / 2, top + 0.12, str(step.page), ha="center", weight="bold", colour="#000000" if done else GREY
        )
        if not done:
            continue
        for frame, page in enumerate(step.frames):
            state = "free" if page is None else "token"
            if page == step.page:
                state = "shared" if step.hit else "new"
            sketch.slot(
                x + 0.02, foot + high * frame, wide - 0.04, high - 0.03, "" if page is None else str(page), state
            )
        word = "hit" if step.hit else "fault" if not step.refused else "refused"
        sketch.text(x + wide / 2, bottom + 0.2, word, ha="center", size=8, colour="#000000" if step.hit else VERMILION)
        sketch.text(x + wide / 2, bottom + 0.42, "" if step.evicted is None else str(step.evicted), ha="center", size=9)
    legend(sketch, bottom + 0.78, {"shared": "hit", "new": "loaded now", "token": "in memory", "free": "empty"})
    faults = sum(not step.hit for step in shown)
    lines = [title or f"Replacement, policy {run.policy}"]
    for step in shown:
        inside = " ".join("-" if page is None else str(page) for page in step.frames)
        lines.append(f"{step.page}: {step.outcome}; memory {inside}")
    lines.append(f"{counted(faults, 'fault')}, {counted(len(shown) - faults, 'hit')}")
    sketch.text(WIDTH - 0.15, 0.22, counted(faults, "fault"), ha="right", weight="bold", colour=VERMILION)
    return sketch.canvas, "\n".join(lines)


@picture
def draw_allocations(
    steps: Sequence[AllocatorStep], total: int, title: str = "", upto: int | None = None
) -> tuple[Canvas, str]:
    """Memory over time: one row an operation, to scale. Holes are hatched where a request was refused.

    `upto`: draw only the first steps (the card keeps its size). At most 16 operations.
    """
    if not steps or len(steps) > 16:
        raise ValueError(f"{len(steps)} operations: a picture shows 1 to 16; draw a part of them")
    shown = steps[: len(steps) if upto is None else upto]
    top, row, left = (0.5 if title else 0.15), 0.4, 2.0
    scale = (WIDTH - left - 0.3) / total
    bottom = top + row * len(steps)
    sketch = Sketch(WIDTH, bottom + 0.75, title)
    lines = [title or "Memory over time"] + [f"{total} units, one hole"] * (not shown)
    for i, step in enumerate(shown):
        y = top + row * i
        refused = step.operation == "allocate" and step.address is None
        words = f"free at {step.address}" if step.operation == "free" else f"allocate {step.size} → {step.address}"
        words = f"allocate {step.size}: refused" if refused else words
        sketch.text(
            0.15,
            y + 0.16,
            words,
            size=8.5,
            weight="bold" if refused else "normal",
            colour=VERMILION if refused else "#000000",
        )
        for address, granted, requested in step.used:
            now = address == step.address and step.operation == "allocate"
            sketch.box(left + address * scale, y, requested * scale, 0.32, "new" if now else "token")
            if granted > requested:
                sketch.box(left + (address + requested) * scale, y, (granted - requested) * scale, 0.32, "internal")
            _fitting(sketch, left + (address + requested / 2) * scale, y + 0.16, str(requested), requested * scale)
        for address, size in step.holes:
            sketch.box(
                left + address * scale, y, size * scale, 0.32, "external" if refused else "free", GREY, dashed=True
            )
            _fitting(sketch, left + (address + size / 2) * scale, y + 0.16, str(size), size * scale)
        used = ", ".join(f"{a}-{a + g - 1}" + (f" (asked {r})" if g > r else "") for a, g, r in step.used) or "nothing"
        holes = ", ".join(f"{a}-{a + s - 1}" for a, s in step.holes) or "none"
        lines.append(f"{words}. Used: {used}. Holes: {holes}.")
    for mark in (0, total // 4, total // 2, 3 * total // 4, total):
        sketch.text(left + mark * scale, bottom + 0.08, str(mark), size=8, ha="center", colour=DARK)
    states = {"new": "allocated now", "token": "in use", "free": "hole"}
    if any(granted > requested for step in steps for _, granted, requested in step.used):
        states["internal"] = "internal waste"
    if any(step.operation == "allocate" and step.address is None for step in steps):
        states["external"] = "holes when a request is refused"
    legend(sketch, bottom + 0.48, states)
    return sketch.canvas, "\n".join(lines)


def _fitting(sketch: Sketch, x: float, y: float, words: str, width: float) -> None:
    if 0.075 * len(words) + 0.06 < width:
        sketch.text(x, y, words, size=8, ha="center", halo=True)
