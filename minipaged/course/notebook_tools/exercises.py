"""exercises/ from solutions/: the same cells, with stubs in place of answers and without outputs."""

from pathlib import Path

from minipaged.course.notebook_tools.answers import ANSWER, exercise_of, stub_hash, stub_of
from minipaged.course.notebook_tools.notebook import METADATA, Notebook, read_notebook, source_of, write_notebook


def exercise_notebook(solution: Notebook) -> Notebook:
    """The exercise notebook of a solutions notebook. Each answer cell carries the sha256 of its stub in its metadata
    (`minipaged.stub_sha256`): so a learner's answer can be told from a stub that has drifted from its source."""
    cells = []
    for cell in solution["cells"]:
        cell = {key: value for key, value in cell.items() if key != "attachments" or value}
        exercise_id = exercise_of(cell, ANSWER)
        if exercise_id is not None:
            stub = stub_of(source_of(cell))
            mark = {"exercise": exercise_id, "stub_sha256": stub_hash(stub)}
            cell |= {"source": stub, "metadata": {**cell["metadata"], "minipaged": mark}}
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
