"""Contiguous allocation as it was before paging: first fit, best fit and next fit.

Every allocator hands out one contiguous range for a request and never moves it afterwards. That is the root of
external fragmentation: the free total may suffice while no single hole does. Sizes and addresses are in *units*:
bytes, KV slots, whatever the caller counts.

    allocator = FirstFit(total=64)
    address = allocator.allocate(10)     # 0, or None when no hole is large enough
    allocator.free(address)              # neighbouring holes become one

Source: Knuth, The Art of Computer Programming, vol. 1, section 2.5; OSTEP chapter 17.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from minipaged.os_paging.errors import AllocationError, require_whole


@dataclass(frozen=True)
class AllocatorStep:
    """One operation as a lesson draws it: what was asked, what came out, and the memory afterwards."""

    operation: str  # "allocate" or "free"
    size: int  # units asked for, or units given back
    address: int | None  # None: refused
    examined: tuple[int, ...]  # addresses of the holes (buddy: sizes of the lists) looked at, in order
    used: tuple[tuple[int, int, int], ...]  # (address, granted, requested) of every allocation, by address
    holes: tuple[tuple[int, int], ...]  # (address, size) of every hole, by address


class Allocator:
    """What all four share: the books of who owns what.

    `total`: units in all. `trace`: a function that is called with every AllocatorStep; `steps.append` collects them.
    """

    name = "allocator"

    def __init__(self, total: int, trace: Callable[[AllocatorStep], None] | None = None):
        self.total = require_whole("total", total, 1, None, "give the memory at least one unit")
        self.free_total = total  # units in holes
        self.requested_total = 0  # units that the live allocations asked for
        self._trace = trace
        self._owned: dict[int, tuple[int, int]] = {}  # address -> (granted, requested)

    # What a kind of allocator has to say.

    def _take(self, size: int, examined: list[int]) -> tuple[int, int] | None:
        """Remove a range from the holes: (address, granted units), or None with nothing changed."""
        raise NotImplementedError

    def _give_back(self, address: int, granted: int) -> None:
        """Turn the range into a hole and join it with its free neighbours."""
        raise NotImplementedError

    def holes(self) -> list[tuple[int, int]]:
        """Every hole as (address, size), by address."""
        raise NotImplementedError

    @property
    def largest_hole(self) -> int:
        """The largest single request that would succeed now; 0 when memory is full."""
        raise NotImplementedError

    # What the caller uses.

    def allocate(self, size: int) -> int | None:
        """The address of `size` contiguous units, or None (nothing changed) when no hole is large enough.

        Raises AllocationError when `size` is below 1 or beyond the whole memory.
        """
        way_out = "ask for less, or make the memory larger"
        require_whole("size", size, 1, self.total, way_out, AllocationError)
        examined: list[int] = []
        found = self._take(size, examined)
        if found is not None:
            address, granted = found
            self._owned[address] = (granted, size)
            self.free_total -= granted
            self.requested_total += size
        self._record("allocate", size, None if found is None else address, examined)
        return None if found is None else address

    def free(self, address: int) -> None:
        """Give the allocation at `address` back.

        Raises AllocationError when no allocation begins there: it was freed before, or never allocated.
        """
        require_whole("address", address, 0, self.total - 1, "free what allocate returned", AllocationError)
        if address not in self._owned:
            around = [start for start, granted, _ in self.used() if start < address < start + granted]
            hint = f"it lies inside the allocation at {around[0]}: free that" if around else "was it freed before?"
            raise AllocationError(f"no allocation begins at {address} ({len(self._owned)} are live): {hint}")
        granted, requested = self._owned.pop(address)
        self._give_back(address, granted)
        self.free_total += granted
        self.requested_total -= requested
        self._record("free", granted, address, [])

    def used(self) -> list[tuple[int, int, int]]:
        """Every allocation as (address, granted, requested), by address."""
        return [(address, *sizes) for address, sizes in sorted(self._owned.items())]

    @property
    def internal_waste(self) -> int:
        """Units granted beyond what was asked for: only an allocator that rounds up has any."""
        return self.total - self.free_total - self.requested_total

    @property
    def external_fragmentation(self) -> float:
        """The share of free memory outside the largest hole: 1 - largest_hole / free_total; 0 when full."""
        return 1 - self.largest_hole / self.free_total if self.free_total else 0.0

    def check_integrity(self) -> None:
        """Prove that allocations and holes tile the memory, each unit once; else AssertionError with the place."""
        end = 0
        ranges = [(address, granted, "allocation") for address, granted, _ in self.used()]
        for address, size, kind in sorted(ranges + [(*hole, "hole") for hole in self.holes()]):
            if address != end or size < 1:
                raise AssertionError(f"the {kind} at {address} (size {size}) should begin at {end}")
            end = address + size
        if end != self.total:
            raise AssertionError(f"allocations and holes end at {end}, memory at {self.total}")
        if self.free_total != sum(size for _, size in self.holes()):
            raise AssertionError(f"free_total is {self.free_total}, the holes sum to something else")

    def _record(self, operation: str, size: int, address: int | None, examined: list[int]) -> None:
        if self._trace is not None:  # the snapshot costs a walk over memory: only when somebody looks
            used, holes = tuple(self.used()), tuple(self.holes())
            self._trace(AllocatorStep(operation, size, address, tuple(examined), used, holes))


class _HoleList(Allocator):
    """Holes by address in two parallel lists: a search is a short loop, and neighbours are next door."""

    def __init__(self, total: int, trace: Callable[[AllocatorStep], None] | None = None):
        super().__init__(total, trace)
        self._starts = [0]
        self._sizes = [total]
        self._bound = total  # no hole is larger; so a hopeless request is refused without a search

    def _find(self, size: int) -> int | None:
        """The index of the hole that this kind of allocator chooses, or None."""
        raise NotImplementedError

    def _looked_at(self, found: int | None) -> list[int]:
        """Addresses of the holes that a search which ended at index `found` has looked at, in order."""
        raise NotImplementedError

    def _take(self, size: int, examined: list[int]) -> tuple[int, int] | None:
        index = self._find(size) if size <= self._bound else None
        if self._trace is not None:
            examined += self._looked_at(index)
        if index is None:
            self._bound = min(self._bound, size - 1)
            return None
        return self._carve(index, size), size

    def _first_from(self, begin: int, end: int, size: int) -> int | None:
        """The first index in begin … end - 1 whose hole is large enough."""
        for chunk in range(begin, end, 128):
            sizes = self._sizes[chunk : min(chunk + 128, end)]
            if max(sizes) >= size:  # one C call skips 128 holes that are all too small
                return chunk + next(i for i, hole in enumerate(sizes) if hole >= size)
        return None

    def _carve(self, index: int, size: int) -> int:
        """Take the front of a hole; what remains stays a hole."""
        address = self._starts[index]
        if self._sizes[index] == size:
            del self._starts[index], self._sizes[index]
        else:
            self._starts[index] += size
            self._sizes[index] -= size
        return address

    def _give_back(self, address: int, granted: int) -> None:
        starts, sizes = self._starts, self._sizes
        index = bisect_left(starts, address)
        if index and starts[index - 1] + sizes[index - 1] == address:  # the hole before touches this range
            index -= 1
            sizes[index] += granted
        else:
            starts.insert(index, address)
            sizes.insert(index, granted)
        if index + 1 < len(starts) and starts[index] + sizes[index] == starts[index + 1]:
            sizes[index] += sizes.pop(index + 1)
            del starts[index + 1]
        self._bound = max(self._bound, sizes[index])

    def holes(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._sizes, strict=True))

    @property
    def largest_hole(self) -> int:
        return max(self._sizes, default=0)


class FirstFit(_HoleList):
    """The first hole, from address 0 upwards, that is large enough."""

    name = "first fit"

    def _find(self, size: int) -> int | None:
        return self._first_from(0, len(self._sizes), size)

    def _looked_at(self, found: int | None) -> list[int]:
        return self._starts[: len(self._starts) if found is None else found + 1]


class NextFit(_HoleList):
    """First fit that goes on where the last search ended, and wraps around once."""

    name = "next fit"

    def __init__(self, total: int, trace: Callable[[AllocatorStep], None] | None = None):
        super().__init__(total, trace)
        self._rover = 0  # an address, not an index: indices shift when holes merge

    def _begin(self) -> int:
        begin = bisect_left(self._starts, self._rover)
        # A hole that has grown over the rover begins before it: the search goes on with that hole.
        if begin and self._starts[begin - 1] + self._sizes[begin - 1] > self._rover:
            begin -= 1
        return begin

    def _find(self, size: int) -> int | None:
        begin = self._begin()
        found = self._first_from(begin, len(self._sizes), size)
        return self._first_from(0, begin, size) if found is None else found

    def _looked_at(self, found: int | None) -> list[int]:
        begin, count = self._begin(), len(self._starts)
        looked = [(begin + step) % count for step in range(count)]
        return [self._starts[i] for i in (looked if found is None else looked[: looked.index(found) + 1])]

    def _carve(self, index: int, size: int) -> int:
        address = super()._carve(index, size)
        self._rover = address + size
        return address


class BestFit(_HoleList):
    """The smallest hole that is large enough; of equal ones the lowest."""

    name = "best fit"

    def _find(self, size: int) -> int | None:
        best = min(filter(size.__le__, self._sizes), default=None)  # size.__le__(hole) is size <= hole, in C
        return None if best is None else self._sizes.index(best)

    def _looked_at(self, found: int | None) -> list[int]:
        return list(self._starts)
