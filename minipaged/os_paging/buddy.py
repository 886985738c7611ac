"""The buddy allocator: rounding up to powers of two makes joining neighbours one XOR."""

from bisect import bisect_left, insort
from collections.abc import Callable

from minipaged.os_paging.contiguous import Allocator, AllocatorStep
from minipaged.os_paging.errors import require_power_of_two


class Buddy(Allocator):
    """Blocks whose sizes are powers of two; a block splits into two buddies, and free buddies join again.

    A block of size s begins at a multiple of s, so its buddy's address is address XOR s. A request is rounded up to
    the next power of two: fast to join, but nearly half of a block may be internal waste. `total` need not be a power
    of two: then memory begins as one block for each bit of `total` (100 units: 64, 32 and 4).

    `min_block`: the smallest block, a power of two. Source: Knowlton, CACM 8(10), 1965.
    """

    name = "buddy"

    def __init__(self, total: int, min_block: int = 1, trace: Callable[[AllocatorStep], None] | None = None):
        super().__init__(total, trace)
        self.min_block = require_power_of_two("min_block", min_block)
        if total % min_block:
            raise ValueError(
                f"total is {total}, not a multiple of min_block {min_block}: "
                f"use {total // min_block * min_block or min_block}, or a smaller min_block"
            )
        self._free: dict[int, list[int]] = {}  # block size -> addresses of free blocks, sorted
        size, address = min_block, 0
        while size <= total:
            self._free[size] = []
            size *= 2
        for size in sorted(self._free, reverse=True):
            if total & size:
                self._free[size].append(address)
                address += size

    def _take(self, size: int, examined: list[int]) -> tuple[int, int] | None:
        wanted = max(self.min_block, 1 << (size - 1).bit_length())
        block = wanted
        while block in self._free and not self._free[block]:
            examined.append(block)
            block *= 2
        if block not in self._free:
            return None
        examined.append(block)
        address = self._free[block].pop(0)
        while block > wanted:  # split, keep the lower half, leave the upper buddy free
            block //= 2
            insort(self._free[block], address + block)
        return address, wanted

    def _give_back(self, address: int, granted: int) -> None:
        size = granted
        while size in self._free:
            buddy, free = address ^ size, self._free[size]
            index = bisect_left(free, buddy)
            if index == len(free) or free[index] != buddy:
                break
            del free[index]
            address, size = min(address, buddy), 2 * size
        insort(self._free[size], address)

    def holes(self) -> list[tuple[int, int]]:
        """Every free block as (address, size). Two neighbours that are not buddies stay two holes."""
        return sorted((address, size) for size, free in self._free.items() for address in free)

    @property
    def largest_hole(self) -> int:
        return max((size for size, free in self._free.items() if free), default=0)
