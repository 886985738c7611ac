"""Split-KV decode ("flash-decoding"): several programs share one long context, and their results are merged.

A decode batch of few sequences has few programs: (sequences × KV heads), far fewer than a GPU has multiprocessors.
So each context is cut into splits. Each split's program writes its own softmax-weighted mean and log-sum-exp, and a
second kernel merges them: a split's share of the whole is exp(its log-sum-exp − the whole one).
"""

import triton
import triton.language as tl

from minipaged.attention.triton.softmax import attend_range


@triton.jit
def split_kernel(
    part_ptr,  # float32 [T, num_heads, num_splits, D]
    part_lse_ptr,  # float32 [T, num_heads, num_splits]
    q_ptr,  # [T, num_heads, D]
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    v_ptr,
    tables_ptr,  # int32 [S, max_blocks]
    seq_lens_ptr,  # int32 [S]
    slopes_ptr,  # float32 [num_heads]; read only with ALIBI
    scale,
    v_scale,
    soft_cap,
    window,
    num_splits,
    part_stride_token,
    part_stride_head,
    part_lse_stride_token,
    part_lse_stride_head,
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
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """As ``decode_kernel``, but one program a (sequence, KV head, split), on its own part of the context."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, D_PAD)
    head = kv_head * GROUP + tl.minimum(row, GROUP - 1)
    in_group = (row < GROUP)[:, None] & (d < D)[None, :]

    # Splits are whole tiles, so that none of them has a ragged end but the last.
    seq_len = tl.load(seq_lens_ptr + seq)
    first = 0
    if WINDOW:
        first = tl.maximum(seq_len - window, 0)
    tiles = tl.cdiv(seq_len - first, TILE)
    per_split = tl.cdiv(tiles, num_splits) * TILE
    start = first + split * per_split
    stop = tl.minimum(start + per_split, seq_len)

    q_offset = seq * q_stride_token + head[:, None] * q_stride_head + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=in_group, other=0.0)
    m_i = tl.full([ROWS], float("-inf"), tl.float32)
    l_i = tl.full([ROWS], 0.0, tl.float32)
    acc = tl.full([ROWS, D_PAD], 0.0, tl.float32)
    m_i, l_i, acc = attend_range(
        q.to(DOT_TYPE), row * 0 + seq_len - 1, head, start, stop, m_i, l_i, acc,
        tables_ptr + seq * tables_stride, k_ptr + kv_head * k_stride_head, v_ptr + kv_head * v_stride_head,
        k_stride_block, k_stride_slot, k_stride_dim, v_stride_block, v_stride_slot, v_stride_dim,
        scale, slopes_ptr, soft_cap, window,
        BLOCK_SIZE, TILE, D, D_PAD, False, WINDOW, SOFT_CAP, ALIBI, DOT_TYPE, PRECISION,
    )  # fmt: skip

    # A split beyond the end of a short context is empty: l = 0. Its mean is 0 and its log-sum-exp −inf, so that
    # the merge gives it the weight 0. (Dividing 0 by 0 instead would give NaN, and NaN · 0 is NaN.)
    empty = l_i == 0
    out = acc * (v_scale / tl.where(empty, 1.0, l_i))[:, None]
    lse = tl.where(empty, float("-inf"), m_i + tl.log(tl.where(empty, 1.0, l_i)))
    part = seq * part_stride_token + head * part_stride_head + split * D
    tl.store(part_ptr + part[:, None] + d[None, :], out, mask=in_group)
    part_lse = seq * part_lse_stride_token + head * part_lse_stride_head + split
    tl.store(part_lse_ptr + part_lse, lse, mask=row < GROUP)


@triton.jit
def merge_kernel(
    out_ptr,  # [T, num_heads, D]
    lse_ptr,  # float32 [T, num_heads]
    part_ptr,  # float32 [T, num_heads, num_splits, D]
    part_lse_ptr,  # float32 [T, num_heads, num_splits]
    sinks_ptr,  # float32 [num_heads]; read only with SINKS
    num_splits,
    out_stride_token,
    out_stride_head,
    lse_stride_token,
    part_stride_token,
    part_stride_head,
    part_lse_stride_token,
    part_lse_stride_head,
    SPLITS_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    SINKS: tl.constexpr,
):
    """One program a (query token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.arange(0, SPLITS_PAD)
    d = tl.arange(0, D_PAD)
    exists = split < num_splits

    part_lse = token * part_lse_stride_token + head * part_lse_stride_head + split
    lse = tl.load(part_lse_ptr + part_lse, mask=exists, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    if SINKS:
        largest = tl.maximum(largest, tl.load(sinks_ptr + head))
    weight = tl.exp(lse - largest)
    total = tl.sum(weight, axis=0)
    if SINKS:
        total += tl.exp(tl.load(sinks_ptr + head) - largest)

    part = token * part_stride_token + head * part_stride_head + split * D
    mask = exists[:, None] & (d < D)[None, :]
    means = tl.load(part_ptr + part[:, None] + d[None, :], mask=mask, other=0.0)
    out = tl.sum(means * (weight / total)[:, None], axis=0)
    out_offset = token * out_stride_token + head * out_stride_head + d
    tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=d < D)
    tl.store(lse_ptr + token * lse_stride_token + head, largest + tl.log(total))
