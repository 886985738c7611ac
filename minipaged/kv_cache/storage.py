"""The tensors: one K and one V cache a layer, cut into physical blocks. Allocated once, at the start."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Copies blocks inside one layer's caches: (k_cache, v_cache, pairs of (source, destination) ids).
CopyBlocks = Callable[[Tensor, Tensor, Sequence[tuple[int, int]]], None]


class KVCacheStorage:
    """K and V of every layer, each cache of shape [num_blocks, block_size, num_kv_heads, head_dim].

    Storage knows no request: it writes to slots and reads blocks. `copy_blocks` lets an attention backend bring its
    own kernel for copy-on-write; by default torch copies.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        copy_blocks: CopyBlocks | None = None,
    ) -> None:
        sizes = {
            "num_layers": num_layers,
            "num_blocks": num_blocks,
            "block_size": block_size,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        }
        for name, value in sizes.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        # One contiguous tensor each for K and V: this is the "90 % of the GPU" that a server takes at its start.
        try:
            self._keys = torch.zeros(shape, dtype=dtype, device=device)
            self._values = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:  # torch's out-of-memory errors are of this kind
            gigabytes = 2 * math.prod(shape) * dtype.itemsize / 1e9
            raise ValueError(
                f"num_blocks is {num_blocks}: the KV cache would take {gigabytes:,.1f} GB, more than {device} can "
                f"give; lower num_blocks or block_size"
            ) from error
        self.k_cache = list(self._keys)
        self.v_cache = list(self._values)
        self.num_layers, self.num_blocks, self.block_size = num_layers, num_blocks, block_size
        self._copy_blocks = copy_blocks or copy_blocks_with_torch

    @property
    def num_bytes(self) -> int:
        """Bytes of both tensors."""
        return self._keys.nbytes + self._values.nbytes

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Write K and V of T tokens ([T, num_kv_heads, head_dim] each) to their slots ([T] int64); −1 is skipped."""
        write_slots(self.k_cache[layer], self.v_cache[layer], key, value, slot_mapping)

    def gather(self, layer: int, block_ids: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """K and V of one sequence's first `length` tokens, in logical order: two [length, num_kv_heads, head_dim]."""
        if not 0 <= length <= len(block_ids) * self.block_size:
            raise ValueError(
                f"length {length} asked, but {len(block_ids)} blocks of {self.block_size} hold "
                f"{len(block_ids) * self.block_size} tokens"
            )
        bad = [i for i in block_ids if not 0 <= i < self.num_blocks]
        if bad:
            raise IndexError(f"block id {bad[0]} is outside the pool of {self.num_blocks} blocks")
        index = torch.as_tensor(list(block_ids), dtype=torch.int64, device=self._keys.device)
        keys = self.k_cache[layer].index_select(0, index).flatten(0, 1)
        values = self.v_cache[layer].index_select(0, index).flatten(0, 1)
        return keys[:length], values[:length]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, source → destination, in every layer; all sources are read before any is written."""
        check_copy_pairs(pairs, self.num_blocks)
        if pairs:
            for k_cache, v_cache in zip(self.k_cache, self.v_cache, strict=True):
                self._copy_blocks(k_cache, v_cache, pairs)


def write_slots(k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Scatter T tokens' K and V into one layer's caches; tokens with slot −1 (padding) are skipped."""
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    if slot_mapping.shape != key.shape[:1]:
        raise ValueError(f"slot_mapping has shape {tuple(slot_mapping.shape)}; {len(key)} tokens need one slot each")
    if slot_mapping.numel() and (int(slot_mapping.min()) < -1 or int(slot_mapping.max()) >= num_slots):
        bad = slot_mapping[(slot_mapping < -1) | (slot_mapping >= num_slots)][0]
        raise IndexError(f"slot {int(bad)} is outside the cache's {num_slots} slots (−1 would mean: skip this token)")
    used = slot_mapping >= 0
    if not bool(used.all()):
        key, value, slot_mapping = key[used], value[used], slot_mapping[used]
    k_cache.flatten(0, 1)[slot_mapping] = key.to(k_cache.dtype)
    v_cache.flatten(0, 1)[slot_mapping] = value.to(v_cache.dtype)


def copy_blocks_with_torch(k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks inside one layer's caches. Indexing gathers all sources first, so pairs may form chains."""
    sources, destinations = torch.tensor(pairs, dtype=torch.int64, device=k_cache.device).T
    k_cache[destinations] = k_cache[sources]
    v_cache[destinations] = v_cache[sources]


def check_copy_pairs(pairs: Sequence[tuple[int, int]], num_blocks: int) -> None:
    """Every id inside the pool, and no block written twice. Raises IndexError or ValueError."""
    for pair in pairs:
        for block_id in pair:
            if not 0 <= block_id < num_blocks:
                raise IndexError(f"block id {block_id} of copy {pair} is outside the pool of {num_blocks} blocks")
    destinations = [destination for _, destination in pairs]
    if len(set(destinations)) != len(destinations):
        twice = next(d for d in destinations if destinations.count(d) > 1)
        raise ValueError(f"block {twice} is the destination of two copies; which one should win?")
