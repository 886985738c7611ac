"""Every registered exercise, against its notebook and the kept answers: the stub comes out as *not attempted*, the
solution and other right answers pass, and each kept wrong answer fails with the hint meant for it.

Nothing here names an exercise: a new one is tested as soon as it is registered.
"""

import importlib
import linecache
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from minipaged.course.checking import grade_answer
from minipaged.course.framework import all_exercises, exercises_of, get_exercise, months
from minipaged.course.notebook_tools.answers import (
    ANSWER,
    CHECK,
    PROMPT,
    cells_by_exercise,
    setup_sources,
    stub_of,
    without_marks,
)
from minipaged.course.notebook_tools.notebook import Notebook, read_notebook, source_of
from minipaged.course.outcome import Outcome
from tests.course.answers import Alternative, Wrong

ROOT = Path(__file__).parents[2]
EXERCISES = all_exercises()
IDS = [exercise.id for exercise in EXERCISES]


@cache
def solutions(month: int) -> Notebook:
    return read_notebook(ROOT / "solutions" / f"month_{month}.ipynb")


@cache
def kept_answers(month: int) -> list[Wrong | Alternative]:
    return importlib.import_module(f"tests.course.wrong_answers.month_{month}").ANSWERS


def kept(kind: type) -> Iterator:
    for month in months():
        yield from (answer for answer in kept_answers(month) if isinstance(answer, kind))


def outcome_of(exercise_id: str, answer_code: str) -> Outcome:
    """What the notebook's own check cell says when its answer cell holds this code."""
    notebook = solutions(get_exercise(exercise_id).month)
    found: list[Outcome] = []

    def check(asked_id: str, answer: object = ...) -> None:
        found.append(grade_answer(get_exercise(asked_id), answer))

    namespace = {"__name__": "__main__"}
    for source in setup_sources(notebook):
        exec(compile(source, "<setup cell>", "exec"), namespace)
    namespace |= {"check": check, "hint": lambda *_: None}
    name = f"<answer {exercise_id}>"
    linecache.cache[name] = (len(answer_code), None, answer_code.splitlines(keepends=True), name)
    exec(compile(answer_code, name, "exec"), namespace)
    exec(compile(source_of(cells_by_exercise(notebook, CHECK)[exercise_id]), "<check cell>", "exec"), namespace)
    assert [outcome.exercise.id for outcome in found] == [exercise_id], "a check cell makes one check, of its exercise"
    return found[0]


@pytest.mark.parametrize("month", months())
def test_the_notebook_and_the_registry_have_the_same_exercises(month: int) -> None:
    registered = [exercise.id for exercise in exercises_of(month)]
    for kind in (PROMPT, ANSWER, CHECK):
        assert list(cells_by_exercise(solutions(month), kind)) == registered, f"cells tagged {kind}…"


@pytest.mark.parametrize("exercise_id", IDS)
def test_the_stub_is_not_attempted(exercise_id: str) -> None:
    cell = cells_by_exercise(solutions(get_exercise(exercise_id).month), ANSWER)[exercise_id]
    assert outcome_of(exercise_id, stub_of(source_of(cell))).status == "not attempted"


@pytest.mark.parametrize("exercise_id", IDS)
def test_the_solution_passes(exercise_id: str) -> None:
    cell = cells_by_exercise(solutions(get_exercise(exercise_id).month), ANSWER)[exercise_id]
    outcome = outcome_of(exercise_id, without_marks(source_of(cell)))
    assert outcome.passed, str(outcome)


@pytest.mark.parametrize("answer", [pytest.param(a, id=f"{a.exercise} {a.how}") for a in kept(Alternative)])
def test_another_right_answer_passes(answer: Alternative) -> None:
    outcome = outcome_of(answer.exercise, answer.code)
    assert outcome.passed, str(outcome)


@pytest.mark.parametrize("answer", [pytest.param(a, id=f"{a.exercise} {a.why}") for a in kept(Wrong)])
def test_a_wrong_answer_gets_its_hint(answer: Wrong) -> None:
    outcome = outcome_of(answer.exercise, answer.code)
    assert outcome.status == answer.status, str(outcome)
    assert answer.hint in outcome.row("think" if answer.status == "failed" else "error"), str(outcome)
    if answer.status == "failed":
        assert outcome.row("rule"), "a failed card names the broken rule"


@pytest.mark.parametrize("exercise_id", IDS)
def test_three_wrong_answers_and_another_right_one_are_kept(exercise_id: str) -> None:
    answers = [answer for answer in kept_answers(get_exercise(exercise_id).month) if answer.exercise == exercise_id]
    assert sum(isinstance(answer, Wrong) for answer in answers) >= 3
    assert sum(isinstance(answer, Alternative) for answer in answers) >= 1
    hints = [answer.hint for answer in answers if isinstance(answer, Wrong)]
    assert all(hints), "an empty hint matches any card"
