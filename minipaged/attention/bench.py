"""Benchmarks of attention: paged in place beside gather and contiguous, on the CPU, in the interpreter, on a GPU.

    rows = bench_attention([("8q1s1k", 8, 2, 64)], ["cpu", "gather"], threads=1)  # 8 query heads, 2 KV heads, D 64

Work items name a batch: ``[count]q<new tokens>[k][s<context>[k]]``, joined by ``_``:

    q2k             one prompt of 2048 tokens (no context before it)
    8q1s1k          8 sequences that decode: 1 new token each, context 1024 (the new one included)
    2q2k_32q1s1k    a mix: 2 prompts and 32 decodes in one step

Times are medians. Each candidate is run in turn with the baseline, pair by pair, so that whatever else happens on the
machine meets both; ``ratio`` is the median of the pairs' ratios. Below 1 means faster than the baseline.
"""

from __future__ import annotations

import functools
import random
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from minipaged.attention.launch import get_backend
from minipaged.attention.metadata import AttentionMetadata
from minipaged.attention.reference import gather

_ITEM = re.compile(r"(?P<count>\d+)?q(?P<query>\d+k?)(?:s(?P<context>\d+k?))?")
# The shapes of the CPU's peers: (work, query heads, KV heads, head size).
CPU_SHAPES = [("8q1s1k", 8, 2, 64), ("32q1s256", 8, 2, 64), ("16q1s1k", 16, 8, 128)]
RAGGED = [("7q1s64_q1s1600", 8, 2, 64), ("28q1s64_4q1s1600", 8, 2, 64), ("12q1s128_4q1s3k", 16, 8, 128)]
GPU_SHAPES = [("32q1s2k", 32, 8, 128), ("64q1s4k", 32, 8, 128), ("q2k", 32, 8, 128), ("2q2k_32q1s1k", 32, 8, 128)]
NO_GPU = "torch finds no GPU on this machine: use --device cpu or --device interpreter"
INTERPRETER_SHAPES = [("4q1s1k", 8, 2, 64)]


def parse_work(work: str) -> list[tuple[int, int]]:
    """``work`` → [(query tokens, context)] a sequence. Raises ValueError with the item that is not understood."""
    sequences: list[tuple[int, int]] = []
    for item in work.split("_"):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(
                f"the work item {item!r} of {work!r} is not understood: write [count]q<tokens>[k][s<context>[k]], "
                "as in q2k, 8q1s1k or 2q2k_32q1s1k"
            )
        query = _number(match["query"])
        context = _number(match["context"]) if match["context"] else query
        count = int(match["count"] or 1)
        if not 1 <= query <= context or count < 1:
            raise ValueError(
                f"the work item {item!r} has {count} sequences of {query} new tokens in a context of {context}: count "
                "must be at least 1, and the new tokens between 1 and the context"
            )
        sequences += [(query, context)] * count
    return sequences


def _number(text: str) -> int:
    return 1024 * int(text[:-1]) if text.endswith("k") else int(text)


@dataclass
class Row:
    """One measurement: milliseconds for one layer, ``ratio`` to the baseline, ``gb_per_s`` of K and V read."""

    work: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    device: str
    threads: int
    candidate: str
    baseline: str
    ms: float
    baseline_ms: float
    ratio: float
    gb_per_s: float


@dataclass
class _Batch:
    query: Tensor
    k_cache: Tensor
    v_cache: Tensor
    metadata: AttentionMetadata
    dense: list[tuple[Tensor, Tensor]]  # K and V of each sequence, contiguous, [KV heads, context, head size]
    stacked: tuple[Tensor, Tensor] | None  # the same in one tensor, where all contexts are equal
    scale: float


def _make_batch(
    sequences: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, dtype, device, block_size
) -> _Batch:
    generator = torch.Generator().manual_seed(0)
    needed = [-(-context // block_size) for _, context in sequences]
    ids = list(range(sum(needed)))
    random.Random(0).shuffle(ids)
    tables = [[ids.pop() for _ in range(n)] for n in needed]
    shape = (sum(needed), block_size, kv_heads, head_dim)
    k_cache, v_cache = (torch.randn(shape, generator=generator).to(dtype).to(device) for _ in range(2))
    queries = sum(query for query, _ in sequences)
    metadata = AttentionMetadata.build(
        tables, [context for _, context in sequences], [query for query, _ in sequences], [-1] * queries, device
    )
    dense = [
        tuple(gather(c, table, context).transpose(0, 1).contiguous() for c in (k_cache, v_cache))
        for table, (_, context) in zip(metadata.block_tables, sequences, strict=True)
    ]
    equal = len(set(sequences)) == 1
    stacked = tuple(torch.stack(side) for side in zip(*dense, strict=True)) if equal else None
    query = torch.randn(queries, heads, head_dim, generator=generator).to(dtype).to(device)
    return _Batch(query, k_cache, v_cache, metadata, dense, stacked, head_dim**-0.5)


def _contiguous(batch: _Batch) -> Callable[[], object]:
    """torch's own attention on K and V that already lie contiguous: one call for equal lengths, else one a sequence.

    Query heads of a group are packed as rows for decode: faster than ``enable_gqa``, and exact, as each row sees all.
    """
    sdpa = torch.nn.functional.scaled_dot_product_attention
    num_heads, head_dim = batch.query.shape[1:]
    starts = batch.metadata.query_start_loc.tolist()
    if batch.stacked is not None and batch.metadata.is_decode:
        key, value = batch.stacked
        num_seqs, num_kv_heads = key.shape[:2]
        query = batch.query.view(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
        return lambda: sdpa(query, key, value, scale=batch.scale)

    def one_by_one() -> list[Tensor]:
        results = []
        for s, (key, value) in enumerate(batch.dense):
            query = batch.query[starts[s] : starts[s + 1]]
            groups = (key.shape[0], num_heads // key.shape[0], -1, head_dim)
            if len(query) == 1:
                results.append(sdpa(query.view(groups[0], groups[1], head_dim), key, value, scale=batch.scale))
                continue
            mask = torch.ones(len(query), key.shape[1], dtype=torch.bool, device=query.device)
            mask = None if len(query) == key.shape[1] else mask.tril(key.shape[1] - len(query))
            key, value = (x.unsqueeze(1).expand(groups[0], groups[1], *x.shape[1:]) for x in (key, value))
            query = query.transpose(0, 1).reshape(groups)
            results.append(sdpa(query, key, value, attn_mask=mask, is_causal=mask is None, scale=batch.scale))
        return results

    return one_by_one


def _padded(batch: _Batch) -> Callable[[], object]:
    """Ragged decode the contiguous way: all contexts padded to the longest, the padding masked."""
    longest = batch.metadata.max_seq_len
    num_heads, head_dim = batch.query.shape[1:]
    num_kv_heads = batch.dense[0][0].shape[0]
    key, value = (
        torch.stack([torch.nn.functional.pad(x, (0, 0, 0, longest - x.shape[1])) for x in side])
        for side in zip(*batch.dense, strict=True)
    )
    positions = torch.arange(longest, device=key.device)
    mask = (positions[None, :] < batch.metadata.seq_lens[:, None])[:, None, None, :]
    query = batch.query.view(len(batch.dense), num_kv_heads, num_heads // num_kv_heads, head_dim)
    return lambda: torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=batch.scale
    )


def _gather_first(batch: _Batch) -> Callable[[], object]:
    """Copy the blocks together, then contiguous attention: what paging costs without a kernel that knows it."""
    metadata = batch.metadata

    def copied(cache: Tensor) -> list[Tensor]:
        return [
            gather(cache, table, length).transpose(0, 1)
            for table, length in zip(metadata.block_tables, metadata.seq_lens.tolist(), strict=True)
        ]

    def run() -> object:
        if batch.stacked is None:
            dense, stacked = list(zip(copied(batch.k_cache), copied(batch.v_cache), strict=True)), None
        else:
            tables = metadata.block_tables.long()
            caches = (batch.k_cache[tables], batch.v_cache[tables])
            stacked = tuple(c.flatten(1, 2)[:, : metadata.max_seq_len].transpose(1, 2) for c in caches)
            dense = list(zip(*stacked, strict=True))
        return _contiguous(replace(batch, dense=dense, stacked=stacked))()

    return run


def _candidate(name: str, batch: _Batch, device: torch.device) -> Callable[[], object]:
    if name == "contiguous":
        return _contiguous(batch)
    if name == "padded":
        return _padded(batch)
    if name == "gather":
        return _gather_first(batch)
    # On a GPU the checks would wait for it, and their time would count as the kernel's.
    backend = get_backend(name, device, validate=device.type == "cpu")
    return lambda: backend.attend(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale)


@functools.cache
def _filler(device: torch.device) -> Tensor:
    return torch.empty(1 << 30, dtype=torch.uint8, device=device)


def _time(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call.

    On a GPU, a gigabyte is overwritten first: that empties its cache, and keeps it busy while Python prepares the
    launch, which would count as the kernel's time otherwise.
    """
    if device.type == "cuda":
        _filler(device).zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    begin = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begin)


def bench_attention(
    shapes: list[tuple[str, int, int, int]],
    candidates: list[str],
    baseline: str = "contiguous",
    threads: int = 1,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    block_size: int = 16,
    repeats: int = 30,
) -> list[Row]:
    """Measure each candidate beside the baseline, in alternation, on each (work, query heads, KV heads, head size).

    Candidates: "cpu", "triton", "reference" (the backends), "gather", "padded" (ragged decode), "contiguous".
    Raises ValueError for a work item that is not understood.
    """
    place = torch.device(device)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    rows = []
    try:
        for work, heads, kv_heads, head_dim in shapes:
            sequences = parse_work(work)
            batch = _make_batch(sequences, heads, kv_heads, head_dim, dtype, place, block_size)
            kv_bytes = 2 * sum(c for _, c in sequences) * kv_heads * head_dim * batch.k_cache.element_size()
            base = _candidate(baseline, batch, place)
            for name in candidates:
                call = _candidate(name, batch, place)
                for warm_up in (base, call, base, call):
                    warm_up()
                pairs = [(_time(base, place), _time(call, place)) for _ in range(repeats)]
                ms = statistics.median(pair[1] for pair in pairs)
                rows.append(
                    Row(
                        work, heads, kv_heads, head_dim, str(dtype).removeprefix("torch."), device_name(place), threads,
                        name, baseline, round(ms, 4), round(statistics.median(pair[0] for pair in pairs), 4),
                        round(statistics.median(b / a for a, b in pairs), 3), round(kv_bytes / ms / 1e6, 2),
                    )
                )  # fmt: skip
    finally:
        torch.set_num_threads(before)
    return rows


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def copy_bandwidth(device: str = "cuda", megabytes: int = 1024, repeats: int = 20) -> float:
    """GB/s that the device moves in a plain copy (bytes read and written): the roof for decode."""
    place = torch.device(device)
    source = torch.empty(megabytes << 20, dtype=torch.uint8, device=place)
    target = torch.empty_like(source)
    times = [_time(lambda: target.copy_(source), place) for _ in range(repeats)]
    return 2 * source.numel() / statistics.median(times) / 1e6


def bench_cpu(threads: tuple[int, ...] = (1, 2), repeats: int = 30) -> list[Row]:
    """The course's CPU table: equal lengths beside contiguous, ragged ones beside padded."""
    rows = []
    for n in threads:
        rows += bench_attention(CPU_SHAPES, ["cpu", "gather"], "contiguous", n, repeats=repeats)
        rows += bench_attention(RAGGED, ["cpu", "gather"], "padded", n, repeats=repeats)
    return rows


def bench_gpu(repeats: int = 50) -> dict:
    """The GPU's table: paged decode and prefill beside contiguous, FlexAttention and what else is installed.

    Raises RuntimeError where there is no GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(NO_GPU)
    from minipaged.attention import bench_gpu_peers

    roof = copy_bandwidth()
    rows = bench_attention(GPU_SHAPES, ["triton"], device="cuda", dtype=torch.bfloat16, repeats=repeats)
    return {
        "device": torch.cuda.get_device_name(), "versions": bench_gpu_peers.versions(), "copy_gb_per_s": round(roof, 1),
        "rows": [{**asdict(row), "of_copy_bandwidth": round(row.gb_per_s / roof, 3)} for row in rows],
        "peers": bench_gpu_peers.bench_peers(GPU_SHAPES, repeats),
    }  # fmt: skip


def format_rows(rows: list[Row]) -> str:
    """The rows as a table of plain text."""
    head = ("work", "heads", "D", "threads", "candidate", "ms", "baseline", "ms", "ratio", "GB/s")
    table = [head] + [
        (r.work, f"{r.num_heads}/{r.num_kv_heads}", str(r.head_dim), str(r.threads), r.candidate, f"{r.ms:.3f}",
         r.baseline, f"{r.baseline_ms:.3f}", f"{r.ratio:.2f}", f"{r.gb_per_s:.1f}")
        for r in rows
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table)
