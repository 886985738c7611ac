"""exercises/ from solutions/: the same cells, with stubs in place of answers and without outputs."""

from pathlib import Path

from minipaged.course.notebook_tools.answers import ANSWER, exercise_of, stub_hash, stub_of
from minipaged.course.notebook_tools.notebook import METADATA, Notebook, read_notebook, source_of, write_notebook


def exercise_notebook(solution: Notebook) -> Notebook:
    """The exercise notebook of a solutions notebook. Each answer cell carries the sha256 of its stub in its metadata
    (`minipaged.stub_sha256`), so that a learner's answer can be told from a stub that has drifted from its source; all
    other cells are marked as given, so that they can be told from cells that a learner adds."""
    cells = []
    for cell in solution["cells"]:
        cell = dict(cell)
        exercise_id = exercise_of(cell, ANSWER)
        mark: dict[str, object] = {"given": True}
        if exercise_id is not None:
            cell["source"] = stub_of(source_of(cell))
            mark = {"exercise": exercise_id, "stub_sha256": stub_hash(cell["source"])}
        cell["metadata"] = {**cell["metadata"], "minipaged": mark}
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        cells.append(cell)
    return {**solution, "cells": cells, "metadata": dict(METADATA)}


def write_exercises(root: Path, solutions: list[Path] | None = None) -> list[Path]:
    """Write exercises/ from all solutions, or from these; returns the files that changed."""
    changed = []
    for path in sorted((root / "solutions").glob("*.ipynb")) if solutions is None else solutions:
        target = root / "exercises" / path.name
        if write_notebook(target, exercise_notebook(read_notebook(path))):
            changed.append(target)
    return changed
