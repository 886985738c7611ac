"""Is an exercise notebook still the one that its solutions notebook generates? Executes nothing.

Compared are type, source and tags of every cell that is not an answer, in order. Outputs, counts, other metadata and
cells that a learner added are ignored. An answer cell may hold any answer; its metadata says which stub it started
from, and that stub must be the one generated today.
"""

from collections.abc import Iterator
from pathlib import Path

from minipaged.course.notebook_tools.answers import ANSWER, CHECK, cells_by_exercise, exercise_of
from minipaged.course.notebook_tools.exercises import exercise_notebook
from minipaged.course.notebook_tools.notebook import Cell, Notebook, read_notebook, source_of, tags_of


def differences(generated: Notebook, found: Notebook) -> list[str]:
    """What differs, one sentence each; empty when the notebook is in step."""
    return [*given_cell_differences(generated, found), *stub_differences(generated, found)]


def given_cell_differences(generated: Notebook, found: Notebook) -> Iterator[str]:
    """Given cells (prompts, set-up, checks) that are missing, altered or out of order in `found`."""
    for cell, present in given_cells(generated, found):
        if not present:
            yield f"{name_of(cell)} is missing, altered or in another place"


def given_cells(generated: Notebook, found: Notebook) -> Iterator[tuple[Cell, bool]]:
    """Every given cell of `generated`, with whether `found` has it after the given cells before it."""
    rest = [_content(cell) for cell in found["cells"]]
    for cell in generated["cells"]:
        if exercise_of(cell, ANSWER) is not None:
            continue
        try:
            rest = rest[rest.index(_content(cell)) + 1 :]
            yield cell, True
        except ValueError:
            yield cell, False


def _content(cell: Cell) -> tuple[str, str, tuple[str, ...]]:
    return cell["cell_type"], source_of(cell).rstrip(), tuple(sorted(tags_of(cell)))


def name_of(cell: Cell) -> str:
    check = exercise_of(cell, CHECK)
    if check:
        return f"the check of {check}"
    first = source_of(cell).strip().split("\n")[0]
    return f"the given cell that starts with {first[:60]!r}"


def stub_differences(generated: Notebook, found: Notebook) -> Iterator[str]:
    """Answer cells that are missing, or that started from another stub than today's."""
    theirs = cells_by_exercise(found, ANSWER)
    for exercise_id, cell in cells_by_exercise(generated, ANSWER).items():
        today = cell["metadata"]["minipaged"]["stub_sha256"]
        if exercise_id not in theirs:
            yield f"the answer cell of {exercise_id} is missing"
        elif theirs[exercise_id]["metadata"].get("minipaged", {}).get("stub_sha256") != today:
            yield f"the answer cell of {exercise_id} started from another stub than today's (run `make notebooks`)"


def out_of_step(root: Path) -> list[str]:
    """All differences between exercises/ and what solutions/ generates."""
    problems = []
    solutions = {path.name: path for path in sorted((root / "solutions").glob("*.ipynb"))}
    exercises = {path.name: path for path in sorted((root / "exercises").glob("*.ipynb"))}
    for name in sorted(solutions.keys() | exercises.keys()):
        if name not in exercises:
            problems.append(f"exercises/{name} is missing (run `make notebooks`)")
        elif name in solutions:  # a learner may keep notebooks of their own beside them
            generated = exercise_notebook(read_notebook(solutions[name]))
            problems += [f"exercises/{name}: {what}" for what in differences(generated, read_notebook(exercises[name]))]
    return problems
