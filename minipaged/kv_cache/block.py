"""A physical KV block's bookkeeping, and the queue of free blocks.

Source: vLLM 0.32, vllm/v1/core/kv_cache_utils.py (KVCacheBlock, FreeKVCacheBlockQueue).
"""

from collections.abc import Iterable, Iterator, Sequence


class KVCacheBlock:
    """What the manager remembers about one physical block. The tensors live elsewhere (storage.py).

    `ref_cnt` counts the block tables that point here. `block_hash` is set while the block's content can be found
    in the prefix cache. The two links belong to the free queue and are None while the block is in use.
    """

    __slots__ = ("block_hash", "block_id", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        state = "hashed" if self.block_hash is not None else "not hashed"
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, {state})"


class FreeBlockQueue:
    """Free blocks in eviction order: the front is handed out, and so evicted, first.

    A doubly linked list through the blocks themselves. It does what a `deque` cannot: take a block out of the
    middle in O(1), which happens whenever a free but still cached block is hit again.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        # Two sentinels stand before the first and after the last block, so no operation meets an empty end.
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self._length = 0
        self.append_n(list(blocks))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """The blocks from the front (evicted first) to the back."""
        block = self._head.next_free
        while block is not self._tail:
            yield block
            block = block.next_free

    def __contains__(self, block: KVCacheBlock) -> bool:
        return block.next_free is not None

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take `n` blocks from the front, in order. Raises ValueError when fewer are there; then takes none."""
        if not 0 <= n <= self._length:
            raise ValueError(f"asked for {n} blocks, but the free queue holds {self._length}")
        taken = []
        block = self._head.next_free
        for _ in range(n):
            taken.append(block)
            following = block.next_free
            block.prev_free = block.next_free = None
            block = following
        self._head.next_free, block.prev_free = block, self._head
        self._length -= n
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take one block out, wherever it stands, in O(1)."""
        self.remove_n([block])

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take several different blocks out; one loop, because a long prefix hit takes hundreds."""
        for block in blocks:
            before, after = block.prev_free, block.next_free
            if before is None or after is None:
                raise ValueError(f"block {block.block_id} is not in the free queue, so it cannot be removed from it")
            before.next_free = after
            after.prev_free = before
            block.prev_free = block.next_free = None
            self._length -= 1

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the back: the last of them will be evicted last."""
        self._insert_after(self._tail.prev_free, blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the front, in the given order: the first of them is handed out next."""
        self._insert_after(self._head, blocks)

    def _insert_after(self, last: KVCacheBlock, blocks: Sequence[KVCacheBlock]) -> None:
        following = last.next_free
        for block in blocks:
            block.prev_free = last
            last.next_free = block
            last = block
        last.next_free = following
        following.prev_free = last
        self._length += len(blocks)
