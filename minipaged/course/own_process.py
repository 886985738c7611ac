"""A check in a process of its own: an answer that crashes or does not end costs a message, not the notebook's kernel.

The process is a fork, so the answer comes along with all it refers to, wherever it was defined.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")
WAIT = 4  # times the limit: so long may a process take that shares its machine with others, or sleeps


class ProcessEnded(Exception):
    """The process ended before it had a result. ``signal``: the signal that ended it, 0 for none."""

    def __init__(self, exit_code: int):
        self.signal = max(0, -exit_code)
        name = signal.Signals(self.signal).name if self.signal else f"exit code {exit_code}"
        super().__init__(f"the process ended with {name}")


class TookTooLong(Exception):
    """No result within the limit."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


def in_own_process(work: Callable[[], Result], seconds: float) -> Result:
    """What ``work()`` returns, computed in a forked process. The result must be picklable.

    ``seconds``: of the process's own work, so that a busy machine fails no answer.

    Raises:
        ProcessEnded: it crashed, or was killed.
        TookTooLong: no result after so many seconds.
        RuntimeError: ``work`` raised; with its traceback as text.
    """
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, work, seconds), daemon=True)
    child.start()
    send.close()
    try:
        if not receive.poll(WAIT * seconds):
            raise TookTooLong
        result, error = receive.recv()
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGPROF:
            raise TookTooLong from None
        raise ProcessEnded(child.exitcode) from None
    finally:
        child.kill()
        child.join()
        receive.close()
    if error:
        raise RuntimeError(f"in a process of its own:\n{error}")
    return result


def _child(send: Connection, work: Callable[[], Result], seconds: float) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process after so much work
    faulthandler.disable()  # a crash is reported by the parent
    warnings.simplefilter("ignore")  # numpy's, out of an answer's NaN: the check says it better
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # torch's worker threads do not live on in a forked process
    try:
        result, error = work(), ""
    except Exception:
        result, error = None, traceback.format_exc()
    send.send((result, error))
