"""Paged decode as the paper tells it: one program per query head, logical block after logical block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.attention import AttentionMetadata


@triton.jit
def one_head_kernel(
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
    BLOCK_SIZE: tl.constexpr,
    BLOCK_PAD: tl.constexpr,  # BLOCK_SIZE and D, padded to powers of two
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // GROUP
    slot, d = tl.arange(0, BLOCK_PAD), tl.arange(0, D_PAD)
    row = (seq * tl.num_programs(1) + head) * D
    q = tl.load(q_ptr + row + d, mask=d < D, other=0.0)
    seq_len = tl.load(seq_lens_ptr + seq)
    m_i = -float("inf")
    l_i = 0.0
    acc = tl.zeros([D_PAD], tl.float32)
    for logical in range(0, tl.cdiv(seq_len, BLOCK_SIZE)):
        # Look up the block. Which of its slots hold tokens of this sequence?
        block = tl.load(tables_ptr + seq * tables_stride + logical).to(tl.int64)
        readable = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = readable[:, None] & (d < D)[None, :]
        at = block * stride_block + slot[:, None] * stride_slot + kv_head * D + d[None, :]
        # Read K and score.
        k = tl.load(k_ptr + at, mask=mask, other=0.0)
        scores = tl.where(readable, tl.sum(q[None, :] * k, axis=1) * scale, -float("inf"))
        # Keep the softmax state.
        m_new = tl.maximum(m_i, tl.max(scores, axis=0))
        correction = tl.exp(m_i - m_new)
        weights = tl.exp(scores - m_new)
        l_i = l_i * correction + tl.sum(weights, axis=0)
        # Read V and accumulate.
        v = tl.load(v_ptr + at, mask=mask, other=0.0)
        acc = acc * correction + tl.sum(weights[:, None] * v, axis=0)
        m_i = m_new
    tl.store(out_ptr + row + d, acc / l_i, mask=d < D)


def one_head_decode(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """One query token a sequence: query [S, num_heads, D] → output of the same shape."""
    (num_seqs, num_heads, head_dim), (_, block_size, num_kv_heads, _) = query.shape, k_cache.shape
    out, tables = torch.empty_like(query), metadata.block_tables
    one_head_kernel[(num_seqs, num_heads)](
        out, query, k_cache, v_cache, tables, metadata.seq_lens, scale,
        k_cache.stride(0), k_cache.stride(1), tables.stride(0), GROUP=num_heads // num_kv_heads,
        BLOCK_SIZE=block_size, BLOCK_PAD=triton.next_power_of_2(block_size),
        D=head_dim, D_PAD=triton.next_power_of_2(head_dim),
    )  # fmt: skip
    return out
