"""Four managers with one faulty line each, for the bug hunt of Month 2. Each fault is modelled on a real report.

`hunt` lets one of them serve two samples of a prompt and a newcomer, and proves after every move that the pool is
whole and that each slot holds the token that its request expects there. Do not use these managers elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from minipaged.course.errors import CourseError
from minipaged.kv_cache import BlockTable, CacheRequest, IntegrityError, KVCacheManager

BLOCK_SIZE = 4


class Ledger:
    """A memory that holds token ids instead of K and V, so that a wrong slot can be seen."""

    def __init__(self, num_blocks: int) -> None:
        self.slots: list[int | None] = [None] * (num_blocks * BLOCK_SIZE)

    def write(self, slots: Sequence[int], token_ids: Sequence[int]) -> None:
        for slot, token in zip(slots, token_ids, strict=True):
            self.slots[slot] = token

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            block = self.slots[source * BLOCK_SIZE : (source + 1) * BLOCK_SIZE]
            self.slots[destination * BLOCK_SIZE : (destination + 1) * BLOCK_SIZE] = block

    def check(self, manager: KVCacheManager, request: CacheRequest) -> None:
        """Every computed token of the request lies where its block table says. Raises IntegrityError if not."""
        table = manager.block_ids(request.request_id)
        for position, token in enumerate(request.token_ids[: request.num_computed_tokens]):
            block, offset = table[position // BLOCK_SIZE], position % BLOCK_SIZE
            found = self.slots[block * BLOCK_SIZE + offset]
            if found != token:
                held = "nothing" if found is None else f"token {found}"
                raise IntegrityError(
                    f"{request.request_id}, position {position}: block {block}, offset {offset} holds {held}, but "
                    f"token {token} was written at this position"
                )


class Worker(KVCacheManager):
    """The manager with the worker's part of a step: write the new tokens of one request into the ledger."""

    def __init__(self) -> None:
        super().__init__(num_blocks=9, block_size=BLOCK_SIZE, enable_caching=False, free_order=[7, 1, 3, 5, 2])
        self.ledger = Ledger(num_blocks=9)

    def run(self, request: CacheRequest) -> None:
        start, stop = request.num_computed_tokens, request.num_tokens
        self.allocate_slots(request, stop - start)
        slots = self.block_table(request.request_id).slot_mapping(start, stop)
        self.ledger.copy(self.take_copies())
        self.ledger.write(slots, request.token_ids[start:stop])
        request.num_computed_tokens = stop


class BugA(Worker):
    def fork(self, parent: CacheRequest, child: CacheRequest) -> None:
        table = self._new_table(self.block_size)
        blocks = self.block_table(parent.request_id).blocks
        self.pool.touch(blocks[:-1])
        table.append_blocks(blocks)
        self._tables[child.request_id] = table
        self._num_hashed_blocks[child.request_id] = 0
        child.num_computed_tokens = parent.num_computed_tokens


class BugB(Worker):
    def free(self, request: CacheRequest) -> None:
        table = self._tables.get(request.request_id)
        if table is None:
            return
        blocks = list(reversed(table.blocks))
        self.pool.free_blocks(blocks)


class BugC(Worker):
    def run(self, request: CacheRequest) -> None:
        start, stop = request.num_computed_tokens, request.num_tokens
        self.allocate_slots(request, stop - start)
        slots = self.block_table(request.request_id).slot_mapping(start, stop)
        self.ledger.write(slots, request.token_ids[start:stop])
        self.ledger.copy(self.take_copies())
        request.num_computed_tokens = stop


class _TableD(BlockTable):
    def slot_mapping(self, start: int, stop: int) -> list[int]:
        slots = []
        for position in range(start, stop):
            logical = max(0, position - 1) // self.block_size
            offset = position % self.block_size
            slots.append(self.blocks[logical].block_id * self.block_size + offset)
        return slots


class BugD(Worker):
    def __init__(self) -> None:
        super().__init__()
        self._new_table = _TableD


# bug → (class, the method with the fault, a text that only the faulty line has)
BUGS: dict[str, tuple[type[Worker], Callable, str]] = {
    "A": (BugA, BugA.fork, "blocks[:-1]"),
    "B": (BugB, BugB.free, "self._tables.get("),
    "C": (BugC, BugC.run, "self.ledger.copy("),
    "D": (BugD, _TableD.slot_mapping, "position - 1"),
}


def scenario(manager: Worker) -> list[str]:
    """Serve two samples and a newcomer; prove everything after each move. Returns what was done.

    Raises IntegrityError, with the move in a note, when a rule is broken.
    """
    first, second = CacheRequest("A1", list(range(10, 17))), CacheRequest("A2", list(range(10, 17)))
    newcomer = CacheRequest("B", [40, 41, 42, 43, 44])

    def goes_on(request: CacheRequest, token: int) -> Callable[[], None]:
        return lambda: (request.append_token(token), manager.run(request))

    moves: list[tuple[str, Callable[[], object]]] = [
        ("A1 runs its prompt of 7 tokens (10 … 16)", lambda: manager.run(first)),
        ("A2 is forked from A1", lambda: manager.fork(first, second)),
        ("A1 writes token 20", goes_on(first, 20)),
        ("A2 writes token 30", goes_on(second, 30)),
        ("A1 writes token 21", goes_on(first, 21)),
        ("A1 ends and is freed", lambda: manager.free(first)),
        ("B runs its prompt of 5 tokens (40 … 44)", lambda: manager.run(newcomer)),
        ("A2 writes token 31", goes_on(second, 31)),
    ]
    done: list[str] = []
    alive: list[CacheRequest] = []
    for words, move in moves:
        done.append(words)
        try:
            move()
            manager.check_integrity()
            alive = [r for r in (first, second, newcomer) if manager.has_blocks(r.request_id)]
            for request in alive:
                manager.ledger.check(manager, request)
        except (IntegrityError, ValueError, IndexError) as error:
            tables = ", ".join(f"{r.request_id} {manager.block_ids(r.request_id)}" for r in (first, second, newcomer))
            error.add_note(f"at the move: {words}; tables: {tables}")
            raise
    return done


def listing(bug: str) -> list[str]:
    """The lines of the method with the fault; line 1 is its `def`."""
    lines = inspect.getsource(_bug(bug)[1]).splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return [line[indent:] for line in lines]


def faulty_line(bug: str) -> int:
    """The number of the faulty line in `listing(bug)`."""
    return next(n for n, line in enumerate(listing(bug), start=1) if _bug(bug)[2] in line)


def hunt(bug: str) -> None:
    """Run the scenario on bug "A", "B", "C" or "D"; print the method, its lines numbered, and the error."""
    for number, line in enumerate(listing(bug), start=1):
        print(f"{number:2}  {line}")
    try:
        scenario(_bug(bug)[0]())
    except (IntegrityError, ValueError, IndexError) as error:
        print(f"\n{type(error).__name__}: {error}", *error.__notes__, sep="\n")
    else:
        raise AssertionError(f"bug {bug} was not found: its scenario ended without an error")


def _bug(bug: str) -> tuple[type[Worker], Callable, str]:
    try:
        return BUGS[bug]
    except (KeyError, TypeError):
        raise CourseError(f"there is no bug {bug!r}; the bugs are {', '.join(BUGS)}") from None
