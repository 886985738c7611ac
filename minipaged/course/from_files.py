"""Checks and resets from the command line, on the notebooks as they are saved."""

import contextlib
import io
import linecache
from pathlib import Path

from minipaged.course import checking, progress
from minipaged.course.errors import CourseError
from minipaged.course.framework import get_exercise
from minipaged.course.notebook_tools.answers import ANSWER, CHECK, cells_by_exercise, setup_sources
from minipaged.course.notebook_tools.merge import answered, with_stub
from minipaged.course.notebook_tools.notebook import read_notebook, source_of, write_notebook
from minipaged.course.outcome import ERROR
from minipaged.course.paths import course_root


def check_from_notebook(exercise_id: str) -> bool:
    """Check the answer saved in exercises/; shows the card, remembers the outcome, says whether it passed."""
    exercise = get_exercise(exercise_id)
    path = course_root() / "exercises" / f"month_{exercise.month}.ipynb"
    notebook = read_notebook(path)
    answer = cells_by_exercise(notebook, ANSWER).get(exercise_id)
    check = cells_by_exercise(notebook, CHECK).get(exercise_id)
    if answer is None or check is None:
        raise CourseError(
            f"exercises/{path.name} has lost a cell of {exercise_id}; put it back: minipaged update-exercises"
        )
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, source in enumerate(setup_sources(notebook), start=1):
        with contextlib.redirect_stdout(io.StringIO()):  # what the given cells print is for the notebook's reader
            _run_given(path, source, f"<set-up cell {number}>", namespace)
    try:
        _run(source_of(answer), f"<answer {exercise_id}>", namespace)
    except SyntaxError as error:
        where = f"line {error.lineno} of your cell:  {(error.text or '').strip()}" if error.lineno else "your cell"
        outcome = checking.make_outcome(exercise, ERROR, error=f"SyntaxError: {error.msg}", where=where)
        checking.remember_and_show(outcome)
        return False
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        outcome = checking.outcome_of_exception(exercise, None, error)
        checking.remember_and_show(outcome)
        return outcome.passed
    try:
        _run_given(
            path, source_of(check), f"<check {exercise_id}>", namespace, may_end=(checking.CheckFailed, NameError)
        )
    except checking.CheckFailed:
        return False
    except NameError as error:
        do = "The check looks for the names that the exercise gives: keep them."
        checking.remember_and_show(checking.make_outcome(exercise, ERROR, error=str(error), do=do))
        return False
    return True


def _run_given(
    path: Path,
    source: str,
    name: str,
    namespace: dict[str, object],
    may_end: tuple[type[Exception], ...] = (),
) -> None:
    """Run a cell that the course gave; it may end with the exceptions of `may_end`.

    Raises:
        CourseError: it ended otherwise: it is not as it was given, or this environment lacks something.
    """
    try:
        _run(source, name, namespace)
    except (*may_end, KeyboardInterrupt):
        raise
    except BaseException as error:
        first, what = source.strip().split("\n")[0][:60], f"{type(error).__name__}: {error}".rstrip(": ")
        raise CourseError(
            f"exercises/{path.name}: the given cell that starts with {first!r} ended with {what}. If it was altered, "
            "minipaged update-exercises puts it back and keeps your answers; if not, ask minipaged doctor"
        ) from None


def _run(source: str, name: str, namespace: dict[str, object]) -> None:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


def reset_exercise(exercise_id: str) -> str:
    """Put an exercise back to its stub and forget its outcome; says where the old answer is kept."""
    root, month = course_root(), get_exercise(exercise_id).month
    path = root / "exercises" / f"month_{month}.ipynb"
    untouched = exercise_id not in answered(path)
    notebook, old = with_stub(root, path, exercise_id)
    kept = None if untouched else _keep(exercise_id, old)  # before the notebook loses it
    write_notebook(path, notebook)
    progress.update(exercise_id, **vars(progress.ExerciseProgress()))
    if untouched:
        return f"{exercise_id} is its stub already; its hints and outcomes are forgotten."
    return (
        f"{exercise_id} is back to its stub. Your old answer is kept in {kept}. If the notebook is open in JupyterLab, "
        "reload it from disk."
    )


def _keep(exercise_id: str, answer: str) -> Path:
    """Write an answer into a new file of the learner's folder."""
    folder = progress.home() / "answers"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while (kept := folder / f"{exercise_id}-{number}.py").exists():
            number += 1
        kept.write_text(answer + "\n", encoding="utf-8")
    except OSError as error:
        raise CourseError(
            f"your answer to {exercise_id} cannot be kept in {folder} ({error.strerror}), so it stays where it is; "
            "set MINIPAGED_HOME to a folder that you can write"
        ) from None
    return kept
