"""`minipaged grade --submissions FOLDER`: a class's notebooks, each graded in processes of its own, and a CSV.

A submission is a folder; its name is the learner's. Every `month_N.ipynb` in it, at any depth, is graded as
`minipaged grade` grades one's own: so nbgrader's `submitted/NAME/ASSIGNMENT/month_N.ipynb` works as it is.
"""

import csv
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from minipaged.course.errors import CourseError
from minipaged.course.framework import exercises_of
from minipaged.course.notebook_tools.grade import CELL_TIMEOUT, STATUSES, Grade, grade_month, months_with_exercises
from minipaged.course.outcome import ERROR, PASSED

COLUMNS = ("learner", "month", "exercise", "title", "status", "note")
_NAME = re.compile(r"month_(\d+)\.ipynb")


@dataclass(frozen=True)
class Submission:
    """One notebook of one learner."""

    learner: str
    month: int
    path: Path


def find_submissions(root: Path, folder: Path, wanted: list[int]) -> list[Submission]:
    """All notebooks of the wanted months, by learner and month. In a clone of the course, those of `exercises/`.

    Raises:
        CourseError: the folder is not there, holds no submission, or one learner has a month twice.
    """
    if not folder.is_dir():
        raise CourseError(f"there is no folder {folder}; give a folder with one folder a learner")
    known = wanted or months_with_exercises(root)
    found: dict[tuple[str, int], Path] = {}
    for path in sorted(folder.glob("*/**/month_*.ipynb")):
        name = _NAME.fullmatch(path.name)
        parts = path.relative_to(folder).parts
        if name is None or int(name[1]) not in known or {".ipynb_checkpoints", "solutions"} & set(parts[1:]):
            continue
        key = (parts[0], int(name[1]))
        if key in found:
            raise CourseError(f"{key[0]} has month {key[1]} twice: {found[key]} and {path}; keep one of them")
        found[key] = path
    if not found:
        months = ", ".join(map(str, known))
        raise CourseError(f"no FOLDER/LEARNER/month_N.ipynb in {folder} (months looked for: {months})")
    return [Submission(learner, month, path) for (learner, month), path in found.items()]


def nothing_from(folder: Path, found: list[Submission]) -> list[str]:
    """A line for each learner's folder without a notebook to grade, with the notebooks that it has instead."""
    lines, graded = [], {one.learner for one in found}
    for learner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        if learner.name not in graded:
            names = sorted(path.name for path in learner.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
            has = f"its notebooks: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}" if names else "no notebook"
            lines.append(f"{learner.name}: not graded, for want of a month_N.ipynb ({has})")
    return lines


def grade_submission(
    root: Path, submission: Submission, timeout: float = CELL_TIMEOUT, memory: float | None = None
) -> list[Grade]:
    """Like `grade_month`; a notebook that cannot be graded at all is an error in each of its exercises."""
    try:
        return grade_month(root, submission.month, submission.path, timeout, memory)
    except Exception as error:  # whatever one learner hands in, the class is graded
        note = (str(error) or type(error).__name__).splitlines()[0]
        return [Grade(one.id, one.title, ERROR, note) for one in exercises_of(submission.month)]


def grade_submissions(
    root: Path,
    submissions: list[Submission],
    timeout: float = CELL_TIMEOUT,
    memory: float | None = None,
    workers: int = 2,
) -> Iterator[tuple[Submission, list[Grade]]]:
    """Each submission with its grades, in order, as soon as it is known.

    Args:
        timeout: seconds a cell may take.
        memory: GiB of address space that the processes of one notebook may use; None: no limit.
    """
    with ThreadPoolExecutor(workers) as pool:
        yield from zip(
            submissions,
            pool.map(lambda one: grade_submission(root, one, timeout, memory), submissions),
            strict=True,
        )


def write_csv(
    file: TextIO,
    graded: Iterator[tuple[Submission, list[Grade]]],
    tell: Callable[[str], object] = print,
) -> int:
    """Write a row an exercise and tell a line a notebook; returns how many exercises did not pass.

    Each notebook's rows are in the file before the next one is graded, so that stopping half way loses nothing.
    """
    not_passed = 0
    rows = csv.writer(file)
    rows.writerow(COLUMNS)
    for submission, grades in graded:
        for grade in grades:
            who = (submission.learner, submission.month)
            rows.writerow((*who, grade.exercise, grade.title, grade.status, grade.note))
        file.flush()
        not_passed += sum(grade.status != PASSED for grade in grades)
        tell(f"{submission.learner}, month {submission.month}: {totals(grades)}")
    return not_passed


def totals(grades: list[Grade]) -> str:
    """`3 passed, 1 failed, …`: the statuses that occur."""
    counts = {status: sum(grade.status == status for grade in grades) for status in STATUSES}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "no exercises"
