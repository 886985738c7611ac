"""Paged decode: one query token a sequence, one program a (sequence, KV head)."""

import triton
import triton.language as tl

from minipaged.attention.triton.softmax import attend_range


@triton.jit
def decode_kernel(
    out_ptr,  # [T, num_heads, D]
    lse_ptr,  # [T, num_heads], float32
    q_ptr,  # [T, num_heads, D]
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    v_ptr,
    tables_ptr,  # int32 [S, max_blocks]
    seq_lens_ptr,  # int32 [S]
    slopes_ptr,  # float32 [num_heads]; read only with ALIBI
    sinks_ptr,  # float32 [num_heads]; read only with SINKS
    scale,
    v_scale,
    soft_cap,
    window,
    out_stride_token,
    out_stride_head,
    lse_stride_token,
    q_stride_token,
    q_stride_head,
    k_stride_block,
    k_stride_slot,
    k_stride_head,
    k_stride_dim,
    v_stride_block,
    v_stride_slot,
    v_stride_head,
    v_stride_dim,
    tables_stride,
    GROUP: tl.constexpr,  # query heads that share one KV head
    ROWS: tl.constexpr,  # GROUP, padded to what tl.dot takes
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A group's query heads are the rows of one matrix, so each K and V is loaded once for all of them."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, D_PAD)
    # Rows past the group are padding: they repeat the last head, and are not stored.
    head = kv_head * GROUP + tl.minimum(row, GROUP - 1)
    in_group = (row < GROUP)[:, None] & (d < D)[None, :]

    seq_len = tl.load(seq_lens_ptr + seq)
    q_offset = seq * q_stride_token + head[:, None] * q_stride_head + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=in_group, other=0.0)
    m_i = tl.full([ROWS], float("-inf"), tl.float32)
    l_i = tl.full([ROWS], 0.0, tl.float32)
    if SINKS:  # a sink is one key more, with the score `sink` and the value 0
        m_i = tl.load(sinks_ptr + head)
        l_i += 1.0
    acc = tl.full([ROWS, D_PAD], 0.0, tl.float32)
    start = 0
    if WINDOW:
        start = tl.maximum(seq_len - window, 0)

    m_i, l_i, acc = attend_range(
        q.to(DOT_TYPE), row * 0 + seq_len - 1, head, start, seq_len, m_i, l_i, acc,
        tables_ptr + seq * tables_stride, k_ptr + kv_head * k_stride_head, v_ptr + kv_head * v_stride_head,
        k_stride_block, k_stride_slot, k_stride_dim, v_stride_block, v_stride_slot, v_stride_dim,
        scale, slopes_ptr, soft_cap, window,
        BLOCK_SIZE, TILE, D, D_PAD, False, WINDOW, SOFT_CAP, ALIBI, DOT_TYPE, PRECISION,
    )  # fmt: skip

    out = acc * (v_scale / l_i)[:, None]
    out_offset = seq * out_stride_token + head[:, None] * out_stride_head + d[None, :]
    tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=in_group)
    tl.store(lse_ptr + seq * lse_stride_token + head, m_i + tl.log(l_i), mask=row < GROUP)
