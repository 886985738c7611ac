"""Notebooks as plain JSON, in one normal form: what is read, changed and written here is byte for byte repeatable.

Normal form: nbformat 4.5, keys sorted, one space of indentation, sources and texts as lists of lines, a stable id a
cell. It is how Jupyter itself writes a file, so that opening and saving changes nothing.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minipaged.course.errors import CourseError

Notebook = dict[str, Any]
Cell = dict[str, Any]
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


def read_notebook(path: Path) -> Notebook:
    """Raises CourseError, naming the file, for something that is not a notebook of format 4."""
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        if notebook["nbformat"] != 4:
            raise ValueError(f"notebook format {notebook['nbformat']}; the course uses format 4")
        for cell in notebook["cells"]:
            cell["cell_type"], cell["source"], cell["metadata"]
    except FileNotFoundError:
        raise CourseError(f"there is no notebook {path}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CourseError(f"{path} is not a notebook that can be read: {error!r}") from error
    return notebook


def write_notebook(path: Path, notebook: Notebook) -> bool:
    """Write in normal form; says whether the file changed."""
    text = dumps(notebook)
    path = Path(path)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


def dumps(notebook: Notebook) -> str:
    """The normal form as text."""
    cells = []
    for cell in notebook["cells"]:
        cell = {**cell, "source": as_lines(source_of(cell))}
        if "outputs" in cell:
            cell["outputs"] = [_split_texts(output) for output in cell["outputs"]]
        cells.append(cell)
    return json.dumps({**notebook, "cells": cells}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _split_texts(output: dict[str, Any]) -> dict[str, Any]:
    """Texts as lists of lines, as Jupyter stores them; pictures stay one text."""
    output = dict(output)
    if isinstance(output.get("text"), str):
        output["text"] = as_lines(output["text"])
    if "data" in output:
        output["data"] = {
            kind: as_lines(value) if isinstance(value, str) and kind.startswith("text/") else value
            for kind, value in output["data"].items()
        }
    return output


def as_lines(text: str | list[str]) -> list[str]:
    return ("".join(text) if isinstance(text, list) else text).splitlines(keepends=True)


def source_of(cell: Cell) -> str:
    return "".join(cell["source"])


def tags_of(cell: Cell) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", []))


def code_cells(notebook: Notebook) -> Iterator[Cell]:
    return (cell for cell in notebook["cells"] if cell["cell_type"] == "code")


def new_cell(cell_type: str, source: str, tags: list[str] | None = None) -> Cell:
    cell: Cell = {"cell_type": cell_type, "source": source, "metadata": {"tags": tags} if tags else {}}
    if cell_type == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def new_notebook(cells: list[Cell]) -> Notebook:
    return with_ids({"cells": cells, "metadata": dict(METADATA), "nbformat": 4, "nbformat_minor": 5})


def with_ids(notebook: Notebook) -> Notebook:
    """Every cell gets an id from its content, so that the same script always makes the same notebook."""
    used: set[str] = set()
    cells = []
    for cell in notebook["cells"]:
        digest = hashlib.sha256(f"{cell['cell_type']}\n{source_of(cell)}".encode()).hexdigest()[:8]
        number, cell_id = 1, digest
        while cell_id in used:
            number += 1
            cell_id = f"{digest}-{number}"
        used.add(cell_id)
        cells.append({**cell, "id": cell_id})
    return {**notebook, "cells": cells}
