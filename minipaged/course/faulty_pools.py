"""KV cache managers with one seeded bug each, to grade a learner's tests by mutation (Month 7).

A test is worth what it finds: it must pass on a manager that is right, and fail on one that is wrong. Each bug is
modelled on a real report, or on a rule of vLLM 0.32. Do not use these managers for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from minipaged.course.faulty_caches import KeepsStaleNames
from minipaged.kv_cache import BlockPool, BlockTable, CacheRequest, KVCacheBlock, KVCacheManager, PrefixCache

MakeManager = Callable[[int, int], KVCacheManager]


def _looks_right(kind: type) -> type:
    """Its class's name tells nothing: a test must find a bug by what happens."""
    base = next(base for base in kind.__mro__[1:] if base.__module__.startswith("minipaged.kv_cache"))
    kind.__name__, kind.__qualname__, kind.__module__ = base.__name__, base.__qualname__, base.__module__
    return kind


@_looks_right
class Manager(KVCacheManager):
    """A manager that is right, without its own proof: whoever writes tests here asserts what they see."""

    def check_integrity(self) -> None:
        raise RuntimeError("check_integrity is not there in this exercise: assert what you see, state by state")


# What is right has classes of its own, too, so that no test can tell it by `type(…) is BlockPool`.
@_looks_right
class _Pool(BlockPool): ...


@_looks_right
class _Table(BlockTable): ...


@_looks_right
class _Cache(PrefixCache): ...


@_looks_right
class _Stale(KeepsStaleNames): ...


def _maker(
    manager: type[KVCacheManager] = Manager,
    pool: type[BlockPool] = _Pool,
    block_table: type[BlockTable] = _Table,
    prefix_cache: type[PrefixCache] = _Cache,
) -> MakeManager:
    def make_manager(num_blocks: int, block_size: int) -> KVCacheManager:
        """A new manager with an empty cache."""
        blocks = pool(num_blocks, prefix_cache=prefix_cache())
        return manager(num_blocks, block_size, pool=blocks, block_table=block_table)

    return make_manager


make_manager = _maker()
"""A manager without a bug."""


@_looks_right
class _FreesTwice(BlockPool):
    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        super().free_blocks([block for block in blocks if block.ref_cnt > 0])


@_looks_right
class _IgnoresReaders(BlockPool):
    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        blocks = [block for block in blocks if block.ref_cnt > 0]  # the last reader comes when all is over
        for block in blocks:
            block.ref_cnt = 1
        super().free_blocks(blocks)


@_looks_right
class _EvictsEarly(BlockPool):
    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        blocks = list(blocks)
        super().free_blocks(blocks)
        named = [block for block in blocks if block.ref_cnt == 0 and block.block_hash is not None]
        self.free_queue.remove_n(named)
        self.free_queue.prepend_n(named)


@_looks_right
class _LosesTheTail(Manager):
    def free(self, request: CacheRequest) -> None:
        table = self._tables.get(request.request_id)
        if table is not None and request.num_tokens % self.block_size:
            table.blocks.pop()
        super().free(request)


@_looks_right
class _HeadFirst(Manager):
    def free(self, request: CacheRequest) -> None:
        table = self._tables.get(request.request_id)
        if table is not None:
            table.blocks.reverse()
        super().free(request)


@_looks_right
class _KeepsHalf(Manager):
    def allocate_slots(
        self,
        request: CacheRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Sequence[KVCacheBlock] | None = None,
    ) -> list[KVCacheBlock] | None:
        got = super().allocate_slots(request, num_new_tokens, num_new_computed_tokens, new_computed_blocks)
        if got is None:
            self.pool.get_new_blocks(self.pool.num_free_blocks)
        return got


@_looks_right
class _OneSlotOff(BlockTable):
    def slot_mapping(self, start: int, stop: int) -> list[int]:
        size = self.block_size
        return [self.blocks[max(0, p - 1) // size].block_id * size + p % size for p in range(start, stop)]


class Bug(NamedTuple):
    """A seeded bug: how a manager with it is made, and what to ask a test that does not see it."""

    make: MakeManager
    question: str


BUGS: dict[str, Bug] = {
    "lost block": Bug(
        _maker(_LosesTheTail),
        "Count the free blocks before a request and after its end. Also when its last block is not full?",
    ),
    "double free": Bug(_maker(pool=_FreesTwice), "What must the pool say when the same block is given back once more?"),
    "off-by-one slot": Bug(
        _maker(block_table=_OneSlotOff),
        "At which positions does a new block begin, and what is the slot of exactly these positions?",
    ),
    "stale hash": Bug(
        _maker(prefix_cache=_Stale),
        "A content was cached, and then every block was handed out to somebody else. What may a lookup find?",
    ),
    "early eviction": Bug(
        _maker(pool=_EvictsEarly),
        "A request has ended and a small one comes. Are there better blocks to take than those that are cached?",
    ),
    "wrong order": Bug(
        _maker(_HeadFirst),
        "A request of several full blocks has ended. Which of them must be handed out first, head or tail?",
    ),
    "shared block freed": Bug(
        _maker(pool=_IgnoresReaders),
        "Two requests share blocks, and one of them ends. What may happen to these blocks?",
    ),
    "half a refusal": Bug(_maker(_KeepsHalf), "allocate_slots returns None. Is everything as it was before the call?"),
}
"""The bugs, the plainest first; the names are never shown to a learner before their test has found them."""
