"""Who is alive, and who keeps the others waiting: each rank has a thread that tells and asks, over a shared store.

A collective operation has no answer to a rank that never comes: the others wait in it. So each rank writes four times a
second how many exchanges it has entered and where its program stands, and reads what the others wrote. Then a rank
that waits knows for whom, says so, and ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

BEAT = 0.25  # seconds between two signs of life
GRACE = 2.0  # seconds in which ranks may end by themselves: first the one that failed, with its own traceback
SILENCE = 2.5  # after a broken connection: so long without a sign of life means dead
EXIT_STATUS = 1
DONE = -1  # in the place of a beat
STORE_GONE = "the launcher's store is gone: the launcher, or the rank that held it, has ended"


class RankError(RuntimeError):
    """The run has ended because of one rank. ``rank``: which, None where that cannot be known."""

    def __init__(self, rank: int | None, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(reason if rank is None else f"rank {rank} {reason}")

    def __reduce__(self) -> tuple:
        return type(self), (self.rank, self.reason)


class Watch:
    """One rank's sign of life, and its look at the others.

    Args:
        store: a torch.distributed store of its own connection; any thread may be blocked in another one.
        patience: seconds that a rank may be silent, or let others wait in an exchange.
        on_end: called with the RankError just before the process is ended from outside of its main thread.
    """

    def __init__(
        self,
        store,
        rank: int,
        num_ranks: int,
        patience: float,
        on_end: Callable[[RankError], None] | None = None,
    ) -> None:
        self.rank, self.num_ranks, self.patience = rank, num_ranks, patience
        self._store, self._on_end = store, on_end or _say
        self._exchanges = 0  # exchanges entered so far
        self._waiting_since: float | None = None
        self._beats = 0
        self._seen = [(0, monotonic())] * num_ranks  # (newest beat, when it was new) of each rank
        self._main = threading.main_thread().ident
        self._launcher = os.getppid()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="minipaged-watch", daemon=True)
        store.set(self._key("failed", rank), "")
        self._tell()

    def start(self) -> None:
        """Begin to watch. All ranks must have been made by now."""
        self._seen = [(0, monotonic())] * self.num_ranks
        self._thread.start()

    def stop(self) -> None:
        """From now on the others may end without being missed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * BEAT)
        with self._lock:
            self._store.set(self._key("beat", self.rank), json.dumps([DONE, self._exchanges, "its end", "", 0]))

    # What the program tells

    @contextmanager
    def exchange(self, idle: bool = False) -> Iterator[None]:
        """The rank enters an exchange for which it needs all others, and leaves it. `idle`: it may wait for ever."""
        self._exchanges += 1
        self._waiting_since = None if idle else monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def tell_failure(self, error: BaseException) -> None:
        """Let the others know why this rank ends."""
        if isinstance(error, RankError):  # they see what this rank saw
            return
        words = "".join(traceback.format_exception_only(error)).strip()
        self._accuse(self.rank, f"of {self.num_ranks} raised {words}")

    def who_broke(self, error: Exception) -> RankError:
        """After a broken connection: which rank is gone, and why, as far as it can be known."""
        started = monotonic()
        while monotonic() - started < SILENCE + 4 * BEAT:
            try:
                self._tell()
                found = self._failed() or self._silent(SILENCE)
            except RuntimeError:
                return RankError(
                    None, "the launcher's store is gone: the launcher, or the rank that held it, has ended"
                )
            if found:
                return found
            self._stop.wait(BEAT)
        return RankError(None, f"the connection to another rank broke ({error})")

    # The thread

    def _run(self) -> None:
        last = monotonic()
        while not self._stop.wait(BEAT):
            if monotonic() - last > self.patience / 2:  # this process itself was stopped, or the machine slept
                self._seen = [(beat, monotonic()) for beat, _ in self._seen]
                self._waiting_since = self._waiting_since and monotonic()
            last = monotonic()
            try:
                self._tell()
                problem = self._failed() or self._silent(self.patience) or self._late()
            except RuntimeError:
                problem = RankError(
                    None, "the launcher's store is gone: the launcher, or the rank that held it, has ended"
                )
            if os.getppid() != self._launcher:
                problem = RankError(None, "the launcher has ended")
            if problem and not self._stop.wait(GRACE):
                self._end(problem)

    def _end(self, problem: RankError) -> None:
        try:
            self._on_end(problem)
            self._kill_if_silent(problem.rank)
        finally:
            sys.stderr.flush()
            os._exit(EXIT_STATUS)  # the main thread waits in an operation that nothing can interrupt

    def _kill_if_silent(self, rank: int | None) -> None:
        """A stopped rank cannot end itself, and its launcher would wait for it. Only on this machine."""
        if rank is None or monotonic() - self._seen[rank][1] < self.patience:
            return
        with suppress(RuntimeError, OSError):
            *_, machine, pid = self._states()[rank]
            if machine == socket.gethostname():
                os.kill(pid, signal.SIGKILL)

    def _tell(self) -> None:
        self._beats += 1
        state = [self._beats, self._exchanges, self._place(), socket.gethostname(), os.getpid()]
        with self._lock:
            self._store.set(self._key("beat", self.rank), json.dumps(state))

    def _states(self) -> list[tuple[int, int, str, str, int]]:
        """(beat, exchanges entered, place in the program, machine, process id) of every rank."""
        with self._lock:
            found = self._store.multi_get([self._key("beat", rank) for rank in range(self.num_ranks)])
        states = [json.loads(state) for state in found]
        for rank, (beat, *_) in enumerate(states):
            if beat != self._seen[rank][0]:
                self._seen[rank] = (beat, monotonic())
        return states

    def _failed(self) -> RankError | None:
        with self._lock:
            found = self._store.multi_get([self._key("failed", rank) for rank in range(self.num_ranks)])
        return next((RankError(rank, why.decode()) for rank, why in enumerate(found) if why), None)

    def _silent(self, limit: float) -> RankError | None:
        self._states()
        for rank, (beat, since) in enumerate(self._seen):
            if rank != self.rank and beat != DONE and monotonic() - since > limit:
                silence = monotonic() - since
                reason = f"has given no sign of life for {silence:.0f} s: it was killed or stopped"
                return RankError(rank, f"of {self.num_ranks} {reason}")
        return None

    def _late(self) -> RankError | None:
        """For whom this rank waits in an exchange, if for too long."""
        waiting_since = self._waiting_since
        if waiting_since is None or monotonic() - waiting_since < self.patience:
            return None
        states = self._states()
        rank = min(range(self.num_ranks), key=lambda rank: states[rank][1])
        is_quiet = monotonic() - self._seen[rank][1] > 4 * BEAT  # stopped, and not only late: `_silent` will tell
        if states[rank][1] >= self._exchanges or is_quiet:
            return None
        reason = (
            f"of {self.num_ranks} hangs: the others have waited {self.patience:g} s for it in exchange "
            f"{self._exchanges}, it has entered {states[rank][1]}; it is at {states[rank][2]}"
        )
        self._accuse(rank, reason)
        return RankError(rank, reason)

    def _accuse(self, rank: int, reason: str) -> None:
        """Only the first reason counts; the rank itself reads it, too, and ends."""
        with self._lock:
            self._store.compare_set(self._key("failed", rank), "", reason)

    def _place(self) -> str:
        """The line of the main thread's program, outside of torch."""
        frame = sys._current_frames().get(self._main)
        while frame and f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is None:
            return "its end"
        return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}, in {frame.f_code.co_name}"

    @staticmethod
    def _key(kind: str, rank: int) -> str:
        return f"minipaged/{kind}/{rank}"


def _say(problem: RankError) -> None:
    print(f"minipaged.parallel: the run ends: {problem}", file=sys.stderr)
