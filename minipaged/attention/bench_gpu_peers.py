"""Peers on a GPU: what is installed, measured on the same batches as our kernels. Runs only where a GPU is."""

from __future__ import annotations

import importlib.metadata
import statistics
import subprocess
from collections.abc import Callable, Mapping

import torch

from minipaged.attention import bench
from minipaged.attention.reference import paged_attention

FAR_OFF = 2e-2  # of bfloat16 results, relative to the largest true value: what is further off is not attention


def versions() -> dict[str, str]:
    """Versions of everything that has a part in the figures."""
    found = {"driver": _driver(), "cuda": str(torch.version.cuda or torch.version.hip)}
    for package in ("minipaged", "torch", "triton", "flash-attn", "flashinfer-python", "vllm"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def bench_peers(
    shapes: list[tuple[str, int, int, int]],
    repeats: int,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    peers: Mapping[str, Callable] | None = None,
) -> list[dict]:
    """One row a (work, peer). A peer that is missing, refuses a batch or computes something else gives a row with
    the reason, and no time."""
    rows = []
    place = torch.device(device)
    for work, heads, kv_heads, head_dim in shapes:
        sequences = bench.parse_work(work)
        for name, prepare in (peers or PEERS).items():
            # flash-attn takes pages of 256 tokens, the others of 16.
            block_size = 256 if name == "flash-attn" else 16
            batch = bench._make_batch(sequences, heads, kv_heads, head_dim, dtype, place, block_size)
            row = {"work": work, "peer": name, "ms": None}
            try:
                call = prepare(batch)
                error = _error(call(), batch)
                if not error <= FAR_OFF:
                    raise ValueError(f"its result is off by {error} of the largest value")
                row["error"] = error
                for _ in range(2):
                    call()
                row["ms"] = round(statistics.median(bench._time(call, place) for _ in range(repeats)), 4)
            except Exception as failure:  # a peer's failure is a row of the table, not the end of it
                row["reason"] = f"{type(failure).__name__}: {failure}"[:200]
            rows.append(row)
    return rows


def _error(out: torch.Tensor, batch) -> float:
    """The largest difference from plain torch, relative to the largest true value."""
    truth, _ = paged_attention(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale)
    difference = out.reshape(truth.shape).float() - truth.float()
    return round(float(difference.abs().max() / truth.float().abs().max()), 6)


def _flex_paged(batch) -> Callable[[], object]:
    """torch's FlexAttention with its own paged cache (torch.nn.attention.experimental), decode of equal lengths."""
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if batch.stacked is None or not batch.metadata.is_decode:
        raise ValueError("measured for decode of equal lengths only")
    key, value = batch.stacked
    num_seqs, num_kv_heads, length, head_dim = key.shape
    place, page = key.device, 128
    paged = PagedAttention(num_seqs * -(-length // page), page, num_seqs, device=str(place))
    # In pages nobody has written, the softmax's weights are 0; zeros keep 0 · NaN out.
    k_pages, v_pages = torch.zeros(2, 1, num_kv_heads, paged.n_pages * page, head_dim, device=place, dtype=key.dtype)
    for s in range(num_seqs):
        paged.reserve(torch.tensor(s, device=place), torch.tensor(length, device=place))
    everything = torch.arange(num_seqs, device=place)
    positions = torch.arange(length, device=place).expand(num_seqs, length)
    paged.assign(everything, positions, key, value, k_pages, v_pages)
    logical = create_block_mask(
        lambda b, h, q, kv: kv < length, num_seqs, None, 1, length, device=place, BLOCK_SIZE=page
    )
    mask = paged.convert_logical_block_mask(logical)
    query = batch.query.unsqueeze(2)
    flex = torch.compile(flex_attention) if place.type == "cuda" else flex_attention
    return lambda: flex(query, k_pages, v_pages, block_mask=mask, scale=batch.scale, enable_gqa=True)


def _flash_attn(batch) -> Callable[[], object]:
    from flash_attn import flash_attn_varlen_func

    m = batch.metadata
    ends = torch.cat([m.seq_lens.new_zeros(1), m.seq_lens.cumsum(0, dtype=torch.int32)])
    tables = m.block_tables.clamp(min=0)
    return lambda: flash_attn_varlen_func(
        batch.query, batch.k_cache, batch.v_cache, m.query_start_loc, ends, m.max_query_len, m.max_seq_len,
        softmax_scale=batch.scale, causal=True, block_table=tables,
    )  # fmt: skip


def _flashinfer(batch) -> Callable[[], object]:
    import flashinfer

    m, (_, block_size, num_kv_heads, head_dim) = batch.metadata, batch.k_cache.shape
    pages = (m.seq_lens + block_size - 1) // block_size
    indptr = torch.cat([pages.new_zeros(1), pages.cumsum(0, dtype=torch.int32)])
    indices = torch.cat([row[:n] for row, n in zip(m.block_tables, pages.tolist(), strict=True)])
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=batch.query.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        m.query_start_loc, indptr, indices, (m.seq_lens - 1) % block_size + 1, batch.query.shape[1], num_kv_heads,
        head_dim, block_size, causal=True, sm_scale=batch.scale, q_data_type=batch.query.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(batch.query, (batch.k_cache, batch.v_cache))


def _vllm(batch) -> Callable[[], object]:
    """As vLLM 0.32's Triton backend calls it: with few sequences, the context is cut into 16 segments
    (vllm/v1/attention/backends/triton_attn.py · MIN_LAUNCH_GRID_SIZE_2D, NUM_PAR_SOFTMAX_SEGMENTS)."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    m, out = batch.metadata, torch.empty_like(batch.query)
    num_heads, head_dim = batch.query.shape[1:]
    most, segments = 128 // batch.k_cache.shape[2], 16
    shape, place = (max(1, most), num_heads, segments), batch.query.device
    padded = 1 << (head_dim - 1).bit_length()

    def call() -> torch.Tensor:
        unified_attention(
            q=batch.query, k=batch.k_cache, v=batch.v_cache, out=out, cu_seqlens_q=m.query_start_loc,
            max_seqlen_q=m.max_query_len, seqused_k=m.seq_lens, max_seqlen_k=m.max_seq_len, softmax_scale=batch.scale,
            causal=True, window_size=(-1, -1), block_table=m.block_tables, softcap=0, q_descale=None, k_descale=None,
            v_descale=None, seq_threshold_3D=most, num_par_softmax_segments=segments, softmax_segm_output=parts,
            softmax_segm_max=largest, softmax_segm_expsum=sums,
        )  # fmt: skip
        return out

    parts = torch.empty(*shape, padded, dtype=torch.float32, device=place)
    largest, sums = torch.empty(2, *shape, dtype=torch.float32, device=place)
    return call


PEERS = {
    "flex-attention paged": _flex_paged,
    "flash-attn": _flash_attn,
    "flashinfer": _flashinfer,
    "vllm unified": _vllm,
}
