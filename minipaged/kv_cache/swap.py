"""Swap space: where the blocks of a preempted sequence wait. First host memory, then a file.

Source: Kwon et al., SOSP 2023, §4.5 (swap to CPU memory, all blocks of a sequence or none). vLLM V1 has no swap for
preemption, it computes again; its CPU tiers are "KV offloading", a second level of the prefix cache.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minipaged.kv_cache.block_pool import IntegrityError
from minipaged.kv_cache.storage import KVCacheStorage


class SwapSpace:
    """Slots of one block each (K and V of all layers): first ``num_cpu_blocks`` in host memory, then in a file.

    Slots ``0 … num_cpu_blocks - 1`` are host memory, pinned where the cache is on a GPU; the next
    ``num_disk_blocks`` are a memory-mapped file of exactly that size in ``folder`` (default: the system's
    temporary folder), deleted when the object goes or Python exits. A sequence gets all its slots or none.
    """

    def __init__(
        self,
        storage: KVCacheStorage,
        num_cpu_blocks: int,
        num_disk_blocks: int = 0,
        folder: str | Path | None = None,
    ) -> None:
        for name, value in (("num_cpu_blocks", num_cpu_blocks), ("num_disk_blocks", num_disk_blocks)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} is {value!r}; give a whole number of blocks, 0 for none")
        self.storage = storage
        self.num_cpu_blocks, self.num_disk_blocks = num_cpu_blocks, num_disk_blocks
        block_shape = (2, storage.num_layers, *storage.k_cache[0].shape[1:])  # K and V, layers, tokens, heads, D
        dtype, pinned = storage.k_cache[0].dtype, storage.k_cache[0].is_cuda
        self._tiers = [torch.empty((num_cpu_blocks, *block_shape), dtype=dtype, pin_memory=pinned)]
        self.file: Path | None = None
        if num_disk_blocks:
            self._tiers.append(self._map_file((num_disk_blocks, *block_shape), dtype, folder))
        # Popped from the end: slot 0 first, host memory before the file.
        self._free = list(range(self.num_blocks))[::-1]
        self._slots: dict[str, list[int]] = {}

    @property
    def num_blocks(self) -> int:
        return self.num_cpu_blocks + self.num_disk_blocks

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def block_bytes(self) -> int:
        """Bytes of one slot: K and V of one block in every layer."""
        layer = self.storage.k_cache[0]
        return 2 * self.storage.num_layers * layer[0].numel() * layer.element_size()

    def reserve(self, request_id: str, num_blocks: int) -> list[int] | None:
        """Slots for all blocks of a sequence, or None (nothing changed) when there are too few."""
        if request_id in self._slots:
            raise ValueError(f"request {request_id!r} already has blocks in the swap space; release them first")
        if num_blocks > len(self._free):
            return None
        self._slots[request_id] = [self._free.pop() for _ in range(num_blocks)]
        return self.slots(request_id)

    def slots(self, request_id: str) -> list[int]:
        """The slots of a sequence in logical order; empty when it has none."""
        return list(self._slots.get(request_id, ()))

    def release(self, request_id: str) -> None:
        """Give a sequence's slots back. Unknown requests: no-op."""
        self._free += self._slots.pop(request_id, [])
        self._free.sort(reverse=True)  # so that host memory is used before the file again

    def write_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Save blocks: (block id in the pool, slot)."""
        for tier, ids, rows in self._by_tier([(slot, block_id) for block_id, slot in pairs]):
            for kind, caches in enumerate((self.storage.k_cache, self.storage.v_cache)):
                for layer, cache in enumerate(caches):
                    tier[ids, kind, layer] = cache[rows.to(cache.device)].to(tier.device)

    def read_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Restore blocks: (slot, block id in the pool)."""
        for tier, ids, rows in self._by_tier(pairs):
            for kind, caches in enumerate((self.storage.k_cache, self.storage.v_cache)):
                for layer, cache in enumerate(caches):
                    cache[rows.to(cache.device)] = tier[ids, kind, layer].to(cache.device)

    def _by_tier(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(slot, block id) pairs, sorted into (tier's tensor, rows in the tier, block ids)."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for slot, block_id in pairs:
            on_disk = slot >= self.num_cpu_blocks
            groups.setdefault(int(on_disk), []).append((slot - on_disk * self.num_cpu_blocks, block_id))
        return [(self._tiers[tier], *torch.tensor(found).T) for tier, found in groups.items()]

    def _map_file(self, shape: tuple[int, ...], dtype: torch.dtype, folder: str | Path | None) -> Tensor:
        descriptor, name = tempfile.mkstemp(prefix="minipaged-swap-", suffix=".kv", dir=folder)
        os.close(descriptor)
        self.file = Path(name)
        self._delete = weakref.finalize(self, _delete_file, name)  # runs at exit, too
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        return torch.from_numpy(np.memmap(name, dtype=np.uint8, mode="w+", shape=num_bytes)).view(dtype).view(shape)

    def close(self) -> None:
        """Give up all slots and delete the file. The object cannot be used afterwards."""
        self._tiers, self._free, self._slots = [], [], {}
        if self.file is not None:
            self._delete()

    def check_integrity(self) -> None:
        """Every slot is free or owned by one sequence, exactly once. Raises IntegrityError with the slot."""
        owned = [slot for slots in self._slots.values() for slot in slots]
        seen = sorted(owned + self._free)
        if seen != list(range(self.num_blocks)):
            odd = next((s for s in seen if seen.count(s) > 1), None) or set(range(self.num_blocks)) - set(seen)
            raise IntegrityError(f"swap slot {odd}: each slot is free or belongs to one sequence, exactly once")


def _delete_file(name: str) -> None:
    Path(name).unlink(missing_ok=True)
