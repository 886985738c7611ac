"""What a submitted exercise notebook must not do: change what is given, or replace the check."""

import ast
import re
from collections.abc import Iterator

from minipaged.course.notebook_tools.answers import ANSWER, CHECK, PROMPT, exercise_of
from minipaged.course.notebook_tools.notebook import Cell, Notebook, code_cells, source_of
from minipaged.course.notebook_tools.sync import given_cells, name_of

_GIVEN_NAMES = {"check", "hint"}
_MACHINERY = re.compile(r"MINIPAGED_OUTCOMES|sys\s*\.\s*modules|_remember|CheckFailed|grade_answer")


def tampering(generated: Notebook, found: Notebook) -> Iterator[tuple[str | None, str]]:
    """(exercise id, or None for the whole notebook; what was done). A changed prompt or check concerns its exercise,
    anything else all of them."""
    for cell, present in given_cells(generated, found):
        if not present:
            exercise_id = exercise_of(cell, CHECK) or exercise_of(cell, PROMPT)
            yield exercise_id, f"{name_of(cell)} is missing, altered or in another place"
    given = {source_of(cell).rstrip() for cell in generated["cells"] if exercise_of(cell, ANSWER) is None}
    for cell in code_cells(found):
        if source_of(cell).rstrip() not in given:
            for what in replaces_the_check(cell):
                yield None, f"a cell {what}"


def replaces_the_check(cell: Cell) -> Iterator[str]:
    """What a learner's cell does to the names and modules that the checks stand on."""
    machinery = _MACHINERY.search(source_of(cell))
    if machinery:
        yield f"reaches into the course's own parts ({machinery[0]})"
    try:
        tree = ast.parse(re.sub(r"^[%!].*$", "", source_of(cell), flags=re.MULTILINE))
    except SyntaxError:
        return  # it will fail to run
    ours = set()
    for node in ast.walk(tree):
        for name in _bound_names(node):
            if name in _GIVEN_NAMES:
                yield f"gives `{name}` another meaning"
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            ours |= {
                (alias.asname or alias.name).split(".")[0]
                for alias in node.names
                if alias.name.split(".")[0] == "minipaged" or module.split(".")[0] == "minipaged"
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and _root(node) in ours:
            yield f"changes minipaged itself (`{ast.unparse(node)}`)"
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called in ("setattr", "delattr") and node.args and _root(node.args[0]) in ours:
            yield f"changes minipaged itself (`{ast.unparse(node)}`)"


def _bound_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "minipaged.course":
        yield from (alias.asname or alias.name for alias in node.names)


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
