"""Where the course lies on this machine: the checkout with notebooks/, exercises/ and solutions/."""

import os
from pathlib import Path

from minipaged.course.errors import CourseError


def is_course_root(folder: Path) -> bool:
    """True for a checkout of the course: the package, and beside it solutions (hidden in a class) or exercises."""
    notebooks = (folder / "solutions").is_dir() or (folder / "exercises").is_dir()
    return notebooks and (folder / "minipaged" / "course").is_dir()


def course_root(start: Path | None = None) -> Path:
    """The checkout: MINIPAGED_COURSE if set, else the nearest folder upwards from `start` (the current folder), else
    the checkout this package was installed from (`pip install -e .`).

    Raises:
        CourseError: none of them is a checkout; the message lists where it looked.
    """
    named = os.environ.get("MINIPAGED_COURSE")
    here = (start or Path.cwd()).resolve()
    candidates = [Path(named).resolve()] if named else [here, *here.parents, Path(__file__).resolve().parents[2]]
    for folder in candidates:
        if is_course_root(folder):
            return folder
    looked_in = f"MINIPAGED_COURSE={named}" if named else f"{here} and the folders above it"
    raise CourseError(
        f"the course's notebooks were not found (looked in {looked_in}). Start from inside the cloned repository, "
        "or set MINIPAGED_COURSE to its folder."
    )


def solutions_folder(root: Path) -> Path:
    """`solutions/` of the course.

    Raises:
        CourseError: this copy came without it, as a class's may.
    """
    folder = root / "solutions"
    if not folder.is_dir():
        raise CourseError(
            f"this copy of the course has no {folder.name}/ ({root}): whoever gave it to you may have kept them "
            "back, and does the grading. What needs them: grade, reset, update-exercises, the solution behind a hint"
        )
    return folder
