"""The translation look-aside buffer: a small cache of the page table, so that most accesses skip the lookup.

Source: OSTEP chapter 19.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from minipaged.os_paging.errors import require_whole
from minipaged.os_paging.page_table import Permission

TLB_POLICIES = ("lru", "fifo", "random")


class TLBEntry(NamedTuple):
    """A copy of what a page-table entry said. A copy goes stale: whoever changes the table must invalidate it."""

    frame: int
    permissions: Permission


class TLB:
    """`entries` translations in sets of `ways`; page p of any process may lie only in set p % number of sets.

    `ways` None: fully associative, one set. `policy`: who leaves a full set, "lru", "fifo" or "random" (by `seed`).
    Translations carry the process they belong to (an address-space identifier), so a switch of process flushes nothing.
    """

    def __init__(self, entries: int = 16, ways: int | None = None, policy: str = "lru", seed: int = 0):
        self.entries = require_whole("entries", entries, 1, None, "a TLB has at least one entry")
        self.ways = require_whole("ways", entries if ways is None else ways, 1, entries, "a set is part of the TLB")
        if entries % self.ways:
            raise ValueError(f"{entries} entries do not divide into sets of {ways} ways: choose a divisor of {entries}")
        if policy not in TLB_POLICIES:
            raise ValueError(f"there is no TLB policy {policy!r}: choose one of {', '.join(map(repr, TLB_POLICIES))}")
        self.policy = policy
        self.hits = self.misses = 0
        self._random = random.Random(seed)
        self._sets: list[OrderedDict] = [OrderedDict() for _ in range(entries // self.ways)]

    @property
    def hit_rate(self) -> float:
        """Hits a lookup, 0 … 1; 0 before the first lookup."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    def _set(self, page: int) -> OrderedDict:
        return self._sets[page % len(self._sets)]

    def lookup(self, asid: int, page: int) -> TLBEntry | None:
        """The cached translation of `page` in address space `asid`, or None; counts a hit or a miss."""
        found = self._set(page).get((asid, page))
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
            if self.policy == "lru":
                self._set(page).move_to_end((asid, page))
        return found

    def insert(self, asid: int, page: int, frame: int, permissions: Permission) -> int | None:
        """Remember a translation. Returns the page that had to leave its set, or None."""
        ways, key, evicted = self._set(page), (asid, page), None
        if key not in ways and len(ways) == self.ways:
            leaving = self._random.choice(list(ways)) if self.policy == "random" else next(iter(ways))
            del ways[leaving]
            evicted = leaving[1]
        ways[key] = TLBEntry(frame, permissions)
        return evicted

    def invalidate(self, asid: int, page: int) -> None:
        """Forget one translation: its entry in the page table has changed."""
        self._set(page).pop((asid, page), None)

    def flush(self, asid: int | None = None) -> None:
        """Forget every translation, or all of one address space."""
        for ways in self._sets:
            for key in [key for key in ways if asid is None or key[0] == asid]:
                del ways[key]

    def contents(self) -> list[list[tuple[int, int, int]]]:
        """Each set's translations as (asid, page, frame), the next to leave first (unless the policy is random)."""
        return [[(asid, page, entry.frame) for (asid, page), entry in ways.items()] for ways in self._sets]


def tlb_hit_rate(pages: Iterable[int], tlb: TLB) -> float:
    """Hits an access when `pages` are touched in order and every miss loads its translation."""
    for page in pages:
        if tlb.lookup(0, page) is None:
            tlb.insert(0, page, page, Permission.READ)  # the hit rate does not depend on the frame
    return tlb.hit_rate


def effective_access_time(hit_rate: float, memory_ns: float, tlb_ns: float = 0.0, levels: int = 1) -> float:
    """Mean nanoseconds an access: the TLB's time, a walk of `levels` memory accesses on a miss, and the access itself.

    Raises ValueError for a hit rate outside 0 … 1 or a negative time.
    """
    if not 0 <= hit_rate <= 1:
        raise ValueError(f"hit_rate is {hit_rate}, but must be from 0 to 1: divide the hits by all lookups")
    if memory_ns < 0 or tlb_ns < 0:
        raise ValueError(f"times are {memory_ns} and {tlb_ns} ns, but none may be negative: check the units")
    require_whole("levels", levels, 1, None, "a walk reads at least one table")
    return tlb_ns + (1 - hit_rate) * levels * memory_ns + memory_ns
