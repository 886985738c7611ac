"""Paged decode for a GPU's matrix units: a group's query heads are the rows of one matrix, a tile has any size."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.attention import AttentionMetadata
from minipaged.attention.triton.launch_kernels import interpreted
from minipaged.attention.triton.softmax import softmax_update


@triton.jit
def load_tile(
    k_ptr,  # of one KV head
    v_ptr,
    table_ptr,  # of one sequence
    pos,  # [TILE]: positions in the sequence
    readable,  # [TILE]: which of them hold a token
    stride_block,
    stride_slot,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    """K and V at ``pos``, [TILE, D_PAD] each: every lane looks up the block of its own token."""
    d = tl.arange(0, D_PAD)
    block = tl.load(table_ptr + pos // BLOCK_SIZE, mask=readable, other=0).to(tl.int64)
    offset = block * stride_block + (pos % BLOCK_SIZE) * stride_slot
    at = offset[:, None] + d[None, :]
    mask = readable[:, None] & (d < D)[None, :]
    k = tl.load(k_ptr + at, mask=mask, other=0.0)
    v = tl.load(v_ptr + at, mask=mask, other=0.0)
    return k, v


@triton.jit
def decode_kernel(
    out_ptr,  # [S, num_heads, D]
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
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    row, d = tl.arange(0, ROWS), tl.arange(0, D_PAD)
    head = (seq * tl.num_programs(1) + kv_head) * GROUP + row
    q_at = head[:, None] * D + d[None, :]
    q_mask = (row < GROUP)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0)
    seq_len = tl.load(seq_lens_ptr + seq)
    m_i = tl.full([ROWS], float("-inf"), tl.float32)
    l_i = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D_PAD], tl.float32)
    for start in range(0, seq_len, TILE):
        pos = start + tl.arange(0, TILE)
        readable = pos < seq_len
        k, v = load_tile(
            k_ptr + kv_head * D, v_ptr + kv_head * D, tables_ptr + seq * tables_stride, pos, readable,
            stride_block, stride_slot, BLOCK_SIZE, D, D_PAD,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(readable[None, :], scores, float("-inf"))
        m_i, l_i, acc = softmax_update(m_i, l_i, acc, scores, v, "ieee")
    tl.store(out_ptr + q_at, acc / l_i[:, None], mask=q_mask)


def tile_sizes(head_dim: int, group: int, longest: int) -> dict[str, int]:
    """TILE, ROWS and D_PAD. A GPU's matrix units want 16 or more of each; the interpreter wants few, large steps."""
    if interpreted():
        tile = min(1024, max(16, triton.next_power_of_2(longest)))
        return {"TILE": tile, "ROWS": triton.next_power_of_2(group), "D_PAD": triton.next_power_of_2(head_dim)}
    rows, d_pad = max(16, triton.next_power_of_2(group)), max(16, triton.next_power_of_2(head_dim))
    return {"TILE": 32, "ROWS": rows, "D_PAD": d_pad}


def decode(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float, tile: int | None = None
) -> Tensor:
    """One query token per sequence: query [S, num_heads, D] → output of the same shape. ``tile``: tokens per step."""
    (num_seqs, num_heads, head_dim), (_, block_size, num_kv_heads, _) = query.shape, k_cache.shape
    group, tables, out = num_heads // num_kv_heads, metadata.block_tables, torch.empty_like(query)
    sizes = tile_sizes(head_dim, group, metadata.max_seq_len)
    decode_kernel[(num_seqs, num_kv_heads)](
        out, query, k_cache, v_cache, tables, metadata.seq_lens, scale,
        k_cache.stride(0), k_cache.stride(1), tables.stride(0),
        GROUP=group, BLOCK_SIZE=block_size, D=head_dim, **{**sizes, "TILE": tile or sizes["TILE"]},
    )  # fmt: skip
    return out
