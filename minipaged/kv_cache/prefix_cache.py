"""The prefix cache: from a block's hash to the physical block that holds that content.

Source: vLLM 0.32, vllm/v1/core/block_pool.py (BlockHashToBlockMap).
"""

from collections.abc import Sequence

from minipaged.kv_cache.block import KVCacheBlock
from minipaged.kv_cache.hashing import BlockHasher, ExtraKeys


class PrefixCache:
    """A map hash → block. Duplicates (equal content computed twice) are all kept; a lookup returns the oldest.

    `hash_algorithm` and `seed` are `BlockHasher`'s.
    """

    def __init__(self, hash_algorithm: str = "sha256", seed: str | None = None) -> None:
        self._hasher = BlockHasher(hash_algorithm, seed)
        # Nearly every hash has one block, so the inner dictionary is made only for a duplicate.
        self._blocks: dict[bytes, KVCacheBlock | dict[int, KVCacheBlock]] = {}

    def __len__(self) -> int:
        """How many different block contents can be found."""
        return len(self._blocks)

    def hash_block(self, parent_hash: bytes | None, token_ids: Sequence[int], keys: ExtraKeys | None) -> bytes:
        """The name of a full block with these tokens after this parent (None: it is the first block)."""
        return self._hasher(parent_hash, token_ids, keys)

    def lookup(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block that holds this content, or None."""
        found = self._blocks.get(block_hash)
        if found is None or isinstance(found, KVCacheBlock):
            return found
        return next(iter(found.values()))

    def insert(self, block_hash: bytes, block: KVCacheBlock) -> None:
        """Make a full block findable. The block bears the hash from now on."""
        if block.block_hash is not None:
            raise ValueError(
                f"block {block.block_id} already bears a hash; remove it before it gets another, "
                "or a lookup would find content that is gone"
            )
        block.block_hash = block_hash
        found = self._blocks.get(block_hash)
        if found is None:
            self._blocks[block_hash] = block
        elif isinstance(found, KVCacheBlock):
            self._blocks[block_hash] = {found.block_id: found, block.block_id: block}
        else:
            found[block.block_id] = block

    def remove(self, block: KVCacheBlock) -> bool:
        """Forget this block's content; its duplicates stay. Returns whether there was anything to forget."""
        block_hash = block.block_hash
        if block_hash is None:
            return False
        block.block_hash = None
        found = self._blocks[block_hash]
        if isinstance(found, KVCacheBlock):
            del self._blocks[block_hash]
        else:
            del found[block.block_id]
            if len(found) == 1:
                self._blocks[block_hash] = next(iter(found.values()))
        return True

    def clear(self) -> None:
        """Forget everything, for example after new weights were loaded."""
        for found in self._blocks.values():
            for block in (found,) if isinstance(found, KVCacheBlock) else found.values():
                block.block_hash = None
        self._blocks.clear()
