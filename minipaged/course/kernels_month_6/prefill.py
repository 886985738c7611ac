"""Paged prefill: prompts, chunks and decodes of one step in one launch, causal."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.attention import AttentionMetadata
from minipaged.attention.triton.launch_kernels import interpreted
from minipaged.attention.triton.softmax import softmax_update
from minipaged.course.kernels_month_6.decode import load_tile, tile_sizes


@triton.jit
def prefill_kernel(
    out_ptr,  # [T, num_heads, D]
    q_ptr,  # [T, num_heads, D], the sequences one after another
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, D]
    v_ptr,
    tables_ptr,  # int32 [S, max_blocks]
    seq_lens_ptr,  # int32 [S]
    query_start_ptr,  # int32 [S + 1]
    tile_seq_ptr,  # int32 [query tiles]: the sequence of each tile …
    tile_start_ptr,  # … and its first query token, counted within the sequence
    scale,
    stride_block,
    stride_slot,
    tables_stride,
    GROUP: tl.constexpr,  # query heads that share one KV head
    GROUP_PAD: tl.constexpr,  # GROUP, padded
    QUERY_TILE: tl.constexpr,  # query tokens per program
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    seq, first = tl.load(tile_seq_ptr + tile), tl.load(tile_start_ptr + tile)
    query_start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - query_start
    seq_len = tl.load(seq_lens_ptr + seq)
    # Row r is query token r // GROUP_PAD of the tile and query head r % GROUP_PAD of the group.
    row, d = tl.arange(0, QUERY_TILE * GROUP_PAD), tl.arange(0, D_PAD)
    token, in_group = first + row // GROUP_PAD, row % GROUP_PAD
    q_pos = seq_len - query_len + token
    head = (query_start + token) * tl.num_programs(1) * GROUP + kv_head * GROUP + in_group
    q_at = head[:, None] * D + d[None, :]
    q_mask = ((token < query_len) & (in_group < GROUP))[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0)
    m_i = tl.full([QUERY_TILE * GROUP_PAD], float("-inf"), tl.float32)
    l_i = tl.zeros([QUERY_TILE * GROUP_PAD], tl.float32)
    acc = tl.zeros([QUERY_TILE * GROUP_PAD, D_PAD], tl.float32)
    stop = tl.minimum(seq_len - query_len + first + QUERY_TILE, seq_len)
    for start in range(0, stop, TILE):
        pos = start + tl.arange(0, TILE)
        k, v = load_tile(
            k_ptr + kv_head * D, v_ptr + kv_head * D, tables_ptr + seq * tables_stride, pos, pos < stop,
            stride_block, stride_slot, BLOCK_SIZE, D, D_PAD,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        visible = (pos < stop)[None, :] & (pos[None, :] <= q_pos[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        m_i, l_i, acc = softmax_update(m_i, l_i, acc, scores, v, "ieee")
    tl.store(out_ptr + q_at, acc / l_i[:, None], mask=q_mask)


def prefill(query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float) -> Tensor:
    """Any mix of prompts, chunks and decodes: query [T, num_heads, D] → output of the same shape."""
    (_, num_heads, head_dim), (_, block_size, num_kv_heads, _) = query.shape, k_cache.shape
    group, tables, out = num_heads // num_kv_heads, metadata.block_tables, torch.empty_like(query)
    sizes = tile_sizes(head_dim, group, metadata.max_seq_len)
    group_pad = triton.next_power_of_2(group)
    query_tile = max(1, (256 if interpreted() else 16) // group_pad)
    tile_seq, tile_start = metadata.query_tiles(query_tile)
    prefill_kernel[(len(tile_seq), num_kv_heads)](
        out, query, k_cache, v_cache, tables, metadata.seq_lens, metadata.query_start_loc, tile_seq, tile_start, scale,
        k_cache.stride(0), k_cache.stride(1), tables.stride(0),
        GROUP=group, GROUP_PAD=group_pad, QUERY_TILE=query_tile, BLOCK_SIZE=block_size, D=head_dim,
        TILE=sizes["TILE"], D_PAD=sizes["D_PAD"],
    )  # fmt: skip
    return out
