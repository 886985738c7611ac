"""Who owns each slot of KV memory? Six answers that always sum to the pool.

The names are the paper's (Kwon et al., SOSP 2023, §3 and Fig. 2).
"""

from typing import NamedTuple


class Parts(NamedTuple):
    """Slots of the pool by what they are used for.

    tokens: hold the KV of a token (a shared prefix counts once).
    duplicate: hold KV that lies elsewhere in the pool too and could be shared.
    reservation: empty now, will hold a token of the request that owns them.
    internal: owned by a request that will never use them, or the empty end of its last block.
    external: owned by nobody and no use to the request that waits, or lost to an allocator's rounding.
    free: owned by nobody, and can be handed out.
    """

    tokens: int
    duplicate: int
    reservation: int
    internal: int
    external: int
    free: int

    @property
    def total(self) -> int:
        """All slots: the size of the pool."""
        return sum(self)


class Average:
    """The time average of `Parts`, step by step, in constant memory and exact integers."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums = [0] * len(Parts._fields)
        self._running = 0

    def add(self, parts: Parts, running: int, moving_from: int, steps: int) -> None:
        """Count `steps` steps that begin at `parts`, in each of which `running` requests gain one token.

        The slots for these tokens come out of the part with index `moving_from`: between two events nothing else moves.
        """
        for index, slots in enumerate(parts):
            self._sums[index] += slots * steps
        moved = running * steps * (steps - 1) // 2
        self._sums[0] += moved
        self._sums[moving_from] -= moved
        self._running += running * steps
        self.steps += steps

    @property
    def parts(self) -> tuple[float, ...]:
        """Mean slots of each part, in the order of `Parts`; zeros before the first step."""
        return tuple(total / self.steps if self.steps else 0.0 for total in self._sums)

    @property
    def shares(self) -> dict[str, float]:
        """Mean shares of the pool in percent, by name."""
        whole = sum(self._sums)
        return {name: 100 * s / whole if whole else 0.0 for name, s in zip(Parts._fields, self._sums, strict=True)}

    @property
    def running(self) -> float:
        """Mean number of requests in the batch."""
        return self._running / self.steps if self.steps else 0.0
