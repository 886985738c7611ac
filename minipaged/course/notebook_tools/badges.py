"""A badge a month, as a small SVG that needs no server: `minipaged grade --badges FOLDER`."""

from pathlib import Path
from xml.sax.saxutils import escape

from minipaged.course.notebook_tools.grade import Grade
from minipaged.course.outcome import PASSED

_DONE, _BEGUN, _NOT_YET = "#1b7837", "#b35806", "#5f6368"  # told apart by the words, too
_CHARACTER = 7  # pixels of a character of 11-pixel Verdana, rounded up


def badge(label: str, words: str, colour: str) -> str:
    """Two boxes with text, as an SVG of 20 pixels' height; a screen reader reads both texts."""
    left, right = (_CHARACTER * len(text) + 10 for text in (label, words))
    label, words = escape(label), escape(words)
    size = f'width="{left + right}" height="20"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}: {words}">
<title>{label}: {words}</title>
<rect width="{left}" height="20" fill="#333"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{left / 2:g}" y="14">{label}</text><text x="{left + right / 2:g}" y="14">{words}</text>
</g>
</svg>
"""


def month_badge(month: int, grades: list[Grade]) -> str:
    """`month 2 | 4 of 11`, in a colour for none, some, all."""
    passed = sum(grade.status == PASSED for grade in grades)
    colour = _DONE if grades and passed == len(grades) else _BEGUN if passed else _NOT_YET
    return badge(f"month {month}", f"{passed} of {len(grades)}", colour)


def write_badges(folder: Path, graded: dict[int, list[Grade]]) -> list[Path]:
    """Write month_N.svg for each graded month; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for month, grades in graded.items():
        paths.append(folder / f"month_{month}.svg")
        paths[-1].write_text(month_badge(month, grades), encoding="utf-8")
    return paths


def markdown_table(graded: dict[int, list[Grade]]) -> str:
    """The grades as Markdown: a line a month, and every exercise in a folded part below."""
    lines = ["## Exercises", "", "| month | passed | of |", "|---|---|---|"]
    for month, grades in graded.items():
        lines.append(f"| {month} | {sum(grade.status == PASSED for grade in grades)} | {len(grades)} |")
    lines += ["", "<details><summary>Every exercise</summary>", "", "| exercise | title | outcome | note |"]
    lines.append("|---|---|---|---|")
    for grade in (grade for grades in graded.values() for grade in grades):
        note = " ".join(grade.note.split()).replace("|", "\\|")
        lines.append(f"| {grade.exercise} | {grade.title} | {grade.status} | {note} |")
    return "\n".join([*lines, "", "</details>", ""])
