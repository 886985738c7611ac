"""A kernel of the lesson with one line changed: what breaks if …, and the suspects of the bug hunt."""

from __future__ import annotations

import functools
import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from minipaged.attention.judge import load
from minipaged.course.errors import CourseError


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="minipaged-altered-")  # removed when Python ends


def altered(function: Callable, old: str, new: str, name: str = "") -> Callable:
    """``function`` of a module like the lesson's, in a copy of the module in which the line ``old`` is ``new``.

    ``name``: of the copy's file, as it stands in the referee's findings. Raises CourseError when ``old`` is not found
    exactly once.
    """
    module = sys.modules[function.__module__]
    source = inspect.getsource(module)
    if source.count(old) != 1:
        raise CourseError(f"{old!r} occurs {source.count(old)} times in {module.__name__}; it must occur once")
    file = Path(_folder().name) / f"{name or module.__name__.rpartition('.')[2]}.py"
    file.write_text(source.replace(old, new), encoding="utf-8")
    return load(f"{file}:{function.__name__}")
