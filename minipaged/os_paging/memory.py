"""Physical memory in frames, the swap area behind it, and what is in them."""

from dataclasses import dataclass, field

from minipaged.os_paging.errors import AllocationError, require_whole


@dataclass(eq=False)
class PageContent:
    """The bytes of one page, wherever they are now: in a frame, in a swap slot, or still in the file.

    `mappers` are the page-table entries that lead here, as (pid, page); their number is the reference count.
    """

    source: bytes = b""  # what the file holds; zeros follow
    frame: int | None = None
    slot: int | None = None
    dirty: bool = False  # differs from the file: it may not be dropped without saving it
    mappers: set[tuple[int, int]] = field(default_factory=set)

    @property
    def ref_cnt(self) -> int:
        """How many page-table entries map this content."""
        return len(self.mappers)


class _Store:
    """`count` places of one page each. Which are free is all it knows."""

    place = "place"

    def __init__(self, count: int, page_size: int, low: int):
        self.count = require_whole(f"num_{self.place}s", count, low, None, f"count the {self.place}s from {low}")
        self.page_size = page_size
        self._data = [bytearray(page_size) for _ in range(count)]
        self._free = list(range(count - 1, -1, -1))  # a stack, so that place 0 is handed out first
        self._is_free = [True] * count

    @property
    def num_free(self) -> int:
        """Places that nobody uses."""
        return len(self._free)

    def allocate(self) -> int | None:
        """A free place, or None when all are taken."""
        if not self._free:
            return None
        place = self._free.pop()
        self._is_free[place] = False
        return place

    def free(self, place: int) -> None:
        """Give a place back. Raises AllocationError when it is free already or does not exist."""
        self._require_used(place)
        self._is_free[place] = True
        self._free.append(place)

    def is_free(self, place: int) -> bool:
        """Does nobody use `place`?"""
        return self._is_free[place]

    def data(self, place: int) -> bytearray:
        """The bytes of a place in use. Raises AllocationError for a free one."""
        self._require_used(place)
        return self._data[place]

    def _require_used(self, place: int) -> None:
        way_out = f"use a {self.place} that allocate returned"
        require_whole(self.place, place, 0, self.count - 1, way_out, AllocationError)
        if self._is_free[place]:
            raise AllocationError(f"{self.place} {place} is free ({self.num_free} of {self.count} are): {way_out}")


class Frames(_Store):
    """Physical memory: `count` frames of `page_size` bytes."""

    place = "frame"

    def __init__(self, count: int, page_size: int):
        super().__init__(count, page_size, low=1)


class Swap(_Store):
    """The swap area on disk: `count` slots of one page each; 0 slots mean that there is none."""

    place = "slot"

    def __init__(self, count: int, page_size: int):
        super().__init__(count, page_size, low=0)
