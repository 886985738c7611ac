"""What a lesson and a solutions notebook must look like. Each rule returns sentences that say what to change."""

import ast
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from minipaged.course.notebook_tools.answers import ANSWER, CHECK, PROMPT, SETUP
from minipaged.course.notebook_tools.corrections import TAG as CORRECTION
from minipaged.course.notebook_tools.execute import MEASURED
from minipaged.course.notebook_tools.normal_form import normal_form
from minipaged.course.notebook_tools.notebook import (
    Cell,
    Notebook,
    code_cells,
    dumps,
    read_notebook,
    source_of,
    tags_of,
)
from minipaged.course.notebook_tools.syllabus import TAG as SYLLABUS
from minipaged.course.notebook_tools.syllabus import syllabus_items
from minipaged.course.paths import course_root

MAX_CELLS = 60
MEDIAN_LINES, MOST_LINES, MAX_LINES = 5, 18, 40
MAX_DEFINITION = 8
MIN_ALTERNATIVE = 20
IGNORED_OUTPUT = "nbval-ignore-output"
REASONS = {MEASURED: "# measured:", IGNORED_OUTPUT: "# output not compared:"}
SECTIONS = {
    "goals": 1,
    "recall": 1,
    "driving-question": 1,
    "predict": 3,
    "breaks-if": 1,
    "reading": 1,
    "lab": 1,
    "misconceptions": 1,
    "recap": 1,
    "contribute": 1,
}
"""{tag: how many cells of a month's lessons must carry it, at least}."""
LESSON_TAGS = {*SECTIONS, *REASONS, CORRECTION}
_ADDRESS = re.compile(r"\b0x[0-9a-f]{8,}\b|ipykernel_\d+")
_LONG_FLOAT = re.compile(r"(?<![\w.])\d*\.\d{7,}(?![\w.])")

Rule = Callable[[Notebook], Iterator[str]]


def lint_file(path: Path) -> list[str]:
    """Everything wrong with one lesson or solutions notebook; empty when it is fine."""
    notebook = read_notebook(path)
    rules = SOLUTION_RULES if path.parent.name == "solutions" else LESSON_RULES
    problems = [problem for rule in (*COMMON_RULES, *rules) for problem in rule(notebook)]
    if rules is LESSON_RULES:
        problems += unknown_items(notebook, syllabus_items(course_root(path.parent)))
    if dumps(normal_form(notebook)) != path.read_text(encoding="utf-8"):
        problems.append("the file is not in normal form: run `make notebooks`")
    return [f"{path.parent.name}/{path.name}: {problem}" for problem in problems]


def missing_sections(month: int, notebooks: list[Notebook]) -> list[str]:
    """The required sections that a month's lessons lack, taken together."""
    tags = [tag for notebook in notebooks for cell in notebook["cells"] for tag in tags_of(cell)]
    return [
        f"month {month}: {least} cell(s) with the tag `{tag}` are required, {tags.count(tag)} found"
        for tag, least in SECTIONS.items()
        if tags.count(tag) < least
    ]


def _where(cell: Cell) -> str:
    first = source_of(cell).strip().split("\n")[0]
    return f"the cell that starts with {first[:60]!r}"


def counts_and_errors(notebook: Notebook) -> Iterator[str]:
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"code cells must be numbered 1…{len(counts)} (run `make notebooks`): {counts}"
    for cell in code_cells(notebook):
        if any(output["output_type"] == "error" for output in cell["outputs"]):
            yield f"{_where(cell)} ends in an error; show a provoked one with `expected_error`"
        if any(output.get("name") == "stderr" for output in cell["outputs"]):
            yield f"{_where(cell)} prints a warning or other text on standard error"


def outputs_are_repeatable(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        for text in _texts(cell):
            if _ADDRESS.search(text):
                yield f"{_where(cell)} prints an address or a kernel's file name: {_ADDRESS.search(text)[0]}"
            if MEASURED not in tags_of(cell) and _LONG_FLOAT.search(text):
                yield f"{_where(cell)} prints a float with too many digits: {_LONG_FLOAT.search(text)[0]}"


def _texts(cell: Cell) -> Iterator[str]:
    for output in cell["outputs"]:
        yield "".join(output.get("text", ""))
        yield "".join(output.get("data", {}).get("text/plain", ""))


def reasons_stand_beside(notebook: Notebook) -> Iterator[str]:
    for cell in notebook["cells"]:
        for tag, comment in REASONS.items():
            if tag in tags_of(cell) and not re.search(rf"^{comment} \S.{{8,}}", source_of(cell), re.MULTILINE):
                yield f"{_where(cell)} has the tag {tag} and needs a comment '{comment} <why>'"


def nothing_is_skipped(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        by_tag = {"nbval-skip", "raises-exception"} & set(tags_of(cell))
        if by_tag or re.search(r"^\s*#\s*(NBVAL|PYTEST)_", source_of(cell), re.MULTILINE):
            yield f"{_where(cell)} is skipped or may raise: every cell of the course runs and is compared"


def pictures_have_words(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            data = output.get("data", {})
            words = "".join(data.get("text/plain", ""))
            picture = any(kind.startswith("image/") for kind in data)
            if picture and (len(words) < MIN_ALTERNATIVE or words.startswith("<")):
                yield f"{_where(cell)} shows a picture without a text alternative (its text/plain is {words!r})"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and re.search(r"!\[\s*\]\(", source_of(cell)):
            yield f"{_where(cell)} has an image without a text in its square brackets"


def code_is_short(notebook: Notebook) -> Iterator[str]:
    cells = list(code_cells(notebook))
    lines = [sum(bool(line.strip()) for line in source_of(cell).split("\n")) for cell in cells]
    if not lines:
        return
    if statistics.median(lines) > MEDIAN_LINES:
        yield f"the median code cell has {statistics.median(lines):g} lines; at most {MEDIAN_LINES}"
    long = sum(count >= MOST_LINES for count in lines)
    if long > math.floor(len(lines) / 10):
        yield f"{long} of {len(lines)} code cells have {MOST_LINES} lines or more; at most one in ten may"
    for cell, count in zip(cells, lines, strict=True):
        if count > MAX_LINES:
            yield f"{_where(cell)} has {count} lines; at most {MAX_LINES}"
    if len(notebook["cells"]) > MAX_CELLS:
        yield f"{len(notebook['cells'])} cells; at most {MAX_CELLS}: cut, or make two notebooks"


def helpers_live_in_the_package(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        for node in ast.walk(_tree(cell)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.end_lineno - node.lineno + 1 > MAX_DEFINITION:
                yield f"`{node.name}` is longer than {MAX_DEFINITION} lines: move it into the package and import it"


def _tree(cell: Cell) -> ast.Module:
    """The cell's syntax tree; lines for IPython or the shell count as empty."""
    lines = source_of(cell).split("\n")
    try:
        return ast.parse("\n".join("pass" if re.match(r"[%!]", line) else line for line in lines))
    except SyntaxError:
        return ast.Module([], [])


def one_title(notebook: Notebook) -> Iterator[str]:
    titles = [title for cell in notebook["cells"] for title in _titles(cell)]
    if len(titles) != 1:
        yield f"exactly one title of the first level ('# …') is wanted, there are {len(titles)}: {titles}"


def _titles(cell: Cell) -> list[str]:
    if cell["cell_type"] != "markdown":
        return []
    text = re.sub(r"^```.*?^```", "", source_of(cell), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^# .+$", text, re.MULTILINE)


def lesson_tags_are_known(notebook: Notebook) -> Iterator[str]:
    for cell in notebook["cells"]:
        for tag in tags_of(cell):
            if tag not in LESSON_TAGS and not tag.startswith(SYLLABUS):
                yield f"{_where(cell)} has the unknown tag {tag!r}; known are {', '.join(sorted(LESSON_TAGS))}"


def unknown_items(notebook: Notebook, items: Collection[str]) -> Iterator[str]:
    """Tags of items that the syllabus does not have."""
    for cell in notebook["cells"]:
        for tag in tags_of(cell):
            if tag.startswith(SYLLABUS) and tag.removeprefix(SYLLABUS) not in items:
                yield f"{_where(cell)} has the tag {tag!r}, but notebooks/SYLLABUS.md has no such item"


def recall_is_folded(notebook: Notebook) -> Iterator[str]:
    for tag, least in (("recall", 3), ("driving-question", 1)):
        cells = [source_of(cell) for cell in notebook["cells"] if tag in tags_of(cell)]
        if cells and sum(text.count("<details>") for text in cells) < least:
            yield f"the `{tag}` cells need {least} folded answer(s) (<details>)"


def solution_cells_are_tagged(notebook: Notebook) -> Iterator[str]:
    for cell in notebook["cells"]:
        tags, is_code = tags_of(cell), cell["cell_type"] == "code"
        kinds = (SETUP, ANSWER, CHECK) if is_code else (PROMPT, SETUP)
        wrong = [tag for tag in tags if not tag.startswith(kinds)]
        if wrong:
            yield f"{_where(cell)} has tags that do not belong there: {', '.join(wrong)}"
        if is_code and not tags:
            yield f"{_where(cell)} needs one of the tags setup, answer-…, check-…"
        exercise_id = next((tag.removeprefix(CHECK) for tag in tags if tag.startswith(CHECK)), None)
        if exercise_id and not _is_only_a_check(cell, exercise_id):
            yield f'{_where(cell)} must be exactly one call: check("{exercise_id}", …)'


def _is_only_a_check(cell: Cell, exercise_id: str) -> bool:
    body = _tree(cell).body
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "check"
        and isinstance(call.args[0], ast.Constant)
        and call.args[0].value == exercise_id
    )


COMMON_RULES: tuple[Rule, ...] = (
    counts_and_errors,
    outputs_are_repeatable,
    reasons_stand_beside,
    nothing_is_skipped,
    pictures_have_words,
    one_title,
)
LESSON_RULES: tuple[Rule, ...] = (code_is_short, helpers_live_in_the_package, lesson_tags_are_known, recall_is_folded)
SOLUTION_RULES: tuple[Rule, ...] = (solution_cells_are_tagged,)
