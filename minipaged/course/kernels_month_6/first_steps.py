"""Triton in one page, and the first read through a block table."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def double_kernel(out_ptr, x_ptr, n, SIZE: tl.constexpr):
    """out = 2 · x, SIZE elements per program."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, 2 * x, mask=i < n)


def double(x: Tensor, size: int = 4) -> Tensor:
    """2 · x for a vector x [n]; ``size`` elements per program, a power of two."""
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(len(x), size),)](out, x, len(x), SIZE=size)
    return out


@triton.jit
def gather_kernel(
    out_ptr,  # [seq_len, D]
    cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    table_ptr,  # int32 [logical blocks]
    seq_len,
    stride_block,
    stride_slot,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
):
    """Gather KV head 0 of one sequence: one program per logical block."""
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical).to(tl.int64)
    slot, d = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    pos = logical * BLOCK_SIZE + slot
    mask = (pos < seq_len)[:, None]
    place = cache_ptr + block * stride_block + slot[:, None] * stride_slot + d[None, :]
    rows = tl.load(place, mask=mask, other=0.0)
    tl.store(out_ptr + pos[:, None] * D + d[None, :], rows, mask=mask)


def gather(cache: Tensor, table: Tensor, seq_len: int) -> Tensor:
    """KV head 0 of the first ``seq_len`` tokens: [seq_len, D]. Block size and D must be powers of two here."""
    _, block_size, _, head_dim = cache.shape
    out = torch.empty(seq_len, head_dim, dtype=cache.dtype, device=cache.device)
    gather_kernel[(triton.cdiv(seq_len, block_size),)](
        out, cache, table, seq_len, cache.stride(0), cache.stride(1), BLOCK_SIZE=block_size, D=head_dim
    )
    return out
