"""The benchmarks' committed results as a picture. They were measured on another machine, and the picture names it."""

from __future__ import annotations

from minipaged.course.canvas import BLACK, HATCHES, SERIES, WIDTH, Canvas, new_axes, picture
from minipaged.course.errors import CourseError
from minipaged.course.paths import course_root
from minipaged.results import Result, ratios, read


def committed(name: str) -> Result:
    """What `benchmarks/results/<name>.json` holds.

    Raises:
        CourseError: there is no such file; the message lists those there are.
    """
    folder = course_root() / "benchmarks" / "results"
    path = folder / f"{name}.json"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in folder.glob("*.json")))
        raise CourseError(f"no result {name!r} in {folder}; there are: {there or 'none'}")
    return read(path)


@picture
def draw_ratios(name: str, leave_out: str | None = None) -> tuple[Canvas, str]:
    """How many times as fast as the peer, a bar for each row of a committed result; rows with `leave_out` in their name
    are not drawn."""
    result = committed(name)
    found = ratios(result, name)
    rows = [(*row.split(" | "), value) for row, value in found.items() if leave_out is None or leave_out not in row]
    if not rows:
        raise CourseError(f"nothing to draw: every row of {name!r} has {leave_out!r} in its name")
    machine = result["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores"
    canvas, axes = new_axes(WIDTH, 0.9 + 0.27 * len(rows))
    peers = list(dict.fromkeys(peer for _, peer, _ in rows))
    for k, peer in enumerate(peers):
        places = [i for i, row in enumerate(rows) if row[1] == peer]
        bars = axes.barh(
            places,
            [rows[i][2] for i in places],
            0.7,
            color=SERIES[k % 7],
            hatch=HATCHES[k % 7],
            edgecolor=BLACK,
            hatchcolor="#FFFFFF88",
            label=f"beside {peer}" if " beside " not in peer else peer,
        )
        on_white = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.bar_label(bars, [f"{rows[i][2]:.2f}" for i in places], fontsize=8, padding=4, bbox=on_white)
    axes.axvline(1, color=BLACK, linewidth=1.2)
    axes.margins(y=0.02)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("times as fast (the line: equally fast)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8, borderaxespad=0.2)
    axes.set_title(f"{name}, measured on: {where}", pad=23)
    lines = [f"benchmarks/results/{name}.json · {where} · times as fast as"]
    lines += [f"{label}, {peer}: {value:.2f}" for label, peer, value in rows]
    return canvas, "\n".join(lines)
