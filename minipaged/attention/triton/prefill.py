"""Paged prefill: any number of query tokens a sequence, in one launch for prefill, chunked prefill and decode mixed."""

import triton
import triton.language as tl

from minipaged.attention.triton.softmax import attend_range


@triton.jit
def prefill_kernel(
    out_ptr,  # [T, num_heads, D]
    lse_ptr,  # [T, num_heads], float32
    q_ptr,  # [T, num_heads, D], the sequences one after another
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    v_ptr,
    tables_ptr,  # int32 [S, max_blocks]
    seq_lens_ptr,  # int32 [S]
    query_start_ptr,  # int32 [S + 1]
    tile_seq_ptr,  # int32 [number of query tiles]: the sequence of each tile …
    tile_start_ptr,  # … and its first query token, counted within the sequence
    slopes_ptr,
    sinks_ptr,
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
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,  # GROUP, padded to a power of two
    QUERY_TILE: tl.constexpr,  # query tokens a program
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
    """One program a (query tile, KV head). Row r is query token r // GROUP_PAD of the tile, head r % GROUP_PAD."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    seq = tl.load(tile_seq_ptr + tile).to(tl.int64)
    first = tl.load(tile_start_ptr + tile)
    query_start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - query_start
    seq_len = tl.load(seq_lens_ptr + seq)

    ROWS: tl.constexpr = QUERY_TILE * GROUP_PAD
    row = tl.arange(0, ROWS)
    d = tl.arange(0, D_PAD)
    token = first + row // GROUP_PAD
    in_group = row % GROUP_PAD
    head = kv_head * GROUP + tl.minimum(in_group, GROUP - 1)
    row_ok = (token < query_len) & (in_group < GROUP)
    mask = row_ok[:, None] & (d < D)[None, :]
    q_pos = seq_len - query_len + token
    q_row = (query_start + token).to(tl.int64)

    q_offset = q_row[:, None] * q_stride_token + head[:, None] * q_stride_head + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=mask, other=0.0)
    m_i = tl.full([ROWS], float("-inf"), tl.float32)
    l_i = tl.full([ROWS], 0.0, tl.float32)
    if SINKS:
        m_i = tl.load(sinks_ptr + head)
        l_i += 1.0
    acc = tl.full([ROWS, D_PAD], 0.0, tl.float32)
    # The tile's last query token sees the most keys; its first one reaches back furthest in a sliding window.
    first_pos = seq_len - query_len + first
    stop = tl.minimum(first_pos + QUERY_TILE, seq_len)
    start = 0
    if WINDOW:
        start = tl.maximum(first_pos - window + 1, 0)

    m_i, l_i, acc = attend_range(
        q.to(DOT_TYPE), q_pos, head, start, stop, m_i, l_i, acc,
        tables_ptr + seq * tables_stride, k_ptr + kv_head * k_stride_head, v_ptr + kv_head * v_stride_head,
        k_stride_block, k_stride_slot, k_stride_dim, v_stride_block, v_stride_slot, v_stride_dim,
        scale, slopes_ptr, soft_cap, window,
        BLOCK_SIZE, TILE, D, D_PAD, True, WINDOW, SOFT_CAP, ALIBI, DOT_TYPE, PRECISION,
    )  # fmt: skip

    # Padding rows of a sliding window may have seen no key: l = 0. They are not stored, but 0 / 0 would warn.
    l_i = tl.where(l_i == 0, 1.0, l_i)
    out = acc * (v_scale / l_i)[:, None]
    out_offset = q_row[:, None] * out_stride_token + head[:, None] * out_stride_head + d[None, :]
    tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + q_row * lse_stride_token + head, m_i + tl.log(l_i), mask=row_ok)
