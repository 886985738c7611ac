"""Split-KV decode: several programs share one context; a second kernel merges what they found."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.attention import AttentionMetadata
from minipaged.attention.triton.softmax import softmax_update
from minipaged.course.kernels_month_6.decode import load_tile, tile_sizes


@triton.jit
def split_kernel(
    part_ptr,  # float32 [S, num_heads, num_splits, D]
    lse_ptr,  # float32 [S, num_heads, num_splits]
    q_ptr,  # [S, num_heads, D]
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    v_ptr,
    tables_ptr,  # int32 [S, max_blocks]
    seq_lens_ptr,  # int32 [S]
    scale,
    stride_block,
    stride_slot,
    tables_stride,
    GROUP: tl.constexpr,  # query heads that share one KV head
    ROWS: tl.constexpr,  # GROUP, padded
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # tokens per step: not the block size
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_splits = tl.num_programs(2)
    row, d = tl.arange(0, ROWS), tl.arange(0, D_PAD)
    head = (seq * tl.num_programs(1) + kv_head) * GROUP + row
    q_at = head[:, None] * D + d[None, :]
    q_mask = (row < GROUP)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0)
    seq_len = tl.load(seq_lens_ptr + seq)
    # This program's share: whole tiles, so that only the last one can be ragged.
    share = tl.cdiv(tl.cdiv(seq_len, TILE), num_splits) * TILE
    stop = tl.minimum((split + 1) * share, seq_len)
    m_i = tl.full([ROWS], float("-inf"), tl.float32)
    l_i = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D_PAD], tl.float32)
    for start in range(split * share, stop, TILE):
        pos = start + tl.arange(0, TILE)
        readable = pos < stop
        k, v = load_tile(
            k_ptr + kv_head * D, v_ptr + kv_head * D, tables_ptr + seq * tables_stride, pos, readable,
            stride_block, stride_slot, BLOCK_SIZE, D, D_PAD,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(readable[None, :], scores, float("-inf"))
        m_i, l_i, acc = softmax_update(m_i, l_i, acc, scores, v, "ieee")
    # A share beyond a short context's end is empty: mean 0, log-sum-exp −inf, and so weight 0.
    total = tl.where(l_i == 0, 1.0, l_i)
    lse = tl.where(l_i == 0, float("-inf"), m_i + tl.log(total))
    part = head * num_splits + split
    tl.store(part_ptr + part[:, None] * D + d[None, :], acc / total[:, None], mask=q_mask)
    tl.store(lse_ptr + part, lse, mask=row < GROUP)


@triton.jit
def merge_kernel(
    out_ptr,  # [S · num_heads, D]
    part_ptr,  # float32 [S · num_heads, num_splits, D]
    lse_ptr,  # float32 [S · num_heads, num_splits]
    num_splits,
    SPLITS_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    """One program per (sequence, head)."""
    row = tl.program_id(0)
    split, d = tl.arange(0, SPLITS_PAD), tl.arange(0, D_PAD)
    exists = split < num_splits
    lse = tl.load(lse_ptr + row * num_splits + split, mask=exists, other=float("-inf"))
    weight = tl.exp(lse - tl.max(lse, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    part_at = (row * num_splits + split)[:, None] * D + d[None, :]
    parts = tl.load(part_ptr + part_at, mask=exists[:, None] & (d < D)[None, :], other=0.0)
    tl.store(out_ptr + row * D + d, tl.sum(weight[:, None] * parts, axis=0), mask=d < D)


def split_decode(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float, num_splits: int = 2
) -> Tensor:
    """As ``decode``, with ``num_splits`` programs per (sequence, KV head)."""
    (num_seqs, num_heads, head_dim), (_, block_size, num_kv_heads, _) = query.shape, k_cache.shape
    group, tables, out = num_heads // num_kv_heads, metadata.block_tables, torch.empty_like(query)
    sizes = tile_sizes(head_dim, group, metadata.max_seq_len // num_splits)
    parts = torch.empty(num_seqs, num_heads, num_splits, head_dim, dtype=torch.float32, device=query.device)
    lses = torch.empty(num_seqs, num_heads, num_splits, dtype=torch.float32, device=query.device)
    split_kernel[(num_seqs, num_kv_heads, num_splits)](
        parts, lses, query, k_cache, v_cache, tables, metadata.seq_lens, scale,
        k_cache.stride(0), k_cache.stride(1), tables.stride(0),
        GROUP=group, BLOCK_SIZE=block_size, D=head_dim, **sizes,
    )  # fmt: skip
    merge_kernel[(num_seqs * num_heads,)](
        out, parts, lses, num_splits,
        SPLITS_PAD=triton.next_power_of_2(num_splits), D=head_dim, D_PAD=sizes["D_PAD"],
    )  # fmt: skip
    return out
