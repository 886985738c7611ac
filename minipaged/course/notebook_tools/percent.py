"""Notebooks as plain Python text and back, for authors: the percent format.

::

    # %% [markdown] tags=syllabus-2.01,syllabus-2.03
    # # Month 2: the block table
    #
    # Text in Markdown, each line behind "# ".

    # %% tags=measured
    print("code")
"""

import re
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools.notebook import (
    Notebook,
    new_cell,
    new_notebook,
    read_notebook,
    source_of,
    tags_of,
    write_notebook,
)

_HEAD = re.compile(r"# %%(?P<markdown> \[markdown\])?(?: tags=(?P<tags>[\w.,-]+))?\s*")


def parse_percent(text: str) -> Notebook:
    """A new notebook without outputs. Raises CourseError with the line number of what cannot be read."""
    cells: list[tuple[str, list[str], list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("# %%"):
            head = _HEAD.fullmatch(line)
            if head is None:
                raise CourseError(f"line {number}: write '# %% [markdown] tags=a,b' or '# %% tags=a,b', not {line!r}")
            kind = "markdown" if head["markdown"] else "code"
            cells.append((kind, head["tags"].split(",") if head["tags"] else [], []))
        elif not cells:
            if line.strip() and not line.startswith("#"):
                raise CourseError(f"line {number}: code before the first '# %%' line")
        elif cells[-1][0] == "markdown" and line.strip():
            if not line.startswith("#"):
                raise CourseError(f"line {number}: a line of a markdown cell must start with '# ': {line!r}")
            cells[-1][2].append(line[2:] if line.startswith("# ") else line[1:])
        else:
            cells[-1][2].append(line)
    return new_notebook([new_cell(kind, "\n".join(lines).strip("\n"), tags) for kind, tags, lines in cells])


def to_percent(notebook: Notebook) -> str:
    """The sources and tags of a notebook as percent-format text."""
    parts = []
    for cell in notebook["cells"]:
        markdown = cell["cell_type"] != "code"
        tags = f" tags={','.join(tags_of(cell))}" if tags_of(cell) else ""
        lines = source_of(cell).split("\n")
        body = "\n".join(f"# {line}".rstrip() for line in lines) if markdown else "\n".join(lines)
        parts.append(f"# %%{' [markdown]' if markdown else ''}{tags}\n{body}\n")
    return "\n".join(parts)


def from_py(script: Path, out: Path) -> bool:
    """Write `out` from a percent-format file; cells whose source is unchanged keep their outputs. Says whether the
    file changed."""
    notebook = parse_percent(Path(script).read_text(encoding="utf-8"))
    if Path(out).exists():
        before = read_notebook(out)
        kept = {source_of(cell): cell for cell in before["cells"] if cell["cell_type"] == "code"}
        for cell in notebook["cells"]:
            old = kept.get(source_of(cell)) if cell["cell_type"] == "code" else None
            if old is not None:
                cell.update(outputs=old["outputs"], execution_count=old["execution_count"])
        if "widgets" in before["metadata"]:
            notebook["metadata"]["widgets"] = before["metadata"]["widgets"]
    return write_notebook(out, notebook)


def to_py(path: Path, script: Path) -> None:
    Path(script).write_text(to_percent(read_notebook(path)), encoding="utf-8")
