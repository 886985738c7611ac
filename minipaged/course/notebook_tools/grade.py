"""`minipaged grade`: nbval runs an exercise notebook, and a table says how each exercise came out.

nbval alone can be passed by deleting or skipping a check. So an exercise counts as passed only if

1. the notebook still has every given cell, as generated, and no cell replaces the check (`tampering`),
2. nbval saw the check's cell run without an exception, and `check` was the course's own at that moment (`_OWN_CHECK`),
3. the check itself reported "passed" (`check` writes its outcomes to the file MINIPAGED_OUTCOMES), and
4. at that moment the course's functions were those of its files (`unchanged.py`).

An answer that kills the kernel or does not end costs its own exercise only: the notebook is run again with that
answer put back to its stub.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minipaged
from minipaged.course.errors import CourseError
from minipaged.course.framework import exercises_of, months
from minipaged.course.notebook_tools.answers import ANSWER, CHECK, exercise_of
from minipaged.course.notebook_tools.execute import SURROUNDINGS
from minipaged.course.notebook_tools.exercises import exercise_notebook
from minipaged.course.notebook_tools.nbval_guard import MEMORY_LIMIT
from minipaged.course.notebook_tools.notebook import (
    Cell,
    Notebook,
    code_cells,
    read_notebook,
    source_of,
    write_notebook,
)
from minipaged.course.notebook_tools.tampering import tampering
from minipaged.course.outcome import ERROR, FAILED, NOT_ATTEMPTED, PASSED
from minipaged.course.paths import solutions_folder

TAMPERED = "tampered"
STATUSES = (PASSED, FAILED, NOT_ATTEMPTED, ERROR, TAMPERED)
CELL_TIMEOUT = 60
_WORKERS = 2
_ANOTHER = "another check than the course's took its place"
_OWN_CHECK = f'assert check is __import__("minipaged.course.checking", fromlist=["check"]).check, "{_ANOTHER}"\n'
"""Runs before each check, in its cell."""


@dataclass(frozen=True)
class Grade:
    """How one exercise came out; `note` says what the table cannot."""

    exercise: str
    title: str
    status: str
    note: str = ""


@dataclass(frozen=True)
class Run:
    """What one run of a notebook showed: cells that failed, by their number among the code cells, with nbval's words;
    the last line that each exercise's check reported: its status, its error, what was changed in the course then."""

    failures: dict[int, str]
    reported: dict[str, dict[str, Any]]


def grade_month(
    root: Path,
    month: int,
    submitted: Path | None = None,
    timeout: float = CELL_TIMEOUT,
    memory: float | None = None,
) -> list[Grade]:
    """Grade a month's exercise notebook: the one in exercises/, or a submitted copy of it.

    Args:
        timeout: seconds a cell may take.
        memory: GiB of address space that each process of the run may use; None: no limit.

    Raises:
        CourseError: there is no such notebook, or it cannot be read.
    """
    name = f"month_{month}.ipynb"
    generated = exercise_notebook(read_notebook(solutions_folder(root) / name))
    path = submitted or root / "exercises" / name
    found = read_notebook(path)
    tampered = list(tampering(generated, found))
    killers: dict[str, str] = {}
    run = _run(root, path, found, timeout, memory)
    while (killer := _killer(found, run)) is not None and killer[0] not in killers:
        killers[killer[0]] = killer[1]
        run = _run(root, path, _with_stubs(found, generated, killers), timeout, memory)
    grades = []
    for exercise in exercises_of(month):
        notes = [what for concerned, what in tampered if concerned in (None, exercise.id)]
        if notes:
            status, note = TAMPERED, notes[0]
        elif exercise.id in killers:
            status, note = ERROR, killers[exercise.id]
        else:
            status, note = _status(exercise.id, found, run)
        grades.append(Grade(exercise.id, exercise.title, status, note))
    return grades


def _status(exercise_id: str, notebook: Notebook, run: Run) -> tuple[str, str]:
    failure_of = {
        kind: run.failures.get(number)
        for number, cell in enumerate(code_cells(notebook))
        for kind in (ANSWER, CHECK)
        if exercise_of(cell, kind) == exercise_id
    }
    if CHECK not in failure_of:
        return ERROR, "the notebook has no check for it"
    reported, failure = run.reported.get(exercise_id), failure_of[CHECK]
    if _raised(failure or "") == f"AssertionError: {_ANOTHER}" or (reported is None and failure is None):
        return TAMPERED, _ANOTHER
    if reported is None:  # where the answer's cell raised, the check's error only follows from it
        raised = _raised(failure_of.get(ANSWER) or "") or _raised(failure)
        return ERROR, raised or "the check did not come to an end"
    if reported["changed"]:
        return TAMPERED, f"the course itself was changed: {', '.join(reported['changed'][:3])}"
    if reported["status"] == PASSED and failure is not None:
        return FAILED, "the check's own cell did not pass"
    return reported["status"], reported["error"]


def _raised(failure: str) -> str:
    """The last exception that nbval's words show, in one line."""
    return next(reversed(re.findall(r"^\w*(?:Error|Exit|Interrupt)(?:: .*)?$", _plain(failure), re.MULTILINE)), "")


def _plain(text: str) -> str:
    """Without the colours of a terminal, which XML writes as #x1B."""
    return re.sub(r"(?:\x1b|#x1B)\[[0-9;]*m", "", text)


def _killer(notebook: Notebook, run: Run) -> tuple[str, str] | None:
    """The exercise whose answer killed the kernel or did not end: the first such cell's, by what stands before it."""
    exercise_id = None
    for number, cell in enumerate(code_cells(notebook)):
        exercise_id = exercise_of(cell, ANSWER) or exercise_of(cell, CHECK) or exercise_id
        words = run.failures.get(number, "")
        if "kernel died" in words:
            return (exercise_id, "the kernel died") if exercise_id else None
        if "Timeout of" in words:
            return (exercise_id, "it did not end in time") if exercise_id else None
    return None


def _with_stubs(found: Notebook, generated: Notebook, exercises: dict[str, str]) -> Notebook:
    stubs = {exercise_of(cell, ANSWER): source_of(cell) for cell in generated["cells"]}
    cells = [
        {**cell, "source": stubs[exercise_of(cell, ANSWER)]} if exercise_of(cell, ANSWER) in exercises else cell
        for cell in found["cells"]
    ]
    return {**found, "cells": cells}


def _run(root: Path, path: Path, notebook: Notebook, timeout: float, memory: float | None) -> Run:
    """Run a copy of the notebook under `pytest --nbval-lax` in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="minipaged-grade-") as folder:
        work = Path(folder)
        copy, report, log = work / path.name, work / "report.xml", work / "outcomes.jsonl"
        write_notebook(copy, {**notebook, "cells": [_to_run(cell) for cell in notebook["cells"]]})
        (work / "pytest.ini").write_text("[pytest]\n")
        environment = {
            **os.environ,
            **SURROUNDINGS,
            "MINIPAGED_HOME": str(work / "home"),
            "MINIPAGED_OUTCOMES": str(log),
            "MINIPAGED_COURSE": str(root),
            **({MEMORY_LIMIT: str(memory)} if memory else {}),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # nbval is all it takes, and others cost seconds
        }
        package = str(Path(minipaged.__file__).parents[1])  # before all: a folder `minipaged` may have been handed in
        search = [package, str(path.resolve().parent), os.environ.get("PYTHONPATH", "")]  # modules beside the notebook
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-c", str(work / "pytest.ini"), "--noconftest"),
            *("-p", "nbval.plugin", "-p", "minipaged.course.notebook_tools.nbval_guard", "-p", "no:cacheprovider"),
            *("--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={timeout}", f"--junitxml={report}"),
            str(copy),
        ]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=work, check=False)
        if not report.exists():
            raise CourseError(f"{path}: the grader's pytest run failed:\n{ended.stdout}{ended.stderr}")
        lines = log.read_text().splitlines() if log.exists() else []
        try:
            return Run(_failures(report), _reported(map(json.loads, lines)))
        except (ValueError, TypeError, KeyError):
            raise CourseError(f"{path}: it writes among the outcomes of the checks") from None


def _to_run(cell: Cell) -> Cell:
    """The cell without its saved outputs; a check's says first whether it is the course's."""
    if cell["cell_type"] != "code":
        return cell
    first = _OWN_CHECK if exercise_of(cell, CHECK) else ""
    return {**cell, "outputs": [], "execution_count": None, "source": first + source_of(cell)}


def _reported(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last line of each exercise, with what any of its lines says that was changed."""
    last: dict[str, dict[str, Any]] = {}
    for line in lines:
        before = last.get(line["exercise"], {}).get("changed", [])
        last[line["exercise"]] = {**line, "changed": before + line.get("changed", ["an outcome that no check wrote"])}
    return last


def _failures(report: Path) -> dict[int, str]:
    """{number of the code cell: nbval's words} of the cells that did not pass, from pytest's XML report."""
    failures = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if bad is not None:
            number = int(case.attrib["name"].removeprefix("Cell "))
            failures[number] = f"{bad.attrib.get('message', '')} {bad.text or ''}"
    return failures


def months_with_exercises(root: Path) -> list[int]:
    """The months whose solutions notebook is there."""
    return [month for month in months() if (solutions_folder(root) / f"month_{month}.ipynb").exists()]


def grade_months(root: Path, wanted: list[int], timeout: float = CELL_TIMEOUT) -> dict[int, list[Grade]]:
    """Grade several months, two at a time."""
    for month in wanted:
        if month not in months_with_exercises(root):
            there = ", ".join(map(str, months_with_exercises(root)))
            raise CourseError(f"month {month} has no exercises; the months that have some: {there}")
    with ThreadPoolExecutor(_WORKERS) as pool:
        return dict(zip(wanted, pool.map(lambda month: grade_month(root, month, timeout=timeout), wanted), strict=True))


def table(graded: dict[int, list[Grade]]) -> str:
    """The grades as a table in text, with one line of totals."""
    grades = [grade for month in graded.values() for grade in month]
    width = max((len(grade.title) for grade in grades), default=0)
    lines = []
    for month, rows in graded.items():
        lines.append(f"Month {month}: exercises/month_{month}.ipynb")
        notes = {grade.note for grade in rows}
        shared = notes.pop() if len(notes) == 1 and len(rows) > 1 else ""
        for grade in rows:
            note = "" if shared else grade.note
            lines.append(f"  {grade.exercise:<5} {grade.title:<{width}}  {grade.status:<13}  {note}".rstrip())
        lines += [f"  all of them: {shared}"] if shared else []
    counts = ", ".join(f"{sum(grade.status == status for grade in grades)} {status}" for status in STATUSES)
    return "\n".join([*lines, "", f"{len(grades)} exercises: {counts}"])
