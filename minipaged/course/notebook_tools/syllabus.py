"""The syllabus: which item each cell teaches, and which items no cell teaches yet."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools.notebook import read_notebook, tags_of

TAG = "syllabus-"
BEING_WRITTEN: frozenset[int] = frozenset()
"""Months that have a lesson and will get more: their missing items are listed by the tests, and no failure yet."""
_ITEM = re.compile(r"^- (\d+\.\d\d) (.+)$", re.MULTILINE)
_LESSON = re.compile(r"month_(\d+)_\w+")


def syllabus_items(root: Path) -> dict[str, str]:
    """{item id: its text} of notebooks/SYLLABUS.md. Raises CourseError when an id stands there twice."""
    items: dict[str, str] = {}
    for item, text in _ITEM.findall((root / "notebooks" / "SYLLABUS.md").read_text(encoding="utf-8")):
        if item in items:
            raise CourseError(f"SYLLABUS.md has item {item} twice")
        items[item] = text
    return items


def lessons_by_month(root: Path) -> dict[int, list[Path]]:
    """{month: its lesson notebooks, in the order of what they teach}; START_HERE belongs to no month."""
    lessons = defaultdict(list)
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        match = _LESSON.fullmatch(path.stem)
        if match:
            lessons[int(match[1])].append(path)
    return {month: sorted(paths, key=_first_item) for month, paths in lessons.items()}


def _first_item(path: Path) -> str:
    """The first item of the syllabus that a lesson teaches: a month's lessons are read in this order."""
    return min(taught_items([path]), default="")


def taught_items(paths: Iterable[Path]) -> set[str]:
    """The item ids in the tags of these notebooks' cells."""
    return {
        tag.removeprefix(TAG)
        for path in paths
        for cell in read_notebook(path)["cells"]
        for tag in tags_of(cell)
        if tag.startswith(TAG)
    }


def gaps(root: Path) -> tuple[list[str], dict[int, list[str]]]:
    """(tagged ids that the syllabus does not have, {month: items of it that no cell teaches})."""
    items, lessons = syllabus_items(root), lessons_by_month(root)
    taught = taught_items(path for paths in lessons.values() for path in paths)
    missing = defaultdict(list)
    for item in items:
        if item not in taught:
            missing[int(item.split(".")[0])].append(item)
    return sorted(taught - items.keys()), dict(missing)
