"""Requests that come and go in contiguous memory, for the pictures of holes over time."""

import random
from dataclasses import dataclass

from minipaged.os_paging.allocators import allocator
from minipaged.os_paging.errors import require_whole


@dataclass(frozen=True)
class Churn:
    """What a run over one allocator showed. The lists have one value a request."""

    free: list[int]  # units in holes after the request
    largest_hole: list[int]
    refused: int  # requests that found no hole
    refused_with_room: int  # … though the free total would have sufficed
    internal_waste: int  # units at the end, inside allocations


def churn(fit: str, total: int = 1024, requests: int = 500, seed: int = 0, largest: int = 96, stay: int = 14) -> Churn:
    """`requests` of 1 … `largest` units; each stays for about `stay` further requests, then it is freed.

    The same seed gives every allocator the same requests. Raises ValueError for an unknown allocator.
    """
    require_whole("largest", largest, 1, total, "a request is not larger than the memory")
    require_whole("stay", stay, 1, None, "a request stays for at least one further request")
    memory, rng = allocator(fit, total), random.Random(seed)
    leaving: dict[int, list[int]] = {}  # when -> addresses
    free, largest_hole, refused, with_room = [], [], 0, 0
    for now in range(requests):
        for address in leaving.pop(now, []):
            memory.free(address)
        size, until = rng.randint(1, largest), now + 1 + rng.randrange(2 * stay)
        room = memory.free_total >= size
        address = memory.allocate(size)
        if address is None:
            refused += 1
            with_room += room
        else:
            leaving.setdefault(until, []).append(address)
        free.append(memory.free_total)
        largest_hole.append(memory.largest_hole)
    return Churn(free, largest_hole, refused, with_room, memory.internal_waste)
