"""Page replacement: when every frame is taken, who leaves?

A policy is told what happens to pages (loaded, used, gone) and names a victim when asked. It holds no memory itself, so
the same policy runs the simulator (`simulate`) and the operating system (`OperatingSystem`), and so does yours.

Source: OSTEP chapter 22; Belady, IBM Systems Journal 5(2), 1966; Mattson et al., IBM Systems Journal 9(2), 1970.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from minipaged.os_paging.errors import PolicyError


class ReplacementPolicy(Protocol):
    """Four methods make a replacement policy. A page is an int; the memory guarantees the order of the calls."""

    def on_load(self, page: int) -> None:
        """`page` has come into memory, because it was just used."""

    def on_hit(self, page: int) -> None:
        """`page`, which is in memory, was used again."""

    def on_remove(self, page: int) -> None:
        """`page` has left memory: as a victim, or because its owner is done with it."""

    def victim(self, pinned: Collection[int]) -> int:
        """The page that should leave: one that is in memory and not in `pinned`. At least one such page exists."""


def _first_unpinned(pages: Collection[int], pinned: Collection[int]) -> int:
    if not pinned:
        return next(iter(pages))
    return next(page for page in pages if page not in pinned)


class FIFO:
    """First in, first out: who came first leaves first, used or not."""

    name = "fifo"

    def __init__(self):
        self._order: OrderedDict[int, None] = OrderedDict()  # oldest first

    def on_load(self, page: int) -> None:
        self._order[page] = None

    def on_hit(self, page: int) -> None:
        pass

    def on_remove(self, page: int) -> None:
        del self._order[page]

    def victim(self, pinned: Collection[int]) -> int:
        return _first_unpinned(self._order, pinned)


class LRU(FIFO):
    """Least recently used: who was not used for the longest time leaves."""

    name = "lru"

    def on_hit(self, page: int) -> None:
        self._order.move_to_end(page)


class Clock:
    """Second chance: a hand goes round; a page used since its last visit is passed over once.

    One bit a page is all that hardware has to keep, where LRU would need an order over all accesses.
    """

    name = "clock"

    def __init__(self):
        self._used: OrderedDict[int, bool] = OrderedDict()  # the ring, opened at the hand

    def on_load(self, page: int) -> None:
        self._used[page] = True  # the access that loaded it is a use

    def on_hit(self, page: int) -> None:
        self._used[page] = True

    def on_remove(self, page: int) -> None:
        del self._used[page]

    def victim(self, pinned: Collection[int]) -> int:
        while True:
            page, used = next(iter(self._used.items()))
            if page not in pinned:
                if not used:
                    return page
                self._used[page] = False
            self._used.move_to_end(page)  # the hand moves on


class OPT:
    """Belady's optimum: who is needed again latest leaves. It must know the whole trace, so it is only a yardstick."""

    name = "opt"

    def __init__(self, trace: Sequence[int]):
        self._trace = trace
        # next_use[i]: when trace[i] is used again. "Never" is a number beyond the trace, different for each i, so that
        # every value belongs to one page.
        length, seen = len(trace), {}
        self._next_use = [0] * length
        for i in range(length - 1, -1, -1):
            self._next_use[i] = seen.get(trace[i], length + i)
            seen[trace[i]] = i
        self._now = 0
        self._due: dict[int, int] = {}  # resident page -> its next use
        self._heap: list[int] = []  # minus next uses, the latest first; may hold outdated ones

    def _use(self, page: int) -> None:
        trace, now = self._trace, self._now
        while now < len(trace) and trace[now] != page:  # a reference that memory refused was never reported
            now += 1
        if now == len(trace):
            raise PolicyError(f"page {page} is not next in the trace that OPT was given: give it the trace you run")
        self._now = now + 1
        due = self._due[page] = self._next_use[now]
        heappush(self._heap, -due)
        if len(self._heap) > 4 * len(self._due) + 1000:  # mostly outdated: begin again
            self._heap = [-due for due in self._due.values()]
            heapify(self._heap)

    on_load = on_hit = _use

    def on_remove(self, page: int) -> None:
        del self._due[page]

    def victim(self, pinned: Collection[int]) -> int:
        length, skipped = len(self._trace), []
        while True:
            due = -self._heap[0]
            page = self._trace[due - length if due >= length else due]
            if self._due.get(page) != due:
                heappop(self._heap)  # outdated
            elif page in pinned:
                skipped.append(heappop(self._heap))
            else:
                for entry in skipped:
                    heappush(self._heap, entry)
                return page


POLICIES = {policy.name: policy for policy in (FIFO, LRU, Clock, OPT)}


def make_policy(name: str, trace: Sequence[int] | None = None) -> ReplacementPolicy:
    """A fresh policy by name; "opt" needs the trace. Raises PolicyError for an unknown name or a missing trace."""
    if name not in POLICIES:
        known = ", ".join(map(repr, POLICIES))
        raise PolicyError(f"there is no replacement policy {name!r}: choose one of {known}, or pass an object of yours")
    if name == OPT.name:
        if trace is None:
            raise PolicyError("opt looks into the future: give it the trace, or choose fifo, lru or clock")
        return OPT(trace)
    return POLICIES[name]()
