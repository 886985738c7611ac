"""The contiguous allocators by name, for lessons and experiments that compare them."""

from minipaged.os_paging.buddy import Buddy
from minipaged.os_paging.contiguous import Allocator, BestFit, FirstFit, NextFit

ALLOCATORS: dict[str, type[Allocator]] = {kind.name: kind for kind in (FirstFit, BestFit, NextFit, Buddy)}


def allocator(name: str, total: int, **options) -> Allocator:
    """An allocator by name: "first fit", "best fit", "next fit", "buddy". Raises ValueError for another name."""
    if name not in ALLOCATORS:
        raise ValueError(f"there is no allocator {name!r}: choose one of {', '.join(map(repr, ALLOCATORS))}")
    return ALLOCATORS[name](total, **options)
