"""Charts in the course's look: grouped and stacked bars, lines, Gantt charts, and a plain table.

As with the block pictures, each returns a `Figure` whose text gives the numbers that the picture shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import FuncFormatter

from minipaged.course.canvas import (
    BLACK,
    DASHES,
    HATCHES,
    MARKERS,
    SERIES,
    STATES,
    WIDTH,
    Canvas,
    new_axes,
    picture,
)


def number(value: float) -> str:
    """A number as charts print it: three significant digits below 1000, whole and with commas above."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


class Table:
    """A small table that a cell shows as Markdown and a plain page as text. Cells are shown with `str`."""

    def __init__(self, headers: Sequence[str], rows: Sequence[Sequence[object]]):
        for row in rows:
            if len(row) != len(headers):
                raise ValueError(f"a row has {len(row)} cells, the header {len(headers)}: {row!r}")
        self.headers, self.rows = [str(h) for h in headers], [[str(cell) for cell in row] for row in rows]

    def __repr__(self) -> str:
        lines = [self.headers, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headers))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _repr_markdown_(self) -> str:
        lines = [self.headers, ["---"] * len(self.headers), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """(colour, hatch, words) of each series: a slot state keeps its look, others take the palette."""
    looks = {}
    for i, name in enumerate(names):
        state = STATES.get(name)
        looks[name] = (
            (state.colour, state.hatch, state.words)
            if state
            else (SERIES[i % len(SERIES)], HATCHES[i % len(HATCHES)], name)
        )
    return looks


def _head(axes, title: str, series: Sequence[str]) -> None:
    """Title, and below it a legend above the axes, where it never covers data."""
    columns = max(1, min(len(series), 4, int(130 / (8 + max(map(len, series), default=0)))))
    rows = -(-len(series) // columns)
    if series:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=columns,
            fontsize=8,
            handlelength=2.6,
            borderaxespad=0.2,
        )
    axes.set_title(title, pad=8 + 15 * rows)


@picture
def draw_bars(
    data: Mapping[str, Mapping[str, float]],
    title: str = "",
    ylabel: str = "",
    stacked: bool = False,
    height: float = 3.2,
    log: bool = False,
) -> tuple[Canvas, str]:
    """Bars: {category on the x axis: {series: value}}. A series named after a slot state looks like it.

    stacked: one bar a category, the series on top of each other; else side by side. log: logarithmic y axis.
    """
    names = list(dict.fromkeys(name for values in data.values() for name in values))
    if not names:
        raise ValueError("nothing to draw: no category has a value")
    canvas, axes = new_axes(WIDTH, height)
    looks = _looks(names)
    width = 0.6 if stacked else 0.8 / len(names)
    base = [0.0] * len(data)
    for k, name in enumerate(names):
        colour, hatch, words = looks[name]
        values = [float(row.get(name, 0)) for row in data.values()]
        x = [i if stacked else i + (k - (len(names) - 1) / 2) * width for i in range(len(data))]
        bars = axes.bar(
            x,
            values,
            width * 0.94,
            bottom=base if stacked else None,
            color=colour,
            hatch=hatch,
            edgecolor=BLACK,
            hatchcolor="#00000088",
            linewidth=0.8,
            label=words,
        )
        if stacked:
            base = [b + v for b, v in zip(base, values, strict=True)]
            shown = [number(v) if v > 0.05 * max(sum(r.values()) for r in data.values()) else "" for v in values]
            boxed = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1}
            axes.bar_label(bars, shown, label_type="center", fontsize=8, bbox=None if not any(shown) else boxed)
        elif len(names) * len(data) <= 24:
            axes.bar_label(bars, [number(v) for v in values], fontsize=8, padding=1)
    axes.set_xticks(range(len(data)), list(data))
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(ylabel)
    if log:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    _head(axes, title, [looks[name][2] for name in names] if len(names) > 1 or names[0] in STATES else [])
    lines = [" · ".join(part for part in (title or "Bars", ylabel) if part)]
    for category, values in data.items():
        lines.append(f"{category}: " + ", ".join(f"{looks[n][2]} {number(v)}" for n, v in values.items()))
    return canvas, "\n".join(lines)


@picture
def draw_lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    log_x: bool = False,
    log_y: bool = False,
    height: float = 3.2,
    marks: Mapping[str, float] | None = None,
) -> tuple[Canvas, str]:
    """Lines over `x`, each with its own colour, dashes and marker.

    marks: {words: x} draws a vertical line there. log_x: logarithmic, with the given x as ticks.
    """
    for name, ys in series.items():
        if len(ys) != len(x):
            raise ValueError(f"series {name!r} has {len(ys)} values, x has {len(x)}")
    canvas, axes = new_axes(WIDTH, height)
    for i, (name, ys) in enumerate(series.items()):
        axes.plot(
            x,
            ys,
            color=SERIES[i % 7],
            linestyle=DASHES[i % 7],
            linewidth=1.8,
            label=name,
            marker=MARKERS[i % 7] if len(x) <= 40 else None,
            markersize=4.5,
        )
    for words, where in (marks or {}).items():
        axes.axvline(where, color=BLACK, linewidth=1, linestyle=":")
        axes.annotate(
            words,
            (where, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -8),
            fontsize=8,
            textcoords="offset points",
        )
    if log_x:
        axes.set_xscale("log")
        axes.set_xticks(list(x), [number(v) for v in x])
        axes.minorticks_off()
    if log_y:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    _head(axes, title, list(series) if len(series) > 1 else [])
    lines = [title or "Lines", f"x: {xlabel}; y: {ylabel}"]
    for name, ys in series.items():
        points = list(zip(x, ys, strict=True))
        if len(points) > 12:  # enough to follow the line: both ends and the extremes
            keep = {
                0,
                len(points) - 1,
                min(range(len(ys)), key=ys.__getitem__),
                max(range(len(ys)), key=ys.__getitem__),
            }
            points = [points[i] for i in sorted(keep)]
        lines.append(f"{name}: " + ", ".join(f"({number(a)}, {number(b)})" for a, b in points))
    lines += [f"Marked: {words} at x = {number(where)}" for words, where in (marks or {}).items()]
    return canvas, "\n".join(lines)


@picture
def draw_gantt(
    rows: Mapping[str, Sequence[tuple]], title: str = "", xlabel: str = "step", height: float | None = None
) -> tuple[Canvas, str]:
    """Who does what when: {"Request A": [(start, length, kind), (start, length, kind, words), …]}.

    Kinds take colour and hatching in the order in which they appear; words (optional) stand inside the bar.
    """
    kinds = list(dict.fromkeys(span[2] for spans in rows.values() for span in spans))
    if not kinds:
        raise ValueError("nothing to draw: no row has a span")
    canvas, axes = new_axes(WIDTH, height or 1.25 + 0.34 * len(rows))
    looks, named = _looks(kinds), set()
    lines = [title or "Gantt chart"]
    for i, (name, spans) in enumerate(rows.items()):
        said = []
        for start, length, kind, *words in spans:
            colour, hatch, meaning = looks[kind]
            axes.barh(
                i,
                length,
                0.7,
                left=start,
                color=colour,
                hatch=hatch,
                edgecolor=BLACK,
                linewidth=0.8,
                hatchcolor="#00000088",
                label=None if kind in named else meaning,
            )
            named.add(kind)
            if words:
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
                axes.text(start + length / 2, i, words[0], ha="center", va="center", fontsize=8, bbox=box)
            said.append(f"{number(start)}–{number(start + length)} {meaning}" + (f" ({words[0]})" if words else ""))
        lines.append(f"{name}: " + "; ".join(said))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(xlabel)
    _head(axes, title, [looks[kind][2] for kind in kinds])
    return canvas, "\n".join(lines)
