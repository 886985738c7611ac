"""Month 6's pictures: which program reads which block, a GPU's multiprocessors over time, the roofline."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from minipaged.attention.judge import Case
from minipaged.course.canvas import (
    BLACK,
    BLUE,
    GREY,
    MARKERS,
    ORANGE,
    PALE,
    SERIES,
    SKY,
    VERMILION,
    WHITE,
    WIDTH,
    Canvas,
    Sketch,
    new_axes,
    picture,
)
from minipaged.course.charts import number
from minipaged.course.kernel_trace import Program, Trace
from minipaged.course.words import counted

# How a row of the cache (one token, one KV head) looks: colour, hatch, words.
LOOKS = {
    "now": (ORANGE, "||", "read by this program"),
    "before": (SKY, "", "read by a program before it"),
    "written": (PALE, "", "holds a token, not read yet"),
    "empty": (WHITE, "", "never written (NaN)"),
    "wrong": (VERMILION, "xx", "never written, and read"),
}
CELL, HIGH = 0.3, 0.24  # inches, of one slot and of one KV head in it


@picture
def draw_reads(batch: Case, trace: Trace, program: Program, title: str = "") -> tuple[Canvas, str]:
    """The K cache with the rows that one program loads, and the block tables above; addresses as the referee saw them.

    A slot is a column, a KV head a line in it. The digit says how many programs up to this one have loaded the row.
    """
    num_blocks, block_size, num_kv_heads, head_dim = shape = tuple(batch.k_cache.shape)
    order = trace.programs
    upto = order[: order.index(program) + 1]
    loaded = {p: trace.reads(p, "k_cache", shape) > 0 for p in upto}
    times, now = sum(loaded.values()), loaded[program]
    written = batch.written.numpy()
    tables, lengths = batch.metadata.block_tables, batch.metadata.seq_lens.tolist()

    used = [[int(b) for b in row[: -(-n // block_size)]] for row, n in zip(tables, lengths, strict=True)]
    top = 0.5 if title else 0.2
    pool_top = top + 0.34 * len(used) + 0.3
    wide, tall = 0.5 + CELL * block_size + 0.35, HIGH * num_kv_heads + 0.18
    columns = max(1, min(int((WIDTH - 0.2) / wide), num_blocks))
    rows = -(-num_blocks // columns)
    sketch = Sketch(WIDTH, pool_top + rows * tall + 0.62, title)
    for s, blocks in enumerate(used):
        y = top + 0.34 * s + 0.1
        mine = s == program[0]
        sketch.text(0.15, y, f"{'▶ ' if mine else '   '}table of sequence {s}", weight="bold" if mine else "normal")
        for i, block in enumerate(blocks):
            sketch.number(2.2 + 0.38 * i, y, block, BLACK if mine else GREY)
        sketch.text(2.2 + 0.38 * len(blocks), y, counted(lengths[s], "token"), colour="#444444")
    for block in range(num_blocks):
        x, y = 0.15 + wide * (block // rows), pool_top + tall * (block % rows)
        sketch.number(x + 0.2, y + HIGH * num_kv_heads / 2, block, BLACK if now[block].any() else GREY)
        for slot in range(block_size):
            for head in range(num_kv_heads):
                state = _state(written[block, slot], now[block, slot, head], times[block, slot, head])
                place = (x + 0.42 + CELL * slot, y + HIGH * head)
                _cell(sketch, *place, state, times[block, slot, head])
    for i, (colour, hatch, words) in enumerate(LOOKS[name] for name in _legend(written, now, times)):
        x = 0.15 + 2.1 * i
        _patch(sketch, x, pool_top + rows * tall + 0.12, 0.26, 0.18, colour, hatch)
        sketch.text(x + 0.33, pool_top + rows * tall + 0.21, words, size=8)
    foot = f"each slot: {num_kv_heads} KV heads, one below the other; digit: programs that have loaded it so far"
    sketch.text(0.15, pool_top + rows * tall + 0.46, foot, size=8, colour="#444444")
    return sketch.canvas, "\n".join(
        [title or f"Program {program}", *_words(program, used, now, written, times, head_dim * batch.k_cache.itemsize)]
    )


def _state(written: bool, now: bool, times: int) -> str:
    if not written:
        return "wrong" if times else "empty"
    return "now" if now else "before" if times else "written"


def _legend(written: np.ndarray, now: np.ndarray, times: np.ndarray) -> list[str]:
    held = written[..., None] & np.ones_like(now)
    there = {
        "now": held & now, "before": held & ~now & (times > 0), "written": held & (times == 0),
        "empty": ~held & (times == 0), "wrong": ~held & (times > 0),
    }  # fmt: skip
    return [name for name in LOOKS if there[name].any()][:4]


def _patch(sketch: Sketch, x: float, y: float, wide: float, high: float, colour: str, hatch: str) -> None:
    edge = GREY if colour == WHITE else BLACK
    sketch.axes.add_patch(
        Rectangle((x, y), wide, high, facecolor=colour, hatch=hatch, edgecolor=edge, hatchcolor="#00000066",
                  linewidth=0.8, linestyle="--" if colour == WHITE else "-")
    )  # fmt: skip


def _cell(sketch: Sketch, x: float, y: float, state: str, times: int) -> None:
    colour, hatch, _ = LOOKS[state]
    _patch(sketch, x, y, CELL, HIGH, colour, hatch)
    if times:
        sketch.text(x + CELL / 2, y + HIGH / 2, str(times), size=8, ha="center", halo=bool(hatch))


def _words(program, used, now, written, times, row_bytes: int) -> list[str]:
    lines = [f"Program {program}; the table of sequence {program[0]} says {used[program[0]]}."]
    for block in np.flatnonzero(now.any(axis=(1, 2))):
        for head in np.flatnonzero(now[block].any(axis=0)):
            slots = np.flatnonzero(now[block, :, head]).tolist()
            bad = [slot for slot in slots if not written[block, slot]]
            said = f"block {block}, KV head {head}: loads K of slots {slots}"
            lines.append(said + (f", of which nobody has written {bad}" if bad else ""))
    most = int(times.max())
    lines.append(f"{int(now.sum()) * row_bytes} bytes of K; no row has been loaded more often than {most} × so far.")
    return lines


def schedule(programs: Sequence[int], multiprocessors: int) -> list[list[tuple[int, int, int]]]:
    """Who runs when: for each multiprocessor [(start, length, program)]; programs in order, to the first that is free.

    ``programs``: the length of each, in tiles of context. Simplified: one program a multiprocessor at a time.
    """
    free = [(0, sm) for sm in range(multiprocessors)]
    heapq.heapify(free)
    busy: list[list[tuple[int, int, int]]] = [[] for _ in range(multiprocessors)]
    for i, length in enumerate(programs):
        start, sm = heapq.heappop(free)
        busy[sm].append((start, length, i))
        heapq.heappush(free, (start + length, sm))
    return busy


@picture
def draw_occupancy(
    cases: Mapping[str, Sequence[int]], multiprocessors: int, sequences: int = 1, title: str = ""
) -> tuple[Canvas, str]:
    """Each case's programs laid on the multiprocessors: a line a multiprocessor, time in tiles to the right.

    cases: {name: length of each program in tiles}, equally many of each sequence, which gives the colour. A drawing
    from these numbers, no measurement.
    """
    canvas = Canvas(figsize=(WIDTH, 0.9 + 1.75 * len(cases)), layout="constrained")
    canvas.get_layout_engine().set(w_pad=0.12, h_pad=0.06)
    axes = canvas.subplots(len(cases), 1, sharex=True, squeeze=False)[:, 0]
    lines = [title or "Multiprocessors over time"]
    ends = {}
    for k, (name, lengths) in enumerate(cases.items()):
        busy = schedule(lengths, multiprocessors)
        ends[name] = end = max((spans[-1][0] + spans[-1][1] for spans in busy if spans), default=0)
        for sm, spans in enumerate(busy):
            colours = [SERIES[i * sequences // len(lengths) % 7] for _, _, i in spans]
            axes[k].broken_barh([(a, n) for a, n, _ in spans], (sm, 1), facecolors=colours, linewidth=0)
        working = sum(1 for spans in busy if spans)
        share = sum(lengths) / (multiprocessors * end) if end else 0
        said = (
            f"{name}: {len(lengths)} programs, {working} of {multiprocessors} multiprocessors work; done after "
            f"{counted(end, 'tile')}; busy {share:.0%} of the time"
        )
        axes[k].set_title(said, fontsize=9, fontweight="normal")
        axes[k].set_ylim(multiprocessors, 0)
        axes[k].set_ylabel("multiprocessor", fontsize=8)
        axes[k].grid(visible=False)
        lines.append(said)
    axes[-1].set_xlim(0, 1.02 * max(ends.values()))
    axes[-1].set_xlabel("time, in tiles of context (a drawing, not a measurement)")
    if title:
        canvas.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return canvas, "\n".join(lines)


@picture
def draw_roofline(
    points: Mapping[str, float], tera_flops: float, tera_bytes: float, device: str, title: str = ""
) -> tuple[Canvas, str]:
    """What a device could reach at each arithmetic intensity (operations per byte), and where some kernels stand.

    points: {name: operations per byte}. The roof is the lower of bandwidth × intensity and the peak.
    """
    canvas, axes = new_axes(WIDTH, 3.6)
    ridge = tera_flops / tera_bytes
    low, high = min(0.25, *points.values()) / 1.5, max(4 * ridge, *points.values()) * 1.5
    x = np.geomspace(low, high, 200)
    axes.plot(x, np.minimum(x * tera_bytes, tera_flops), color=BLACK, linewidth=2)
    axes.axvline(ridge, color=GREY, linestyle=":", linewidth=1.2)
    axes.annotate(f"ridge: {ridge:.0f} operations per byte", (ridge, tera_flops), xytext=(-52, -14), fontsize=8,
                  textcoords="offset points", ha="right")  # fmt: skip
    lines = [title or "Roofline", f"{device}: {number(tera_flops)} TFLOP/s, {tera_bytes:g} TB/s, ridge at {ridge:.0f}."]
    for i, (name, intensity) in enumerate(points.items()):
        reach = min(intensity * tera_bytes, tera_flops)
        bound = "memory" if intensity < ridge else "arithmetic"
        axes.plot([intensity], [reach], MARKERS[i % 7], color=SERIES[i % 7], markersize=9, label=name)
        lines.append(
            f"{name}: {intensity:.3g} operations per byte, at most {reach:.3g} TFLOP/s ({reach / tera_flops:.1%} of "
            f"the peak), bound by {bound}"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("arithmetic intensity: operations per byte moved")
    axes.set_ylabel("TFLOP/s at most")
    axes.legend(loc="upper left", fontsize=8)
    axes.set_title(title or device, color=BLACK)
    axes.tick_params(colors=BLACK)
    axes.text(low * 1.1, low * tera_bytes * 2.4, "memory-bound", fontsize=8, color=BLUE, rotation=33)
    return canvas, "\n".join(lines)
