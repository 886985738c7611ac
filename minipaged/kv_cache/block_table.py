"""The block table of one sequence: from logical block numbers to physical blocks.

Source: Kwon et al., SOSP 2023, §4.3 (the table); vLLM 0.32, vllm/v1/worker/block_table.py (the slot mapping).
"""

from collections.abc import Sequence

from minipaged.kv_cache.block import KVCacheBlock


class BlockTable:
    """Logical block `i` of a sequence (tokens `i·B … i·B + B - 1`) lies in physical block `blocks[i]`."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: list[KVCacheBlock] = []

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def block_ids(self) -> list[int]:
        """The physical block numbers in logical order: what the attention kernel reads."""
        return [block.block_id for block in self.blocks]

    def num_missing_blocks(self, num_tokens: int) -> int:
        """How many blocks must be added before `num_tokens` tokens have a slot; 0 if they fit."""
        return max(0, -(-num_tokens // self.block_size) - len(self.blocks))

    def append_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add logical blocks at the end. The existing ones never move."""
        self.blocks.extend(blocks)

    def replace_block(self, index: int, block: KVCacheBlock) -> KVCacheBlock:
        """Let logical block `index` point to another physical block (copy-on-write). Returns the old one."""
        old = self.blocks[index]
        self.blocks[index] = block
        return old

    def clear(self) -> list[KVCacheBlock]:
        """Empty the table and return its blocks in logical order."""
        blocks, self.blocks = self.blocks, []
        return blocks

    def slot_mapping(self, start: int, stop: int) -> list[int]:
        """The slots of token positions `start … stop - 1`: where their K and V are written.

        slot = table[position // B] · B + position % B. Raises IndexError for a position without a block.
        """
        size = self.block_size
        if not 0 <= start <= stop <= len(self.blocks) * size:
            raise IndexError(
                f"positions {start} … {stop - 1} asked, but the table's {len(self.blocks)} blocks of {size} hold "
                f"positions 0 … {len(self.blocks) * size - 1}; allocate slots before asking for them"
            )
        blocks = self.blocks
        return [blocks[position // size].block_id * size + position % size for position in range(start, stop)]

    def rows(self, num_tokens: int) -> list[tuple[int, int]]:
        """The table as the paper draws it: (physical block number, slots filled), with `num_tokens` tokens stored."""
        size = self.block_size
        return [
            (block.block_id, max(0, min(size, num_tokens - index * size))) for index, block in enumerate(self.blocks)
        ]
