"""Ranks from Python: `run_ranks(function, 2)` in a notebook or a test, without torchrun.

Each rank is a new process. The parent holds the store in which the ranks meet, collects what they return, and ends all
of them when one fails.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from minipaged.parallel.group import JOINING, PATIENCE, RankGroup, check_device, check_patience, join, place_of
from minipaged.parallel.layout import ParallelSizeError
from minipaged.parallel.portable import portable, unpacked
from minipaged.parallel.watch import RankError

HOST = "127.0.0.1"
LEAVING = 1.0  # seconds for ranks to end by themselves before they are killed


def run_ranks(
    function: Callable[..., Any],
    num_ranks: int,
    *args: Any,
    device: str = "cpu",
    patience: float = PATIENCE,
    timeout: float | None = None,
    start: str = "spawn",
    **kwargs: Any,
) -> list[Any]:
    """Run `function(group, *args, **kwargs)` on so many ranks; returns what each of them returned, in their order.

    Args:
        function: gets its rank's RankGroup. It may be defined in a notebook cell: its source goes to the ranks, as does
            that of functions and classes among the arguments. Anything else, and the results, must be picklable.
        device: "cpu"; "cuda": rank r takes GPU r; "cuda:0": all ranks share this GPU.
        patience: seconds that the others wait for a rank in an all-reduce, or for its sign of life.
        timeout: seconds for all of it; None: no limit.
        start: "spawn", a fresh Python each (seconds, for importing torch), or "fork", a copy of this one: at once, but
            only on Linux, and not after this Python has used a GPU.

    Raises ValueError for a setting that cannot be, before any process starts; RankError, which names the rank, when one
    raises, dies or hangs; no process is left behind. What a rank prints goes to the terminal that started Python, not
    into a notebook: return it instead.
    """
    if isinstance(num_ranks, bool) or not isinstance(num_ranks, int) or num_ranks < 1:
        raise ParallelSizeError(f"num_ranks is {num_ranks!r}; give a whole number of ranks, 1 or more")
    check_device(device, num_ranks - 1)
    check_patience(patience)
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise ValueError(f"timeout is {timeout!r}; give a number of seconds above 0, or None for no limit")
    if start not in multiprocessing.get_all_start_methods() or start == "forkserver":
        raise ValueError(
            f'start is {start!r}; choose "spawn" (a fresh Python each) or, on Linux, "fork" (a copy of this)'
        )
    work = portable(function), [portable(one) for one in args], portable(kwargs)
    context = multiprocessing.get_context(start)
    threads = max(1, torch.get_num_threads() // num_ranks)
    store, port = _open_store()
    ranks: list[tuple[Any, Connection]] = []
    try:
        for rank in range(num_ranks):
            mine, theirs = context.Pipe(duplex=False)
            who = (rank, num_ranks, port, device, patience, threads)
            process = context.Process(target=_run_rank, args=(who, theirs, *work), daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()
            ranks.append((process, mine))
        return _collect(ranks, timeout)
    finally:
        _end(ranks)
        del store


def _end(ranks: list[tuple[Any, Connection]]) -> None:
    """A moment to clean up and leave, for all of them together; then nobody is left."""
    deadline = monotonic() + LEAVING
    for process, connection in ranks:
        connection.close()
        process.join(max(0.0, deadline - monotonic()))
        process.kill()
        process.join()


def _open_store() -> tuple[dist.TCPStore, int]:
    """A store that only this machine can reach: torch by itself would listen to the whole network."""
    listening = socket.create_server((HOST, 0))
    port = listening.getsockname()[1]
    fd = listening.detach()
    return dist.TCPStore(HOST, port, None, True, JOINING, wait_for_workers=False, master_listen_fd=fd), port


def _collect(ranks: list[tuple[Any, Connection]], timeout: float | None) -> list[Any]:
    """What each rank sends; or the error of the one that ended the run."""
    results: dict[int, Any] = {}
    errors: list[_Report] = []
    open_ones = {connection: rank for rank, (_, connection) in enumerate(ranks)}
    deadline = None if timeout is None else monotonic() + timeout
    while open_ones and not any(error.is_cause for error in errors):
        left = None if deadline is None else max(0.0, deadline - monotonic())
        ready = wait(list(open_ones), left)
        if not ready and errors:
            break
        if not ready:
            late = ", ".join(map(str, sorted(open_ones.values())))
            raise RankError(min(open_ones.values()), f"is not done after {timeout:g} s (not done: {late})")
        for connection in ready:
            rank = open_ones.pop(connection)
            try:
                answer = pickle.loads(connection.recv_bytes())
            except EOFError:
                answer = _Report(rank, _how_it_ended(ranks[rank][0], len(ranks)), is_cause=True)
            if isinstance(answer, _Report):
                errors.append(answer)
                deadline = min(deadline or monotonic() + 2 * LEAVING, monotonic() + 2 * LEAVING)
            else:
                results[rank] = answer[0]
    if errors:
        raise _best(errors)
    return [results[rank] for rank in range(len(ranks))]


class _Report(RankError):
    """An error as a rank tells it. `is_cause`: it is about this very rank, not about another one."""

    def __init__(self, rank: int | None, reason: str, is_cause: bool = False, text: str = "") -> None:
        super().__init__(rank, reason)
        self.is_cause, self.text = is_cause, text

    def __reduce__(self) -> tuple:
        return type(self), (self.rank, self.reason, self.is_cause, self.text)


def _best(reports: list[_Report]) -> RankError:
    """The report that says most: one with a traceback, else the first that names a rank."""
    best = min(reports, key=lambda report: (not report.text, report.rank is None))
    error = RankError(best.rank, best.reason)
    if best.text:
        error.add_note(f"On rank {best.rank}:\n{best.text}")
    return error


def _how_it_ended(process: Any, num_ranks: int) -> str:
    process.join(LEAVING)
    code = process.exitcode
    if code is not None and code < 0:
        return f"of {num_ranks} was ended by {signal.Signals(-code).name}"
    return f"of {num_ranks} ended without a result (exit status {code})"


def _run_rank(who: tuple, connection: Connection, function: Any, args: list, kwargs: dict) -> None:
    """The main program of a rank."""
    rank, num_ranks, port, device, patience, threads = who
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the ranks
    torch.set_num_threads(threads)
    tqdm.set_lock(threading.RLock())  # its own would be shared between processes, and outlive a rank that is killed
    group: RankGroup | None = None
    try:
        store = dist.TCPStore(HOST, port, None, False, JOINING)
        place = place_of(device, rank)
        group = join(rank, num_ranks, store, place, patience, lambda error: _send(connection, _told_by_others(error)))
        result = unpacked(function)(group, *map(unpacked, args), **unpacked(kwargs))
        group.close()
        _send(connection, (result,))
    except RankError as error:
        _send(connection, _told_by_others(error))
    except BaseException as error:
        if group is not None:
            group.fail(error)
        words = "".join(traceback.format_exception_only(error)).strip()
        _send(connection, _Report(rank, f"of {num_ranks} raised {words}", True, _own_lines(error)))
    finally:
        connection.close()


def _send(connection: Connection, answer: tuple[Any] | _Report) -> None:
    """By value: tensors would otherwise go through memory that ends with their process. A parent that has given up,
    because another rank failed first, no longer listens."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send_bytes(pickle.dumps(answer))


def _told_by_others(error: RankError) -> _Report:
    return _Report(error.rank, error.reason)


def _own_lines(error: BaseException) -> str:
    """The traceback, without this module's frame."""
    frames = error.__traceback__
    return "".join(traceback.format_exception(error.with_traceback(frames.tb_next if frames else None)))
