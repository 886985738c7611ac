"""Small, clean Triton kernels as a learner writes them. ``BUGS`` turns them, one line each, into known wrong ones."""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(
    out, lse, q, k, v, tables, seq_lens, scale, stride_block, stride_slot, num_heads, table_width, num_splits,
    GROUP: tl.constexpr, B: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    seq = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens + seq)
    d = tl.arange(0, D_PAD)
    slot = tl.arange(0, B)
    query = tl.load(q + (seq * num_heads + head) * D + d, mask=d < D, other=0.0)
    kv_head = head // GROUP
    m = -float("inf")
    total = 0.0
    acc = tl.zeros([D_PAD], tl.float32)
    blocks = tl.cdiv(seq_len, B)
    per_split = tl.cdiv(blocks, num_splits)
    for i in range(split * per_split, tl.minimum((split + 1) * per_split, blocks)):
        block = tl.load(tables + seq * table_width + i).to(tl.int64)
        visible = i * B + slot < seq_len
        at = block * stride_block + slot[:, None] * stride_slot + kv_head * D + d[None, :]
        key = tl.load(k + at, mask=visible[:, None] & (d < D)[None, :], other=0.0)
        value = tl.load(v + at, mask=visible[:, None] & (d < D)[None, :], other=0.0)
        score = tl.where(visible, tl.sum(query[None, :] * key, axis=1) * scale, -float("inf"))
        m_new = tl.maximum(m, tl.max(score, axis=0))
        weight = tl.exp(score - m_new)
        correction = tl.exp(m - m_new)
        total = total * correction + tl.sum(weight, axis=0)
        acc = acc * correction + tl.sum(weight[:, None] * value, axis=0)
        m = m_new
    part = (seq * num_heads + head) * num_splits + split
    empty = total == 0
    tl.store(out + part * D + d, acc / tl.where(empty, 1.0, total), mask=d < D)
    tl.store(lse + part, tl.where(empty, -float("inf"), m + tl.log(tl.where(empty, 1.0, total))))


@triton.jit
def merge_kernel(out, parts, lse, num_splits, SPLITS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr):
    row = tl.program_id(0)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, D_PAD)
    part_lse = tl.load(lse + row * num_splits + split, mask=split < num_splits, other=-float("inf"))
    weight = tl.exp(part_lse - tl.max(part_lse, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    at = (row * num_splits + split)[:, None] * D + d[None, :]
    part = tl.load(parts + at, mask=(split < num_splits)[:, None] & (d < D)[None, :], other=0.0)
    tl.store(out + row * D + d, tl.sum(part * weight[:, None], axis=0), mask=d < D)


def attend(query, k_cache, v_cache, metadata, scale, num_splits=2):
    (num_seqs, num_heads, head_dim), (_, block_size, num_kv_heads, _) = query.shape, k_cache.shape
    d_pad = triton.next_power_of_2(head_dim)
    parts = torch.empty(num_seqs, num_heads, num_splits, head_dim)
    lse = torch.empty(num_seqs, num_heads, num_splits)
    part_kernel[(num_seqs, num_heads, num_splits)](
        parts, lse, query, k_cache, v_cache, metadata.block_tables, metadata.seq_lens, scale,
        k_cache.stride(0), k_cache.stride(1), num_heads, metadata.block_tables.shape[1], num_splits,
        GROUP=num_heads // num_kv_heads, B=block_size, D=head_dim, D_PAD=d_pad,
    )  # fmt: skip
    out = torch.empty_like(query)
    splits = triton.next_power_of_2(num_splits)
    merge_kernel[(num_seqs * num_heads,)](out, parts, lse, num_splits, SPLITS=splits, D=head_dim, D_PAD=d_pad)
    return out


@triton.jit
def store_kernel(key, value, k, v, slots, stride_block, stride_slot, B: tl.constexpr, ROW: tl.constexpr):
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    if slot >= 0:
        i = tl.arange(0, ROW)
        at = (slot // B) * stride_block + (slot % B) * stride_slot + i
        tl.store(k + at, tl.load(key + token * ROW + i))
        tl.store(v + at, tl.load(value + token * ROW + i))


def write(key, value, k_cache, v_cache, slot_mapping):
    store_kernel[(len(slot_mapping),)](
        key, value, k_cache, v_cache, slot_mapping, k_cache.stride(0), k_cache.stride(1),
        B=k_cache.shape[1], ROW=key[0].numel(),
    )  # fmt: skip


# name: (function to judge, line as it is, line as it is not meant to be)
BUGS = {
    "int32 overflow": (
        "attend",
        "block = tl.load(tables + seq * table_width + i).to(tl.int64)",
        "block = tl.load(tables + seq * table_width + i)",
    ),
    "0 times NaN": (
        "attend",
        "value = tl.load(v + at, mask=visible[:, None] & (d < D)[None, :], other=0.0)",
        "value = tl.load(v + at, mask=(d < D)[None, :], other=0.0)",
    ),
    "query head as KV head": ("attend", "kv_head = head // GROUP", "kv_head = head"),
    "wrong split merge": (
        "attend",
        "weight = tl.exp(part_lse - tl.max(part_lse, axis=0))",
        "weight = tl.where(split < num_splits, 1.0, 0.0)",
    ),
    "slot off by one": ("write", "slot = tl.load(slots + token)", "slot = tl.load(slots + token) + 1"),
}
