"""The answer cells: solution in solutions/, stub in exercises/.

A cell with the tag `answer-2.1` holds exercise 2.1's answer. In solutions/ the part a learner writes stands between
nbgrader's markers, `### BEGIN SOLUTION` and `### END SOLUTION`; the stub is the same cell with that part replaced:

* inside a function or a method, by `raise NotImplementedError`;
* at the left margin, by `name = ...` for each name that the solution assigns there.
"""

import ast
import hashlib
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.framework import parse_id
from minipaged.course.notebook_tools.notebook import Cell, Notebook, read_notebook, source_of, tags_of
from minipaged.course.paths import course_root, solutions_folder

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
ANSWER, CHECK, PROMPT, SETUP = "answer-", "check-", "exercise-", "setup"


def exercise_of(cell: Cell, kind: str) -> str | None:
    """The exercise id of a cell's `answer-`, `check-` or `exercise-` tag, or None."""
    return next((tag.removeprefix(kind) for tag in tags_of(cell) if tag.startswith(kind)), None)


def cells_by_exercise(notebook: Notebook, kind: str) -> dict[str, Cell]:
    """{exercise id: its cell of this kind}. Raises CourseError when one exercise has two."""
    found: dict[str, Cell] = {}
    for cell in notebook["cells"]:
        exercise_id = exercise_of(cell, kind)
        if exercise_id is not None:
            if exercise_id in found:
                raise CourseError(
                    f"two cells carry the tag {kind}{exercise_id} (a copied cell keeps its tags): delete one of them "
                    "in the notebook, or its tag, and save it"
                )
            found[exercise_id] = cell
    return found


def setup_sources(notebook: Notebook) -> list[str]:
    """The sources of the cells tagged `setup`: all that an answer may rely on besides itself."""
    return [source_of(cell) for cell in notebook["cells"] if SETUP in tags_of(cell)]


def stub_of(solution: str) -> str:
    """The stub of an answer cell's source.

    Raises:
        CourseError: no marked part, an unclosed or nested one, or one at the left margin that assigns no name.
    """
    stub: list[str] = []
    marked: list[str] | None = None
    indent = ""
    for line in solution.splitlines():
        if line.strip() == BEGIN:
            if marked is not None:
                raise CourseError(f"a second {BEGIN} before {END}")
            marked, indent = [], line[: len(line) - len(line.lstrip())]
        elif line.strip() == END:
            if marked is None:
                raise CourseError(f"{END} without {BEGIN}")
            stub += _replacement("\n".join(marked), indent)
            marked = None
        elif marked is not None:
            marked.append(line)
        else:
            stub.append(line)
    if marked is not None:
        raise CourseError(f"{BEGIN} without {END}")
    if stub == solution.splitlines():
        raise CourseError(f"the answer cell has no part between {BEGIN} and {END}")
    return "\n".join(stub)


def _replacement(marked: str, indent: str) -> list[str]:
    if indent:
        return [f"{indent}# Your code here.", f"{indent}raise NotImplementedError"]
    names: list[str] = []
    for statement in ast.parse(marked).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            raise CourseError(f"keep the line of `{statement.name}` outside of the marks, so that the stub has it")
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        names += [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    if not names:
        raise CourseError("a marked part at the left margin must assign the names that the check needs")
    return [f"{name} = ...  # your answer" for name in dict.fromkeys(names)]


def stub_hash(stub: str) -> str:
    return hashlib.sha256(stub.encode()).hexdigest()


def without_marks(solution: str) -> str:
    """The solution as a learner would have written it."""
    return "\n".join(line for line in solution.splitlines() if line.strip() not in (BEGIN, END))


def solution_of(exercise_id: str, root: Path | None = None) -> str:
    """The text of an exercise's solution, from the course's solutions/ folder."""
    month, _ = parse_id(exercise_id)
    path = solutions_folder(root or course_root()) / f"month_{month}.ipynb"
    cell = cells_by_exercise(read_notebook(path), ANSWER).get(exercise_id)
    if cell is None:
        raise CourseError(f"{path.name} has no cell with the tag {ANSWER}{exercise_id}")
    return without_marks(source_of(cell))
