"""`check` and `hint`, the two names an exercise notebook uses."""

import dis
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from minipaged.course import outcome as outcomes
from minipaged.course import progress
from minipaged.course.errors import CourseError
from minipaged.course.expect import AnswerRaised, Expect, Unmet
from minipaged.course.frames import describe_line, innermost, is_stub_line, last_learner_frame
from minipaged.course.framework import VLLM_RELEASE, Exercise, get_exercise
from minipaged.course.notebook_tools.answers import solution_of
from minipaged.course.outcome import Outcome
from minipaged.course.own_process import ProcessEnded, TookTooLong, can_fork, in_own_process
from minipaged.course.own_work import refusal, unwrap
from minipaged.course.unchanged import changed_parts

HINT_NAMES = ("a question", "the rule", "pseudocode")


class CheckFailed(AssertionError):
    """Raised by `check` unless the answer passed, so that a notebook runner sees a red cell."""

    def __init__(self, outcome: Outcome):
        super().__init__(f"exercise {outcome.exercise.id}: {outcome.status}")
        self.outcome = outcome

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of a page of frames: the card above says everything."""
        return [f"CheckFailed: {self}; the card above says why."]


def check(exercise_id: str, answer: Any = ...) -> None:
    """Check an answer, show the card, and remember the outcome.

    Args:
        exercise_id: "2.1".
        answer: what the exercise asks for: a function, a class, or a value.

    Raises:
        CheckFailed: the outcome is failed, not attempted, or error.
        CourseError: there is no such exercise.
    """
    exercise = get_exercise(exercise_id)
    outcome = grade_answer(exercise, answer)
    remember_and_show(outcome)
    if not outcome.passed:
        raise CheckFailed(outcome)


def grade_answer(exercise: Exercise, answer: Any) -> Outcome:
    """Run an exercise's check on an answer. Shows and remembers nothing."""
    missing = [name for name in exercise.requires if importlib.util.find_spec(name) is None]
    if missing:
        needs = f"this exercise needs {', '.join(missing)}"
        return make_outcome(exercise, outcomes.ERROR, error=needs, cure=_cure(missing))
    if is_placeholder(answer):
        return _not_attempted(exercise)
    refused = refusal(exercise, answer)
    if refused:
        return make_outcome(
            exercise, outcomes.FAILED, rule="The answer is your own work.", got=refused,
            think="Write it yourself: then you own it. The package's version is good reading afterwards.",
            next=_next_hint(exercise),
        )
    if exercise.own_process and can_fork():
        return _grade_in_own_process(exercise, answer)
    return _grade_here(exercise, answer)


def _grade_in_own_process(exercise: Exercise, answer: Any) -> Outcome:
    def work() -> tuple[str, tuple]:
        outcome = _grade_here(exercise, answer)
        return outcome.status, outcome.rows

    try:
        return Outcome(exercise, *in_own_process(work, exercise.own_process))
    except ProcessEnded as ended:
        rule, got = "An answer leaves the program alive.", str(ended)
        think = "Something in the answer ends Python itself. An answer returns; it does not exit."
        if ended.signal:
            think = "A crash is an address far outside of every tensor: look at each pointer, and at its mask."
    except TookTooLong:
        rule, got = "Every loop ends.", f"no result after {exercise.own_process:g} s"
        think = "Which of your loops does not come to its end? Does its condition change in every round?"
    return make_outcome(exercise, outcomes.FAILED, rule=rule, got=got, think=think, next=_next_hint(exercise))


def _grade_here(exercise: Exercise, answer: Any) -> Outcome:
    try:
        exercise.check(answer, Expect())
    except Unmet as unmet:
        return make_outcome(
            exercise, outcomes.FAILED, rule=unmet.rule, case=unmet.case, expected=unmet.want, got=unmet.got,
            picture=unmet.picture, think=unmet.hint, next=_next_hint(exercise),
        )
    except (Exception, SystemExit) as error:
        return outcome_of_exception(exercise, answer, error)
    return make_outcome(exercise, outcomes.PASSED, **{f"in vLLM {VLLM_RELEASE}": exercise.vllm})


def is_placeholder(answer: Any) -> bool:
    """True for what a stub leaves behind: `...` or None, alone or inside a tuple, list or dict, and a function with
    an empty body."""
    if answer is ... or answer is None:
        return True
    if isinstance(answer, dict):
        return any(is_placeholder(part) for part in answer.values())
    if isinstance(answer, list | tuple):
        return any(part is ... or is_placeholder(part) for part in answer)
    answer = unwrap(answer)
    return inspect.isfunction(answer) and _returns_nothing(answer)


def _returns_nothing(function: Callable) -> bool:
    """True for a body of `pass`, `...`, a docstring, or a bare return."""
    for step in dis.get_instructions(function):
        if step.opname not in ("RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"):
            return False
        if step.opname in ("LOAD_CONST", "RETURN_CONST") and step.argval not in (None, ...):
            return False
    return True


def outcome_of_exception(exercise: Exercise, answer: Any, error: Exception | SystemExit) -> Outcome:
    """An exception ended the check: the stub's, the learner's, or a bug of the check itself."""
    case = ""
    raised_by_call = isinstance(error, AnswerRaised)
    if raised_by_call:
        case, error = error.case, error.__cause__
    error = _out_of_the_interpreter(error)
    if isinstance(error, NotImplementedError) and is_stub_line(innermost(error.__traceback__)):
        return _not_attempted(exercise)
    where = last_learner_frame(error.__traceback__)
    wrong_call = isinstance(error, TypeError) and f"{getattr(answer, '__name__', '')}()" in str(error)
    if where is None and not raised_by_call and not wrong_call:
        raise error  # the check's own bug: show all of it
    return make_outcome(
        exercise,
        outcomes.ERROR,
        error=traceback.format_exception_only(error)[-1].strip(),
        where=describe_line(where) if where else "the call itself: the names and number of the arguments",
        case=case,
        next=_next_hint(exercise),
    )


def _out_of_the_interpreter(error: Exception) -> Exception:
    """What was raised in a line of a kernel: Triton's interpreter wraps it, once a function."""
    while type(error).__name__ == "InterpreterError" and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def _not_attempted(exercise: Exercise) -> Outcome:
    return make_outcome(
        exercise,
        outcomes.NOT_ATTEMPTED,
        do=f"Write your answer in exercises/month_{exercise.month}.ipynb, in the cell above the check. Run it, then "
        "the check again.",
        next=_next_hint(exercise),
    )


def make_outcome(exercise: Exercise, status: str, **rows: str) -> Outcome:
    return Outcome(exercise, status, tuple((label, text) for label, text in rows.items() if text))


def _next_hint(exercise: Exercise) -> str:
    shown = progress.get(exercise.id).hints
    if shown < len(exercise.hints):
        return f'hint("{exercise.id}") gives hint {shown + 1} of {len(exercise.hints)}, {HINT_NAMES[shown]}'
    return f'hint("{exercise.id}") shows the solution'


def _cure(missing: list[str]) -> str:
    if "triton" in missing:
        return "Triton has wheels for Linux only. On macOS and Windows use WSL, a devcontainer or a hosted notebook."
    return f"pip install -c constraints.txt {' '.join(missing)}, then restart the kernel."


def remember_and_show(outcome: Outcome) -> None:
    _remember(outcome)
    _show(outcome)


def _remember(outcome: Outcome) -> None:
    exercise_id = outcome.exercise.id
    before = progress.get(exercise_id)
    tried = outcome.status != outcomes.NOT_ATTEMPTED
    progress.update(
        exercise_id,
        status=outcome.status,
        passed=before.passed or outcome.passed,
        attempts=before.attempts + tried,
    )
    log = os.environ.get("MINIPAGED_OUTCOMES")
    if log:  # `minipaged grade` reads the outcomes of a run here
        with open(log, "a", encoding="utf-8") as file:
            line = {"exercise": exercise_id, "status": outcome.status, "error": outcome.row("error")}
            file.write(json.dumps({**line, "changed": changed_parts()}) + "\n")


def _show(outcome: Outcome) -> None:
    """As HTML in a notebook, as text anywhere else."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        ipython.display.display(outcome)
    else:
        print(outcome)


def hint(exercise_id: str, number: int | None = None) -> None:
    """Show the next hint: a question, then the rule, then pseudocode, then the solution.

    Args:
        exercise_id: "2.1".
        number: show hint 1, 2 or 3 again instead of the next one.
    """
    print(hint_text(exercise_id, number))


def hint_text(exercise_id: str, number: int | None = None) -> str:
    """The text that `hint` prints; counts the hint as shown."""
    exercise = get_exercise(exercise_id)
    shown = progress.get(exercise_id).hints
    if number is not None and not 1 <= number <= len(exercise.hints):
        raise CourseError(f"exercise {exercise_id} has hints 1 to {len(exercise.hints)}, not {number!r}")
    index = shown if number is None else number - 1
    if index >= len(exercise.hints):
        solution = solution_of(exercise_id)  # a class's copy may come without it
        progress.update(exercise_id, solution_shown=True)
        return f"{exercise_id} {exercise.title}: a solution\n\n{solution}"
    if index == shown:
        progress.update(exercise_id, hints=shown + 1)
    return f"{exercise_id} {exercise.title}: hint {index + 1} of {len(exercise.hints)}, {HINT_NAMES[index]}\n\n" + (
        exercise.hints[index]
    )
