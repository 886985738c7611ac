"""Copies that copy-on-write has ordered and nobody has done yet."""

from collections.abc import Sequence

from minipaged.kv_cache.block import KVCacheBlock


class PendingCopies:
    """Block copies (source → destination) between `allocate_slots` and `take_copies`.

    A request can be freed in between. Then a source must stay untouched until it was read, so it is held here
    instead of going back to the pool; and a destination that nobody wants any more drops its copy.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        self.held: list[KVCacheBlock] = []

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def add(self, source: KVCacheBlock, destination: KVCacheBlock) -> None:
        """Order one copy."""
        self._pairs.append((source, destination))

    def release(self, blocks: Sequence[KVCacheBlock]) -> list[KVCacheBlock]:
        """From blocks that lose one user each, those that may go to the pool now; the other sources are held."""
        last_use = {block.block_id for block in blocks if block.ref_cnt == 1}
        self._pairs = [pair for pair in self._pairs if pair[1].block_id not in last_use]
        sources = {source.block_id for source, _ in self._pairs}
        keep = last_use & sources
        self.held += [block for block in blocks if block.block_id in keep]
        return [block for block in blocks if block.block_id not in keep]

    def take(self) -> tuple[list[tuple[int, int]], list[KVCacheBlock]]:
        """The ordered copies as pairs of ids, and the held sources, which are free to go. Both start anew."""
        pairs = [(source.block_id, destination.block_id) for source, destination in self._pairs]
        held, self.held, self._pairs = self.held, [], []
        return pairs, held
