"""Notebooks as plain JSON, in one normal form: what is read, changed and written here is byte for byte repeatable.

Normal form: nbformat 4.5, keys sorted, one space of indentation, sources and texts as lists of lines, a stable id a
cell. It is how Jupyter itself writes a file, so that opening and saving changes nothing.
"""

import hashlib
import json
import re
import shutil
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
    """Raises CourseError, naming the file and the way out, for something that is not a notebook of format 4."""
    path, text = Path(path), ""
    exercises = path.parent.name == "exercises"
    try:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        what = _problem(notebook)
    except FileNotFoundError:
        way_out = "; minipaged update-exercises writes a fresh one" if exercises else ""
        raise CourseError(f"there is no notebook {path}{way_out}") from None
    except OSError as error:
        what = error.strerror.lower()
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
    except json.JSONDecodeError as error:
        what = _conflict(text, path.name) or f"line {error.lineno}, column {error.colno}, is not JSON ({error.msg})"
    except RecursionError:
        what = "it nests too deeply"
    if what is None:
        return notebook
    way_out = "; or move it away, and minipaged update-exercises writes a fresh one" if exercises else ""
    raise CourseError(f"{path} is not a notebook that can be read: {what}{way_out}")


def _conflict(text: str, name: str) -> str | None:
    """Words for the marks that git leaves where both sides of a merge changed a file."""
    mark = re.search(r"^<{7} ", text, re.MULTILINE)
    if mark is None:
        return None
    line = text.count("\n", 0, mark.start()) + 1
    return f"line {line} has git's mark of a merge conflict; git checkout --ours {name} takes your side of the merge"


def _problem(notebook: Any) -> str | None:
    """What keeps this from being a notebook of format 4, in words."""
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        return "it has no list of cells"
    if notebook.get("nbformat") != 4:
        return f"its nbformat is {notebook.get('nbformat')!r}; the course uses format 4, in which JupyterLab saves"
    wrong = next((number for number, cell in enumerate(notebook["cells"], start=1) if not _is_cell(cell)), None)
    return wrong and f"cell {wrong} has not the form of a notebook's cell"


def _is_cell(cell: Any) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("metadata"), dict):
        return False
    metadata, source, outputs = cell["metadata"], cell.get("source"), cell.get("outputs", [])
    return (
        cell.get("cell_type") in ("code", "markdown", "raw")
        and (isinstance(source, str) or _all_are(str, source))
        and _all_are(str, metadata.get("tags", []))
        and isinstance(metadata.get("minipaged", {}), dict)
        and _all_are(dict, outputs)
        and all(isinstance(output.get("data", {}), dict) for output in outputs)
    )


def _all_are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def write_notebook(path: Path, notebook: Notebook) -> bool:
    """Write in normal form; says whether the file changed. A full disk cannot leave half a notebook."""
    text = dumps(notebook)
    path = Path(path).resolve()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
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
