"""A limit for a learner's code that cannot be interrupted by time alone: so many lines, and it is broken off."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

from minipaged.course.frames import is_learners


class Endless(BaseException):
    """The learner's code ran for too long. No Exception, so that their ``except Exception`` lets it pass."""


@contextmanager
def line_limit(most: int, seconds: float = 30.0) -> Iterator[None]:
    """Break off learner's code, called in this block, that runs more than ``most`` lines: raises Endless.

    A loop that stands on one line (``while True: pass``) never begins a new one; for it there are the seconds.
    """
    count = 0
    thread = ctypes.c_ulong(threading.get_ident())
    raise_there = ctypes.pythonapi.PyThreadState_SetAsyncExc
    alarm = threading.Timer(seconds, lambda: raise_there(thread, ctypes.py_object(Endless)))
    alarm.daemon = True

    def count_lines(frame, event: str, arg):
        nonlocal count
        count += event == "line"
        if count > most:
            raise Endless
        return count_lines

    def on_call(frame, event: str, arg):
        return count_lines if _is_learners(frame.f_code) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()
        sys.settrace(before)


@functools.cache
def _is_learners(code: CodeType) -> bool:
    return is_learners(code)
