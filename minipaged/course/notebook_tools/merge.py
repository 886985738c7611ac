"""A learner's notebook survives an update of the course: today's cells, their answers.

Their answers go into today's answer cells, the cells they added stay behind the cell they stood behind, and an answer
whose stub has changed meanwhile is kept above the new stub, as a comment, to be fitted by hand.
"""

from pathlib import Path

from minipaged.course.notebook_tools.answers import ANSWER, cells_by_exercise, exercise_of, stub_hash
from minipaged.course.notebook_tools.exercises import exercise_notebook
from minipaged.course.notebook_tools.notebook import (
    Cell,
    Notebook,
    read_notebook,
    source_of,
    tags_of,
    write_notebook,
)
from minipaged.course.paths import solutions_folder


def is_answered(cell: Cell) -> bool:
    """True when an answer cell no longer holds the stub it started from."""
    return stub_hash(source_of(cell)) != cell["metadata"].get("minipaged", {}).get("stub_sha256")


def merged(generated: Notebook, found: Notebook) -> Notebook:
    """Today's exercise notebook with the answers and the added cells of `found`."""
    theirs = cells_by_exercise(found, ANSWER)
    added = _added_cells(generated, found)
    cells = list(added.get(None, []))
    for cell in generated["cells"]:
        exercise_id = exercise_of(cell, ANSWER)
        if exercise_id in theirs and is_answered(theirs[exercise_id]):
            cell = _with_answer(cell, theirs[exercise_id])
        cells += [cell, *added.get(_key(cell), [])]
    return {**generated, "cells": cells}


def _with_answer(today: Cell, theirs: Cell) -> Cell:
    answer, stub = source_of(theirs), today["metadata"]["minipaged"]["stub_sha256"]
    if theirs["metadata"].get("minipaged", {}).get("stub_sha256") != stub:
        old = "\n".join(f"# {line}".rstrip() for line in answer.split("\n"))
        answer = f"# The exercise has changed since this answer was written:\n{old}\n\n{source_of(today)}"
    return {**today, "source": answer}


def _added_cells(generated: Notebook, found: Notebook) -> dict[str | None, list[Cell]]:
    """{the given or answer cell they stand behind: cells the learner added}."""
    known = {_key(cell) for cell in generated["cells"]}
    added: dict[str | None, list[Cell]] = {}
    behind = None
    for cell in found["cells"]:
        if _key(cell) in known:
            behind = _key(cell)
        elif "minipaged" not in cell["metadata"]:
            added.setdefault(behind, []).append(cell)
    return added


def _key(cell: Cell) -> str:
    exercise_id = exercise_of(cell, ANSWER)
    return f"{ANSWER}{exercise_id}" if exercise_id else f"{cell['cell_type']}\n{source_of(cell).rstrip()}"


def update_exercises(root: Path) -> list[Path]:
    """Bring exercises/ up to date with solutions/ without losing an answer; returns the files that changed. The old
    notebook is kept beside the new one as month_N.before-update.ipynb."""
    planned = []  # all is read before anything is written: a notebook that cannot be read stops it with nothing done
    for solution in sorted(solutions_folder(root).glob("*.ipynb")):
        path = root / "exercises" / solution.name
        generated = exercise_notebook(read_notebook(solution))
        before = None
        if path.exists():
            before = read_notebook(path)
            same = [(source_of(cell), tags_of(cell)) for cell in before["cells"]]
            generated = merged(generated, before)
            if same == [(source_of(cell), tags_of(cell)) for cell in generated["cells"]]:
                continue
        planned.append((path, before, generated))
    for path, before, generated in planned:
        if before is not None:
            write_notebook(path.with_suffix(".before-update.ipynb"), before)
        write_notebook(path, generated)
    return [path for path, _, _ in planned]


def with_stub(root: Path, path: Path, exercise_id: str) -> tuple[Notebook, str]:
    """(the notebook with an exercise's answer put back to its stub, that answer). Writes nothing."""
    notebook = read_notebook(path)
    today = exercise_notebook(read_notebook(solutions_folder(root) / path.name))
    stub = cells_by_exercise(today, ANSWER)[exercise_id]
    cells = cells_by_exercise(notebook, ANSWER)
    old = source_of(cells[exercise_id]) if exercise_id in cells else ""
    if exercise_id not in cells:
        notebook = merged(today, notebook)
    notebook["cells"] = [
        {**stub, "id": cell.get("id", stub["id"])} if exercise_of(cell, ANSWER) == exercise_id else cell
        for cell in notebook["cells"]
    ]
    return notebook, old


def answered(path: Path) -> set[str]:
    """The exercises of a notebook whose answer cells hold something else than the stub."""
    cells = cells_by_exercise(read_notebook(path), ANSWER)
    return {exercise_id for exercise_id, cell in cells.items() if is_answered(cell)}
