"""Peers on a GPU: what is installed, measured on the same batches as our kernels. Runs only where a GPU is."""

from __future__ import annotations

import importlib.metadata
import statistics
from collections.abc import Callable

import torch

from minipaged.attention import bench


def versions() -> dict[str, str]:
    """Versions of everything that has a part in the figures."""
    found = {"driver": str(torch.version.cuda)}
    for package in ("minipaged", "torch", "triton", "flash-attn", "flashinfer-python", "vllm"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def bench_peers(shapes: list[tuple[str, int, int, int]], repeats: int) -> list[dict]:
    """One row a (work, peer); a peer that is missing or refuses a batch gives a row with the reason."""
    rows = []
    device = torch.device("cuda")
    for work, heads, kv_heads, head_dim in shapes:
        sequences = bench.parse_work(work)
        for name, prepare in PEERS.items():
            # flash-attn takes pages of 256 tokens, the others of 16.
            block_size = 256 if name == "flash-attn" else 16
            batch = bench._make_batch(sequences, heads, kv_heads, head_dim, torch.bfloat16, device, block_size)
            try:
                call = prepare(batch)
                for _ in range(3):
                    call()
                ms = statistics.median(bench._time(call, device) for _ in range(repeats))
                rows.append({"work": work, "peer": name, "ms": round(ms, 4)})
            except Exception as error:  # a peer's failure is a row of the table, not the end of it
                rows.append(
                    {"work": work, "peer": name, "ms": None, "reason": f"{type(error).__name__}: {error}"[:200]}
                )
    return rows


def _flex_paged(batch) -> Callable[[], object]:
    """torch's FlexAttention with its own paged cache (torch.nn.attention.experimental), decode of equal lengths."""
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if batch.stacked is None or not batch.metadata.is_decode:
        raise ValueError("measured for decode of equal lengths only")
    key, value = batch.stacked
    num_seqs, num_kv_heads, length, head_dim = key.shape
    page = 128
    paged = PagedAttention(num_seqs * -(-length // page), page, num_seqs, device="cuda")
    k_pages, v_pages = torch.empty(2, 1, num_kv_heads, paged.n_pages * page, head_dim, device="cuda", dtype=key.dtype)
    for s in range(num_seqs):
        paged.reserve(torch.tensor(s, device="cuda"), torch.tensor(length, device="cuda"))
    everything = torch.arange(num_seqs, device="cuda")
    positions = torch.arange(length, device="cuda").expand(num_seqs, length)
    paged.assign(everything, positions, key, value, k_pages, v_pages)
    logical = create_block_mask(
        lambda b, h, q, kv: kv < length, num_seqs, None, 1, length, device="cuda", BLOCK_SIZE=page
    )
    mask = paged.convert_logical_block_mask(logical)
    query = batch.query.unsqueeze(2)
    flex = torch.compile(flex_attention)
    return lambda: flex(query, k_pages, v_pages, block_mask=mask, scale=batch.scale, enable_gqa=True)


def _flash_attn(batch) -> Callable[[], object]:
    from flash_attn import flash_attn_varlen_func

    m = batch.metadata
    ends = torch.cat([m.seq_lens.new_zeros(1), m.seq_lens.cumsum(0, dtype=torch.int32)])
    return lambda: flash_attn_varlen_func(
        batch.query, batch.k_cache, batch.v_cache, m.query_start_loc, ends, m.max_query_len, m.max_seq_len,
        softmax_scale=batch.scale, causal=True, block_table=m.block_tables.clamp(min=0),
    )  # fmt: skip


def _flashinfer(batch) -> Callable[[], object]:
    import flashinfer

    m, (_, block_size, num_kv_heads, head_dim) = batch.metadata, batch.k_cache.shape
    pages = (m.seq_lens + block_size - 1) // block_size
    indptr = torch.cat([pages.new_zeros(1), pages.cumsum(0, dtype=torch.int32)])
    indices = torch.cat([row[:n] for row, n in zip(m.block_tables, pages.tolist(), strict=True)])
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        m.query_start_loc, indptr, indices, (m.seq_lens - 1) % block_size + 1, batch.query.shape[1], num_kv_heads,
        head_dim, block_size, causal=True, sm_scale=batch.scale, q_data_type=batch.query.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(batch.query, (batch.k_cache, batch.v_cache))


def _vllm(batch) -> Callable[[], object]:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    m, out = batch.metadata, torch.empty_like(batch.query)
    return lambda: unified_attention(
        q=batch.query, k=batch.k_cache, v=batch.v_cache, out=out, cu_seqlens_q=m.query_start_loc,
        max_seqlen_q=m.max_query_len, seqused_k=m.seq_lens, max_seqlen_k=m.max_seq_len, softmax_scale=batch.scale,
        causal=True, window_size=(-1, -1), block_table=m.block_tables, softcap=0, q_descale=None, k_descale=None,
        v_descale=None,
    )  # fmt: skip


PEERS = {
    "flex-attention paged": _flex_paged,
    "flash-attn": _flash_attn,
    "flashinfer": _flashinfer,
    "vllm unified": _vllm,
}
