"""The pool of physical blocks: who owns which block, and which block is handed out next.

Source: vLLM 0.32, vllm/v1/core/block_pool.py (BlockPool).
"""

from collections.abc import Callable, Iterable, Sequence

from minipaged.kv_cache.block import FreeBlockQueue, KVCacheBlock
from minipaged.kv_cache.prefix_cache import PrefixCache


class IntegrityError(AssertionError):
    """A rule of the pool or of its manager is broken. The message names the block and the rule."""


class BlockPool:
    """A fixed set of blocks `0 … num_blocks - 1`, each in use (`ref_cnt` ≥ 1) or in the free queue (0).

    Args:
        num_blocks: how many blocks there are.
        enable_caching: keep the content of freed blocks findable until they are handed out again.
        null_block: reserve block 0 as a place holder, as vLLM does; then `num_blocks - 1` can be used.
        prefix_cache: where contents are found by hash; by default a new `PrefixCache`.
        free_order: ids to be handed out first, in this order, as after a busy day; the others follow in order.
    """

    def __init__(
        self,
        num_blocks: int,
        enable_caching: bool = True,
        null_block: bool = False,
        prefix_cache: PrefixCache | None = None,
        free_order: Sequence[int] | None = None,
    ) -> None:
        fewest = 2 if null_block else 1
        if not isinstance(num_blocks, int) or num_blocks < fewest:
            raise ValueError(
                f"num_blocks is {num_blocks!r}; a pool needs a whole number of at least {fewest}"
                + (" with the null block (which takes block 0)" if null_block else "")
            )
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.prefix_cache = (prefix_cache if prefix_cache is not None else PrefixCache()) if enable_caching else None
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[0] if null_block else None
        if free_order is not None and not isinstance(free_order, Sequence):
            raise TypeError(f"free_order is {free_order!r}; give a list of block ids, or None for their own order")
        order = _first_then_rest(free_order or (), range(1 if null_block else 0, num_blocks))
        self.free_queue = FreeBlockQueue(self.blocks[i] for i in order)
        self.on_evict: Callable[[bytes], None] | None = None  # called with the hash of each content that is lost

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now, the cached but unused ones among them."""
        return len(self.free_queue)

    @property
    def num_usable_blocks(self) -> int:
        """All blocks but the null block."""
        return self.num_blocks - (self.null_block is not None)

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Take `n` blocks from the front of the free queue; each has `ref_cnt` 1 and its old content is forgotten.

        Raises ValueError, and takes none, when fewer than `n` are free.
        """
        if n > len(self.free_queue):
            raise ValueError(
                f"asked for {n} blocks, but only {self.num_free_blocks} of {self.num_usable_blocks} are free; "
                "free or preempt a request first, or make the pool larger"
            )
        blocks = self.free_queue.popleft_n(n)
        if self.enable_caching:
            for block in blocks:
                if block.block_hash is not None:
                    if self.on_evict is not None:
                        self.on_evict(block.block_hash)
                    self.prefix_cache.remove(block)
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """One more user for each block. A free block leaves the queue, from whatever place, and is safe again."""
        unused = []
        for block in blocks:
            if block.ref_cnt == 0:
                unused.append(block)
            block.ref_cnt += 1
        if unused:
            self.free_queue.remove_n(unused)

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """One user less for each block; those without a user go to the free queue. Give the tail of a sequence first.

        Hashed blocks go to the back, in the order given: their content may be wanted again. Unhashed ones go to the
        front. Raises ValueError, and changes nothing, when a block is not in use (it would be freed twice).
        """
        blocks = list(blocks)
        unhashed, hashed = [], []
        for done, block in enumerate(blocks):
            count = block.ref_cnt - 1
            if count < 0:
                self._undo_free(blocks[:done])
                raise ValueError(
                    f"block {block.block_id} is not in use (ref_cnt {block.ref_cnt}), so it cannot be freed; "
                    "was it freed twice? Free each block once per table that points to it"
                )
            block.ref_cnt = count
            if count == 0:
                (unhashed if block.block_hash is None else hashed).append(block)
        self.free_queue.prepend_n(unhashed)
        self.free_queue.append_n(hashed)

    @staticmethod
    def _undo_free(blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def reset_prefix_cache(self) -> bool:
        """Forget all contents. Refused (False) while any block is in use: its reader would lose its past."""
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        if self.prefix_cache is not None:
            self.prefix_cache.clear()
        return True

    def check_integrity(self) -> None:
        """Prove the pool's rules; raise IntegrityError with the block and the rule that it breaks."""
        queued = [block.block_id for block in self.free_queue]
        in_queue = set(queued)
        if len(in_queue) != len(queued):
            twice = next(i for i in queued if queued.count(i) > 1)
            raise IntegrityError(f"block {twice} stands twice in the free queue: it would be given to two owners")
        if len(queued) != len(self.free_queue):
            raise IntegrityError(f"the free queue counts {len(self.free_queue)} blocks but holds {len(queued)}")
        for block in self.blocks:
            if block is self.null_block:
                if block.block_id in in_queue or block.block_hash is not None:
                    raise IntegrityError("block 0 is the null block: it is never free and never cached")
            elif block.ref_cnt < 0:
                raise IntegrityError(f"block {block.block_id} has ref_cnt {block.ref_cnt}: counts are never below 0")
            elif (block.ref_cnt == 0) != (block.block_id in in_queue):
                where = "in" if block.block_id in in_queue else "not in"
                raise IntegrityError(
                    f"block {block.block_id} has ref_cnt {block.ref_cnt} and is {where} the free queue: "
                    "a count of 0 and a place in the free queue go together, always"
                )
            if block.block_hash is not None and not self._can_be_found(block):
                raise IntegrityError(f"block {block.block_id} bears a hash that the prefix cache does not know")
        self._check_cache_entries()

    def _can_be_found(self, block: KVCacheBlock) -> bool:
        found = self.prefix_cache.lookup(block.block_hash) if self.prefix_cache is not None else None
        return found is not None and found.block_hash == block.block_hash

    def _check_cache_entries(self) -> None:
        """Every hash that can be found must lead to a block that still bears it."""
        hashes = {block.block_hash for block in self.blocks} - {None}
        if self.prefix_cache is not None and len(self.prefix_cache) != len(hashes):
            raise IntegrityError(
                f"the prefix cache knows {len(self.prefix_cache)} contents but the blocks bear {len(hashes)} different "
                "hashes: a stale hash survived the reuse of its block"
            )


def _first_then_rest(first: Sequence[int], ids: range) -> list[int]:
    """`ids` with the given ones in front."""
    chosen = set(first)
    if len(chosen) != len(first) or not chosen <= set(ids):
        raise ValueError(
            f"free_order is {list(first)!r}; it needs different block ids from {ids.start} to {ids.stop - 1}"
        )
    return [*first, *(i for i in ids if i not in chosen)]
