"""What each program of a kernel touches: the referee's own records, kept program by program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from minipaged.attention.judge import Case
from minipaged.attention.referee import Referee

Program = tuple[int, int, int]


@dataclass
class Access:
    """One load or store: ``coordinates`` of its different elements, an array for each axis of the tensor."""

    program: Program
    kind: str  # "load" or "store"
    tensor: str
    coordinates: tuple[np.ndarray, ...]

    @property
    def count(self) -> int:
        return len(self.coordinates[0])


class Trace(Referee):
    """A referee that also remembers every access, in the order in which the interpreter ran the programs."""

    def __init__(self) -> None:
        super().__init__()
        self.accesses: list[Access] = []

    def observe(self, kind: str, name: str, coordinates: tuple[np.ndarray, ...], program: Program) -> None:
        self.accesses.append(Access(tuple(map(int, program)), kind, name, coordinates))

    @property
    def programs(self) -> list[Program]:
        """The programs of all launches, in the order in which they ran."""
        return list(dict.fromkeys(access.program for access in self.accesses))

    def reads(self, program: Program, tensor: str, shape: tuple[int, ...]) -> np.ndarray:
        """int [num_blocks, block_size, num_kv_heads]: how many elements of each row of a cache the program loads."""
        counts = np.zeros(shape[:3], int)
        for access in self.accesses:
            if (access.program, access.kind, access.tensor) == (program, "load", tensor):
                np.add.at(counts, access.coordinates[:3], 1)
        return counts


def trace(attend: Callable[..., Tensor], batch: Case) -> Trace:
    """Run ``attend(query, k_cache, v_cache, metadata, scale)`` under a `Trace`."""
    watcher = Trace()
    watcher.watch("query", batch.query)
    watcher.watch("k_cache", batch.k_cache, batch.written)
    watcher.watch("v_cache", batch.v_cache, batch.written)
    for name in ("block_tables", "seq_lens", "query_start_loc"):
        watcher.watch(name, getattr(batch.metadata, name))
    with watcher:
        attend(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale)
    return watcher
