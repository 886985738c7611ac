"""Paged batches for tests: shuffled physical ids, NaN in every slot that was not written, truth in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from minipaged.attention import AttentionMetadata, AttentionOptions, paged_attention
from minipaged.attention.reference import to_cache_dtype

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@dataclass
class Batch:
    query: Tensor
    k_cache: Tensor
    v_cache: Tensor
    metadata: AttentionMetadata
    tables: list[list[int]]

    @property
    def scale(self) -> float:
        return self.query.shape[-1] ** -0.5

    def attend(self, backend) -> Tensor:
        return backend.attend(self.query, self.k_cache, self.v_cache, self.metadata, self.scale)

    def truth(self, options: AttentionOptions | None = None) -> tuple[Tensor, Tensor]:
        options = options or AttentionOptions()
        return paged_attention(
            self.query, self.k_cache, self.v_cache, self.metadata, self.scale, options, torch.float64
        )


def make_batch(
    seq_lens: list[int],
    query_lens: list[int],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    options: AttentionOptions | None = None,
    seed: int = 0,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    options = options or AttentionOptions()
    blocks = [-(-n // block_size) for n in seq_lens]
    num_blocks = sum(blocks) + 2
    ids = list(range(num_blocks))
    random.Random(seed).shuffle(ids)
    tables = [[ids.pop() for _ in range(n)] for n in blocks]
    slots = [
        [table[p // block_size] * block_size + p % block_size for p in range(n)]
        for table, n in zip(tables, seq_lens, strict=True)
    ]
    caches = []
    for scale in (options.k_scale, options.v_scale):
        cache = torch.full((num_blocks * block_size, num_kv_heads, head_dim), float("nan"))
        written = [slot for row in slots for slot in row]
        cache[written] = torch.randn(len(written), num_kv_heads, head_dim, generator=generator)
        cache = to_cache_dtype(cache, cache_dtype or dtype, scale)
        caches.append(cache.reshape(num_blocks, block_size, num_kv_heads, head_dim))
    query = torch.randn(sum(query_lens), num_heads, head_dim, generator=generator).to(dtype)
    new_slots = [slot for row, n, q in zip(slots, seq_lens, query_lens, strict=True) for slot in row[n - q :]]
    metadata = AttentionMetadata.build(tables, seq_lens, query_lens, new_slots)
    return Batch(query, *caches, metadata, tables)


def relative_error(got: Tensor, truth: Tensor) -> float:
    """Largest absolute difference over the largest absolute truth; NaN in ``got`` gives NaN, which passes no test."""
    if truth.numel() == 0:
        return 0.0
    return float((got.double() - truth.double()).abs().max() / truth.abs().max())
