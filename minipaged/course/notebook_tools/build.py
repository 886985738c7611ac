"""`make notebooks`: exercises from solutions, lessons and solutions executed, everything in normal form."""

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools.corrections import write_corrections
from minipaged.course.notebook_tools.execute import executed
from minipaged.course.notebook_tools.exercises import write_exercises
from minipaged.course.notebook_tools.notebook import write_notebook

EXECUTED = ("notebooks", "solutions")
WORKERS = 2


def notebooks_in(root: Path) -> list[Path]:
    """Lessons and solutions: what is executed."""
    return [path for folder in EXECUTED for path in sorted((root / folder).glob("*.ipynb"))]


def build(root: Path, only: Iterable[Path] = (), *, refresh: bool = False) -> list[Path]:
    """Bring notebooks up to date; returns the files that changed.

    Args:
        only: do this for these files (lessons or solutions); all of them when empty.
        refresh: run the cells tagged `measured` anew too.

    Raises:
        CourseError: a file that is neither a lesson nor a solution, or a notebook that fails. The others are
            finished first.
    """
    files = [Path(path).resolve() for path in only] or notebooks_in(root)
    known = [path.resolve() for path in notebooks_in(root)]
    for path in files:
        if path not in known:
            raise CourseError(f"{path} is not a lesson in notebooks/ or a solution in solutions/; those are executed")
    changed = write_exercises(root, [path for path in files if path.parent.name == "solutions"])
    problems = []
    with ProcessPoolExecutor(min(WORKERS, len(files) or 1)) as pool:
        running = {pool.submit(executed, path, refresh=refresh): path for path in files}
        for done in as_completed(running):
            path = running[done]
            try:
                changed += [path] if write_notebook(path, done.result()) else []
                print(f"{path.parent.name}/{path.name}: executed", flush=True)
            except CourseError as problem:
                problems.append(str(problem))
    if write_corrections(root):
        changed.append(root / "notebooks" / "CORRECTIONS.md")
    if problems:
        raise CourseError("\n\n".join(problems))
    return sorted(changed)
