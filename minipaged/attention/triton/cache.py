"""Kernels that only move data: write new K and V into their slots, and copy whole blocks."""

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    key_ptr,  # [T, num_kv_heads, D]
    value_ptr,
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    v_ptr,
    slots_ptr,  # int64 [T]
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    k_stride_block,
    k_stride_slot,
    k_stride_head,
    k_stride_dim,
    v_stride_block,
    v_stride_slot,
    v_stride_head,
    v_stride_dim,
    num_tokens,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,  # tokens a program
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    """A few tokens a program. Row r is token r // HEADS_PAD, KV head r % HEADS_PAD. A slot of −1 is skipped."""
    row = tl.arange(0, TOKENS * HEADS_PAD)
    d = tl.arange(0, D_PAD)
    token = (tl.program_id(0) * TOKENS + row // HEADS_PAD).to(tl.int64)
    head = (row % HEADS_PAD).to(tl.int64)
    slot = tl.load(slots_ptr + token, mask=token < num_tokens, other=-1)
    keep = (slot >= 0) & (head < HEADS)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE

    mask = keep[:, None] & (d < D)[None, :]
    key_offset = (token * key_stride_token + head * key_stride_head)[:, None] + d[None, :]
    key = tl.load(key_ptr + key_offset, mask=mask)
    k_offset = block * k_stride_block + offset * k_stride_slot + head * k_stride_head
    tl.store(k_ptr + k_offset[:, None] + d[None, :] * k_stride_dim, key, mask=mask)
    value_offset = (token * value_stride_token + head * value_stride_head)[:, None] + d[None, :]
    value = tl.load(value_ptr + value_offset, mask=mask)
    v_offset = block * v_stride_block + offset * v_stride_slot + head * v_stride_head
    tl.store(v_ptr + v_offset[:, None] + d[None, :] * v_stride_dim, value, mask=mask)


@triton.jit
def copy_blocks_kernel(
    k_ptr,  # [num_blocks, block_size, num_kv_heads, D]
    v_ptr,
    pairs_ptr,  # int64 [P, 2]: source block, destination block
    k_stride_block,
    k_stride_slot,
    k_stride_head,
    k_stride_dim,
    v_stride_block,
    v_stride_slot,
    v_stride_head,
    v_stride_dim,
    num_rows,  # block_size · num_kv_heads
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,  # rows (slot, head) a program
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    """One program some rows of one pair; K and V in the same launch."""
    pair = tl.program_id(0)
    source = tl.load(pairs_ptr + 2 * pair)
    destination = tl.load(pairs_ptr + 2 * pair + 1)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D_PAD)
    slot = (row // HEADS).to(tl.int64)
    head = (row % HEADS).to(tl.int64)
    mask = (row < num_rows)[:, None] & (d < D)[None, :]

    k_offset = (slot * k_stride_slot + head * k_stride_head)[:, None] + d[None, :] * k_stride_dim
    k = tl.load(k_ptr + source * k_stride_block + k_offset, mask=mask)
    tl.store(k_ptr + destination * k_stride_block + k_offset, k, mask=mask)
    v_offset = (slot * v_stride_slot + head * v_stride_head)[:, None] + d[None, :] * v_stride_dim
    v = tl.load(v_ptr + source * v_stride_block + v_offset, mask=mask)
    tl.store(v_ptr + destination * v_stride_block + v_offset, v, mask=mask)
