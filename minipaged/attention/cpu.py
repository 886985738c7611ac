"""The fast way on a CPU: Numba kernels that read the paged cache through the block table, in place.

Decode is bound by memory: each cached K and V is read once and used a few times. Copying the blocks together
first (the gather of ``reference.py``) reads and writes everything once more, so it costs 2–6 times as much.
These kernels look each token's block up and read it where it lies. A long prompt is another matter: its
arithmetic outweighs one copy, so there the copy is made and torch's own attention runs on it.

What makes the loops fast, in order of effect: all KV heads of a token are read together, because they lie
together; the next tile is prefetched while this one is computed; sums over four values at a time; and an
exponential that the compiler can vectorise.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from minipaged.attention.cpu_kernels import build_attend, build_write
from minipaged.attention.metadata import AttentionMetadata
from minipaged.attention.reference import ReferenceBackend, gather
from minipaged.attention.validate import validate_attend, validate_write

LONG_QUERY = 16  # new tokens of one sequence from which copying its context and using matrix products pays
THREAD_WORK = 1 << 16  # multiply-adds below which a second thread costs more than it saves


class CPUBackend(ReferenceBackend):
    """float32, with a sliding window or without, runs in the Numba kernels; everything else, other options and other
    types, takes the reference's gather path."""

    name = "cpu"

    def write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        if not _readable(key, value, k_cache, v_cache):
            return super().write(key, value, k_cache, v_cache, slot_mapping)
        if self.validate:
            validate_write(key, value, k_cache, v_cache, slot_mapping)
        kernel, slots = _write_kernel(k_cache.shape[3]), slot_mapping.numpy()
        for new, target in ((key, k_cache), (value, v_cache)):
            kernel(new.detach().numpy(), _flat(target), *target.stride()[:3], target.shape[1], slots)

    def attend(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if self.validate:
            validate_attend(query, k_cache, v_cache, metadata, self.options, scale)
        ours = self.options.only_window and _readable(query, k_cache, v_cache)
        if not ours or (return_lse and metadata.max_query_len >= LONG_QUERY):
            return super().attend(query, k_cache, v_cache, metadata, scale, return_lse)
        query = query.detach()
        out = np.empty(query.shape, np.float32)
        lse = np.empty(query.shape[:2], np.float32)
        window = self.options.sliding_window
        plan = metadata._once(("cpu_plan", window), lambda: _Plan(metadata, window))
        if len(plan.rows):
            _attend_rows(query, k_cache, v_cache, plan, scale, out, lse)
        output = torch.from_numpy(out)
        for s, rows, length in plan.long:
            table = metadata.block_tables[s]
            _attend_long(query[rows], k_cache, v_cache, table, length, scale, window, output[rows])
        return (output, torch.from_numpy(lse)) if return_lse else output


class _Plan:
    """How the query tokens of a step are divided: short sequences row by row, long ones each by a copy.

    rows     int64 [R]   the query rows that the Numba kernel takes
    seqs     int64 [R]   the sequence of each row
    lengths  int64 [R]   the context before each row, itself included: its position + 1
    firsts   int64 [R]   the first position that each row sees: 0, or where its sliding window begins
    long     [(sequence, slice of query rows, seq_len)]
    """

    def __init__(self, metadata: AttentionMetadata, window: int | None) -> None:
        starts = metadata.query_start_loc.numpy().astype(np.int64)
        seq_lens = metadata.seq_lens.numpy()
        self.tables = metadata.block_tables.numpy()
        if metadata.is_decode:  # nothing to divide, nothing to look up: row s is sequence s
            self.long = []
            self.rows = self.seqs = np.arange(len(seq_lens))
            self._see(seq_lens.astype(np.int64), window)
            return
        query_lens = np.diff(starts)
        long = query_lens >= LONG_QUERY
        self.long = [(int(s), slice(starts[s], starts[s + 1]), int(seq_lens[s])) for s in np.flatnonzero(long)]
        seqs = np.repeat(np.arange(len(seq_lens)), query_lens)
        rows = np.arange(starts[-1])
        keep = ~long[seqs]
        self.rows, self.seqs = rows[keep], seqs[keep]
        self._see(seq_lens[self.seqs] - query_lens[self.seqs] + (self.rows - starts[self.seqs]) + 1, window)

    def _see(self, lengths: np.ndarray, window: int | None) -> None:
        self.lengths = lengths
        self.firsts = np.maximum(self.lengths - window, 0) if window else np.zeros_like(self.lengths)
        self.work = np.cumsum(self.lengths - self.firsts)

    def shares(self, num_shares: int) -> list[tuple[int, int]]:
        """Ranges of rows with about equal work: tokens of context to read, not rows, because lengths differ."""
        targets = self.work[-1] * np.arange(1, num_shares) / num_shares
        cuts = np.searchsorted(self.work, targets, side="left") + 1
        bounds = np.minimum([0, *cuts, len(self.rows)], len(self.rows))
        return [(int(a), int(b)) for a, b in itertools.pairwise(bounds) if a < b]


def _attend_rows(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, plan: _Plan, scale: float, out: np.ndarray, lse: np.ndarray
) -> None:
    """Run the kernel, shared out over torch's number of threads: by rows, or by KV heads when rows are few."""
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    kernel = _attend_kernel(head_dim, query.shape[1] // num_kv_heads)
    arrays = (
        query.numpy(), _flat(k_cache), _flat(v_cache), plan.tables, plan.rows, plan.seqs, plan.firsts, plan.lengths,
        out, lse, np.float32(scale), block_size, *k_cache.stride()[:3], *v_cache.stride()[:3],
    )  # fmt: skip
    threads = torch.get_num_threads()
    if threads == 1 or plan.work[-1] * query.shape[1] * head_dim < THREAD_WORK:
        kernel(0, len(plan.rows), 0, num_kv_heads, *arrays)
        return
    if len(plan.rows) >= 2 * threads:
        jobs = [(*share, 0, num_kv_heads) for share in plan.shares(threads)]
    else:
        cuts = np.linspace(0, num_kv_heads, min(threads, num_kv_heads) + 1).astype(int).tolist()
        jobs = [(0, len(plan.rows), a, b) for a, b in itertools.pairwise(cuts)]
    _run_jobs([lambda job=job: kernel(*job, *arrays) for job in jobs], threads)


def _attend_long(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table: Tensor,
    length: int,
    scale: float,
    window: int | None,
    out: Tensor,
) -> None:
    """One sequence with many query tokens: copy its context together, then torch's attention."""
    num_queries, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    if window is not None:  # blocks before the first query's window are not copied
        unseen = max(0, length - num_queries - window + 1) // block_size
        table, length = table[unseen:], length - unseen * block_size
    grouped = (num_kv_heads, num_heads // num_kv_heads, -1, head_dim)
    key, value = (
        gather(cache, table, length).transpose(0, 1).unsqueeze(1).expand(grouped[0], grouped[1], length, head_dim)
        for cache in (k_cache, v_cache)
    )
    mask = None
    if num_queries < length or window is not None:
        # torch's is_causal puts the first query at position 0, which holds only without history.
        distance = torch.arange(length - num_queries, length)[:, None] - torch.arange(length)[None, :]
        mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    result = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1).reshape(grouped), key, value, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    out.copy_(result.reshape(num_heads, num_queries, head_dim).transpose(0, 1))


def _readable(*tensors: Tensor) -> bool:
    """float32 in ordinary memory, with each head's elements side by side."""
    return all(isinstance(t, Tensor) and t.dtype is torch.float32 and t.is_cpu and t.stride(-1) == 1 for t in tensors)


def _flat(cache: Tensor) -> np.ndarray:
    """All memory from the cache's first to its last element, flat: the kernels do the strides themselves."""
    if cache.is_contiguous():
        return cache.numpy().reshape(-1)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True))
    return cache.as_strided((extent,), (1,)).numpy()


@cache
def _attend_kernel(head_dim: int, group: int) -> Callable:
    return build_attend(head_dim, group)


@cache
def _write_kernel(head_dim: int) -> Callable:
    return build_write(head_dim)


_pool: ThreadPoolExecutor | None = None


def _run_jobs(jobs: Sequence[Callable[[], None]], threads: int) -> None:
    """Run the jobs at the same time (the kernels release the interpreter lock), the first one in this thread."""
    global _pool
    if _pool is None or _pool._max_workers < threads - 1:
        _pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="minipaged-attention")
    waiting = [_pool.submit(job) for job in jobs[1:]]
    jobs[0]()
    for future in waiting:
        future.result()


def _forget_pool() -> None:
    """A forked child has none of the parent's threads: without this it would wait for them for ever."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
