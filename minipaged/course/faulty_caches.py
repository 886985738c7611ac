"""Four KV cache managers with one fault each, for the bug hunt of Month 3. Each fault has been reported for real.

Do not use them for anything else: each serves wrong KV, or loses blocks, in some case.
"""

from collections.abc import Callable, Sequence

from minipaged.kv_cache import CacheRequest, KVCacheBlock, KVCacheManager, PrefixCache

MakeManager = Callable[[int, int], KVCacheManager]


class KeepsStaleNames(PrefixCache):
    """Remembers where a content lay, also when the block has long been given to somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[bytes, KVCacheBlock] = {}

    def insert(self, block_hash: bytes, block: KVCacheBlock) -> None:
        super().insert(block_hash, block)
        self._seen[block_hash] = block

    def lookup(self, block_hash: bytes) -> KVCacheBlock | None:
        return super().lookup(block_hash) or self._seen.get(block_hash)


class UnchainedPrefixCache(PrefixCache):
    """Names a block by its own tokens only."""

    def __init__(self) -> None:
        super().__init__()
        chained = self.hash_block
        self.hash_block = lambda parent_hash, token_ids, keys=None: chained(None, token_ids, keys)


class _HitsTheLastToken(KVCacheManager):
    """Takes all n tokens of a prompt from the cache where n is a multiple of the block size."""

    def get_computed_blocks(self, request: CacheRequest) -> tuple[list[KVCacheBlock], int]:
        one_longer = CacheRequest(
            request.request_id, [*request.token_ids, 0], cache_salt=request.cache_salt, adapter=request.adapter
        )
        return super().get_computed_blocks(one_longer)


class _KeepsTheCount(KVCacheManager):
    """Touches the hits before it knows whether there is room, and does not undo it when there is not."""

    def allocate_slots(
        self,
        request: CacheRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Sequence[KVCacheBlock] | None = None,
    ) -> list[KVCacheBlock] | None:
        hits = list(new_computed_blocks or ())
        self.pool.touch(hits)
        got = super().allocate_slots(request, num_new_tokens, num_new_computed_tokens, hits)
        if got is not None:
            for block in hits:
                block.ref_cnt -= 1  # touched twice, counted once
        return got


RULES = ("stale hash", "unchained hash", "hit beyond n - 1", "count not restored")
"""What can be broken, in the words of the exercise."""

FAULTY: dict[str, MakeManager] = {
    "stale hash": lambda blocks, size: KVCacheManager(blocks, size, prefix_cache=KeepsStaleNames()),
    "unchained hash": lambda blocks, size: KVCacheManager(blocks, size, prefix_cache=UnchainedPrefixCache()),
    "hit beyond n - 1": _HitsTheLastToken,
    "count not restored": _KeepsTheCount,
}
"""Rule → a function (number of blocks, block size) that makes a manager which breaks just that rule."""
