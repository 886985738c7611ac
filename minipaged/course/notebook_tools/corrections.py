"""CORRECTIONS.md: every popular claim that the lessons correct, collected from their cells.

A cell with the tag `correction` is Markdown with two paragraphs among its text, one or more times::

    **Popular claim:** The block table maps logical blocks to physical pages.

    **What is true:** A physical block is a frame; the page is the logical block.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools.notebook import Notebook, read_notebook, source_of, tags_of

TAG = "correction"
_FORM = re.compile(r"\*\*Popular claim:\*\*\s*(.+?)\n\s*\n\*\*What is true:\*\*\s*(.+?)(?=\n\s*\n|\Z)", re.DOTALL)
_HEADER = """# Corrections

What popular texts about PagedAttention get wrong, or what has changed since they were written, and the cell that shows
it. Written by `make notebooks` from the cells tagged `correction`; do not edit it by hand.
"""


@dataclass(frozen=True)
class Correction:
    claim: str
    truth: str
    notebook: str
    heading: str
    cell_id: str


def corrections_in(name: str, notebook: Notebook) -> Iterator[Correction]:
    """A notebook's corrections, in order. Raises CourseError for a tagged cell without the two paragraphs."""
    heading = name
    for cell in notebook["cells"]:
        text = source_of(cell)
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            heading = headings[0] if headings else heading
        if TAG not in tags_of(cell):
            continue
        pairs = _FORM.findall(text)
        if not pairs:
            raise CourseError(
                f"{name}: the cell tagged `correction` under '{heading}' needs a paragraph '**Popular claim:** …' and "
                "after it one '**What is true:** …'"
            )
        for claim, truth in pairs:
            yield Correction(" ".join(claim.split()), " ".join(truth.split()), name, heading, cell.get("id", ""))


def corrections_text(root: Path) -> str:
    parts = [_HEADER]
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        found = list(corrections_in(path.name, read_notebook(path)))
        if found:
            title = path.stem.replace("_", " ").capitalize()
            rows = [
                f"| {_cell(item.claim)} | {_cell(item.truth)} | "
                f"[{_cell(item.heading)}]({item.notebook}#cell-id={item.cell_id}) |"
                for item in found
            ]
            table = "\n".join(["| popular claim | what is true | shown in |", "|---|---|---|", *rows])
            parts.append(f"\n## {title}\n\n{table}\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_corrections(root: Path) -> bool:
    """Write notebooks/CORRECTIONS.md; says whether it changed."""
    path = root / "notebooks" / "CORRECTIONS.md"
    text = corrections_text(root)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True
