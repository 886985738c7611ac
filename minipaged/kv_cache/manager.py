"""The KV cache manager: it gives orders about blocks and never touches a tensor.

Source: vLLM 0.32, vllm/v1/core/kv_cache_manager.py (get_computed_blocks, allocate_slots, free) for the prefix cache;
Kwon et al., SOSP 2023, §4.3–4.4 for fork and copy-on-write, which vLLM V1 no longer has.
"""

from collections.abc import Callable, Sequence

from minipaged.kv_cache.block import KVCacheBlock
from minipaged.kv_cache.block_pool import BlockPool, IntegrityError
from minipaged.kv_cache.block_table import BlockTable
from minipaged.kv_cache.copies import PendingCopies
from minipaged.kv_cache.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from minipaged.kv_cache.hashing import extra_keys
from minipaged.kv_cache.misses import MissRecorder, WhyNoHit, explain_miss
from minipaged.kv_cache.prefix_cache import PrefixCache
from minipaged.kv_cache.protocols import BlockPoolProtocol, BlockTableProtocol
from minipaged.kv_cache.request import CacheRequest
from minipaged.kv_cache.statistics import PrefixCacheStats


class KVCacheManager:
    """Block tables for requests, over one pool.

    Args:
        num_blocks, block_size: the pool; `block_size` is in tokens.
        enable_caching: reuse the blocks of equal prefixes.
        null_block: reserve block 0, as vLLM does.
        pool: a pool of your own instead of a `BlockPool`.
        block_table: the class of the tables, called with the block size.
        prefix_cache: a prefix cache of your own, for the `BlockPool`.
        free_order: block ids to be handed out first (see `BlockPool`).
        hash_algorithm, hash_seed: how block contents are named (see `hashing.BlockHasher`).
        enable_events: keep what was stored and removed, for `take_events`.
        explain_misses: remember names of lost contents, so that `why_no_hit` can tell "evicted" and "other salt".
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_caching: bool = True,
        null_block: bool = False,
        pool: BlockPoolProtocol | None = None,
        block_table: Callable[[int], BlockTableProtocol] = BlockTable,
        prefix_cache: PrefixCache | None = None,
        free_order: Sequence[int] | None = None,
        hash_algorithm: str = "sha256",
        hash_seed: str | None = None,
        enable_events: bool = False,
        explain_misses: bool = False,
    ) -> None:
        if not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size is {block_size!r}; it must be a whole number of at least 1 token")
        if pool is None:
            if prefix_cache is None and enable_caching:
                prefix_cache = PrefixCache(hash_algorithm, hash_seed)
            pool = BlockPool(num_blocks, enable_caching, null_block, prefix_cache, free_order)
        elif enable_caching and getattr(pool, "prefix_cache", None) is None:
            raise ValueError(
                f"{type(pool).__name__} has no prefix_cache, so equal prefixes cannot be found; give the pool an "
                "attribute prefix_cache, or pass enable_caching=False"
            )
        self.pool = pool
        self.block_size = block_size
        self.enable_caching = enable_caching
        self._new_table = block_table
        self._tables: dict[str, BlockTableProtocol] = {}
        self._num_hashed_blocks: dict[str, int] = {}  # per request: so many blocks of its table are in the cache
        self._copies = PendingCopies()
        self.prefix_stats = PrefixCacheStats()
        self._events: list[CacheEvent] | None = [] if enable_events else None
        self._misses = MissRecorder(limit=20 * num_blocks) if explain_misses else None
        if enable_events or explain_misses:
            pool.on_evict = lambda block_hash: self._emit(BlockRemoved(block_hash))

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def num_free_blocks(self) -> int:
        """Blocks that could be allocated now."""
        return self.pool.num_free_blocks

    @property
    def num_usable_blocks(self) -> int:
        """All blocks of the pool but the null block."""
        return getattr(self.pool, "num_usable_blocks", self.pool.num_blocks)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1. Cached blocks without a user count as free."""
        return 1.0 - self.num_free_blocks / self.num_usable_blocks

    def block_table(self, request_id: str) -> BlockTableProtocol:
        """The table of a request that has slots. Raises KeyError for any other."""
        try:
            return self._tables[request_id]
        except KeyError:
            raise KeyError(f"request {request_id!r} has no block table; allocate_slots gives it one") from None

    def block_ids(self, request_id: str) -> list[int]:
        """The physical block numbers of a request, in logical order; empty when it has none."""
        table = self._tables.get(request_id)
        return [block.block_id for block in table.blocks] if table is not None else []

    def has_blocks(self, request_id: str) -> bool:
        """Whether the request has a block table now."""
        return request_id in self._tables

    # ── the prefix cache ─────────────────────────────────────────────────────────────────────────────────────

    def get_computed_blocks(self, request: CacheRequest) -> tuple[list[KVCacheBlock], int]:
        """The longest cached prefix: (its blocks, how many tokens they hold). Changes nothing but the request's hashes.

        Only full blocks can hit, and at most `num_tokens - 1` tokens: the last token must run to give logits.
        """
        if not self.enable_caching:
            return [], 0
        self._hash_full_blocks(request, request.num_tokens)
        lookup = self.pool.prefix_cache.lookup
        hits: list[KVCacheBlock] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = lookup(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits, len(hits) * self.block_size

    def _hash_full_blocks(self, request: CacheRequest, num_tokens: int) -> None:
        """Extend `request.block_hashes` to all full blocks of the first `num_tokens` tokens; each is hashed once."""
        size, hashes = self.block_size, request.block_hashes
        hash_block = self.pool.prefix_cache.hash_block
        for index in range(len(hashes), num_tokens // size):
            start, stop = index * size, (index + 1) * size
            parent = hashes[-1] if hashes else None
            keys = extra_keys(request, start, stop)
            hashes.append(hash_block(parent, request.token_ids[start:stop], keys))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content, as after new weights. Refused (False) while any block is in use."""
        done = self.pool.reset_prefix_cache()
        if done:
            self._emit(AllBlocksCleared())
        return done

    def uncache(self, request: CacheRequest, from_token: int) -> None:
        """Forget the hashes of this request's blocks from the one that holds `from_token` on.

        Blocks are hashed when slots are allocated, before the model has run. If it then does not run (an error, a
        preemption, an abort), their K and V were never written, and nobody may find them.
        """
        if from_token < 0:
            raise ValueError(f"from_token is {from_token}; token positions start at 0")
        table = self._tables.get(request.request_id)
        if table is None or not self.enable_caching:
            return
        first = from_token // self.block_size
        for block in table.blocks[first:]:
            if block.block_hash is not None:
                self._emit(BlockRemoved(block.block_hash))
                self.pool.prefix_cache.remove(block)
        hashed = self._num_hashed_blocks[request.request_id]
        self._num_hashed_blocks[request.request_id] = min(hashed, first)

    def take_events(self) -> list[CacheEvent]:
        """What was stored, removed or cleared since the last call. Needs `enable_events=True`."""
        if self._events is None:
            raise ValueError("events are off; make the manager with enable_events=True to keep them")
        events, self._events = self._events, []
        return events

    def _emit(self, event: CacheEvent) -> None:
        if self._events is not None:
            self._events.append(event)
        if self._misses is not None:
            self._misses.observe([event])

    def why_no_hit(self, request: CacheRequest) -> WhyNoHit:
        """Where a lookup for this request ends, and why. Changes nothing but the request's hashes.

        With `explain_misses=True` it also tells a lost content from one that was never there.
        """
        return explain_miss(self, request, self._misses)

    # ── slots ────────────────────────────────────────────────────────────────────────────────────────────────

    def allocate_slots(
        self,
        request: CacheRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Sequence[KVCacheBlock] | None = None,
    ) -> list[KVCacheBlock] | None:
        """Make room for the next `num_new_tokens` tokens of a request, after its computed ones.

        `new_computed_blocks` with `num_new_computed_tokens` is what `get_computed_blocks` found, given once, when the
        request starts. Returns the newly taken blocks (an empty list when the last block had room), or None when the
        pool is short of blocks; then nothing has changed.

        A block that will be written and is shared (`ref_cnt` above 1) is replaced by a new one; `take_copies` reports
        the copy. `request.num_computed_tokens` stays as it is: the caller advances it when the tokens have run.
        """
        hits = new_computed_blocks or ()
        self._check_allocation(request, num_new_tokens, num_new_computed_tokens, hits)
        table = self._tables.get(request.request_id)
        if table is None:
            table = self._new_table(self.block_size)
        start = request.num_computed_tokens + num_new_computed_tokens
        stop = start + num_new_tokens
        shared = self._shared_blocks_to_write(table, start, stop)
        missing = max(0, table.num_missing_blocks(stop) - len(hits))
        # A hit that nobody uses stands in the free queue: it will leave the queue too.
        unused_hits = sum(block.ref_cnt == 0 for block in hits)
        if missing + len(shared) > self.pool.num_free_blocks - unused_hits:
            return None

        # From here on only a table of a learner's own can fail. Hits first: touched blocks can no longer be handed out.
        if hits:
            self.pool.touch(hits)
        new_blocks = self.pool.get_new_blocks(missing + len(shared)) if missing or shared else []
        try:
            if hits:
                table.append_blocks(hits)
            for index, replacement in zip(shared, new_blocks, strict=False):
                source = table.replace_block(index, replacement)
                self._copies.add(source, replacement)
                self.pool.free_blocks([source])
            if missing:
                table.append_blocks(new_blocks[len(shared) :])
        except BaseException:
            self._give_back([*hits, *new_blocks], table, request)
            raise
        if request.request_id not in self._tables:
            self._tables[request.request_id] = table
            self._num_hashed_blocks[request.request_id] = len(hits)
            self.prefix_stats.record(request.num_tokens, num_new_computed_tokens, again=request.was_scheduled)
            request.was_scheduled = True
        if self.enable_caching:
            self._cache_full_blocks(request, table, min(stop, request.num_tokens))
        return new_blocks

    def _give_back(self, taken: Sequence[KVCacheBlock], table: BlockTableProtocol, request: CacheRequest) -> None:
        """Free the blocks that a failing table did not take; a request without a table yet keeps none of them."""
        kept = {id(block) for block in table.blocks} if request.request_id in self._tables else set()
        self.pool.free_blocks([block for block in reversed(taken) if id(block) not in kept])

    def _check_allocation(
        self, request: CacheRequest, num_new_tokens: int, num_hit_tokens: int, hits: Sequence[KVCacheBlock]
    ) -> None:
        if not isinstance(num_new_tokens, int) or num_new_tokens < 1:
            raise ValueError(
                f"num_new_tokens is {num_new_tokens!r} for request {request.request_id!r}; it must be a whole number: "
                "allocate for at least 1 token"
            )
        if num_hit_tokens != len(hits) * self.block_size:
            raise ValueError(
                f"num_new_computed_tokens is {num_hit_tokens}, but {len(hits)} computed blocks of {self.block_size} "
                f"hold {len(hits) * self.block_size}; pass on both values of get_computed_blocks"
            )
        if hits and request.request_id in self._tables:
            raise ValueError(
                f"request {request.request_id!r} already has a block table, so cached blocks cannot be put in front; "
                "pass them with the first allocation only"
            )

    def _shared_blocks_to_write(self, table: BlockTableProtocol, start: int, stop: int) -> list[int]:
        """Logical blocks that tokens `start … stop - 1` will be written to while others still read them."""
        first, last = start // self.block_size, -(-stop // self.block_size)
        blocks = table.blocks
        return [i for i in range(first, min(last, len(blocks))) if blocks[i].ref_cnt > 1]

    def _cache_full_blocks(self, request: CacheRequest, table: BlockTableProtocol, num_tokens: int) -> None:
        """Make the blocks that these tokens fill findable. Draft slots beyond the request's tokens never are."""
        hashed = self._num_hashed_blocks[request.request_id]
        full = num_tokens // self.block_size
        if full <= hashed:
            return
        self._hash_full_blocks(request, num_tokens)
        insert, hashes = self.pool.prefix_cache.insert, request.block_hashes
        for index in range(hashed, full):
            block = table.blocks[index]
            if block.block_hash is None:  # a forked sibling may have filled and named this very block already
                insert(hashes[index], block)
        self._num_hashed_blocks[request.request_id] = full
        if self._events is not None or self._misses is not None:
            size = self.block_size
            tokens = tuple(request.token_ids[hashed * size : full * size])
            parent = hashes[hashed - 1] if hashed else None
            self._emit(BlockStored(tuple(hashes[hashed:full]), parent, tokens, size))

    def free(self, request: CacheRequest) -> None:
        """Give a request's blocks back, the tail first, so that it is evicted before the head. Unknown requests: no-op.

        Full blocks stay findable until they are handed out again: free does not mean forgotten.
        """
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        del self._num_hashed_blocks[request.request_id]
        blocks = table.clear()[::-1]
        self.pool.free_blocks(self._copies.release(blocks) if self._copies else blocks)

    # ── sharing and copy-on-write ────────────────────────────────────────────────────────────────────────────

    def fork(self, parent: CacheRequest, child: CacheRequest) -> None:
        """Let `child` share every block of `parent`. Nothing is copied until one of them writes.

        The child needs the parent's computed tokens as its own first tokens. Refused (ValueError, nothing changed)
        while the parent still computes its prompt, and when the child already has blocks.
        """
        self._check_fork(parent, child)
        table = self._new_table(self.block_size)
        blocks = self._tables[parent.request_id].blocks
        self.pool.touch(blocks)
        try:
            table.append_blocks(blocks)
        except BaseException:  # a table of a learner's own
            self._give_back(blocks, table, child)
            raise
        self._tables[child.request_id] = table
        self._num_hashed_blocks[child.request_id] = self._num_hashed_blocks[parent.request_id]
        child.num_computed_tokens = parent.num_computed_tokens
        child.block_hashes = parent.block_hashes[: child.num_computed_tokens // self.block_size]

    def _check_fork(self, parent: CacheRequest, child: CacheRequest) -> None:
        computed = parent.num_computed_tokens
        if parent.request_id not in self._tables:
            raise ValueError(f"request {parent.request_id!r} has no blocks to share; run its prefill before the fork")
        if computed < parent.num_tokens - 1:
            raise ValueError(
                f"request {parent.request_id!r} is still in prefill: {computed} of {parent.num_tokens} tokens are "
                "computed; fork it when its prompt is done"
            )
        if child.request_id in self._tables:
            raise ValueError(f"request {child.request_id!r} already has blocks; fork into a new request")
        if child.token_ids[:computed] != parent.token_ids[:computed]:
            raise ValueError(
                f"request {child.request_id!r} does not begin with the {computed} computed tokens of "
                f"{parent.request_id!r}; sharing their KV would be wrong"
            )

    def take_copies(self) -> list[tuple[int, int]]:
        """The block copies (source, destination) that copy-on-write has ordered since the last call.

        Do them before any K or V of this step is written. Until this call the sources are held: none of them can be
        handed out to another request.
        """
        pairs, held = self._copies.take()
        if held:
            self.pool.free_blocks(held)
        return pairs

    # ── proof ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_integrity(self) -> None:
        """Prove the pool's rules, and that each count is the number of tables that point to the block.

        Raises IntegrityError with the block and the rule.
        """
        self.pool.check_integrity()
        owners: dict[int, list[str]] = {}
        for request_id, table in self._tables.items():
            for block in table.blocks:
                owners.setdefault(block.block_id, []).append(request_id)
        for block in self._copies.held:
            owners.setdefault(block.block_id, []).append("(held for a copy)")
        for block in getattr(self.pool, "blocks", ()):
            users = owners.get(block.block_id, [])
            if len(set(users)) != len(users):
                raise IntegrityError(f"block {block.block_id} stands twice in the table of {users[0]!r}")
            if block.ref_cnt != len(users):
                raise IntegrityError(
                    f"block {block.block_id} has ref_cnt {block.ref_cnt}, but {len(users)} tables point to it "
                    f"({', '.join(users) or 'none'}): the count is the number of tables"
                )
