"""What fills the cache, and what copy-on-write needs: two kernels that only move data."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def write_kernel(
    key_ptr,  # [T, num_kv_heads, D]
    value_ptr,
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    v_ptr,
    slots_ptr,  # int64 [T]
    stride_block,
    stride_slot,
    BLOCK_SIZE: tl.constexpr,
    ROW: tl.constexpr,  # num_kv_heads · D: all heads of a token lie side by side
    ROW_PAD: tl.constexpr,
):
    """One program per token: its K and V go into its slot; −1 means that it has none."""
    token = tl.program_id(0)
    slot = tl.load(slots_ptr + token)
    i = tl.arange(0, ROW_PAD)
    mask = (i < ROW) & (slot >= 0)
    at = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot + i
    tl.store(k_ptr + at, tl.load(key_ptr + token * ROW + i, mask=mask), mask=mask)
    tl.store(v_ptr + at, tl.load(value_ptr + token * ROW + i, mask=mask), mask=mask)


def write(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store key and value [T, num_kv_heads, D] in their slots; slot −1 is skipped."""
    key, value, row = key.contiguous(), value.contiguous(), k_cache.shape[2] * k_cache.shape[3]
    write_kernel[(len(slot_mapping),)](
        key, value, k_cache, v_cache, slot_mapping, k_cache.stride(0), k_cache.stride(1),
        BLOCK_SIZE=k_cache.shape[1], ROW=row, ROW_PAD=triton.next_power_of_2(row),
    )  # fmt: skip


@triton.jit
def copy_blocks_kernel(
    cache_ptr,  # [num_blocks, block_size, num_kv_heads, D]
    pairs_ptr,  # int64 [P, 2]: source block, destination block
    stride_block,
    SIZE: tl.constexpr,  # elements of a block
    SIZE_PAD: tl.constexpr,
):
    """One program per pair: the copy of copy-on-write."""
    pair = tl.program_id(0)
    source = tl.load(pairs_ptr + 2 * pair)
    destination = tl.load(pairs_ptr + 2 * pair + 1)
    i = tl.arange(0, SIZE_PAD)
    block = tl.load(cache_ptr + source * stride_block + i, mask=i < SIZE)
    tl.store(cache_ptr + destination * stride_block + i, block, mask=i < SIZE)


def copy_blocks(k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks (source, destination) of one layer's caches, whose blocks must be contiguous."""
    numbers, size = torch.tensor(pairs, dtype=torch.int64, device=k_cache.device), k_cache[0].numel()
    for cache in (k_cache, v_cache):
        copy_blocks_kernel[(len(pairs),)](
            cache, numbers, cache.stride(0), SIZE=size, SIZE_PAD=triton.next_power_of_2(size)
        )
