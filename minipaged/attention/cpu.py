"""The fast way on a CPU: Numba kernels that read the paged cache through the block table, in place.

Decode is bound by memory: each cached K and V is read once and used a few times. Copying the blocks together
first (the gather of ``reference.py``) reads and writes everything once more, so it costs 2–6 times as much.
These kernels look each token's block up and read it where it lies. A long prompt is another matter: its
arithmetic outweighs one copy, so there the copy is made and torch's own attention runs on it.

What makes the loops fast: all KV heads of a token are read together, because they lie together; the next tile is
prefetched while this one is computed; a vector of K or V that is in a register serves up to four query heads, and one
of a query four tokens (``cpu_vectors.py``); and the exponential is one that the compiler can vectorise.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from minipaged.attention.cpu_kernels import build_write
from minipaged.attention.cpu_threads import run_jobs
from minipaged.attention.cpu_vectors import width_for
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
        layer = _layer_of(k_cache, v_cache)
        if layer is None or not _readable(key, value):
            return super().write(key, value, k_cache, v_cache, slot_mapping)
        if self.validate:
            validate_write(key, value, k_cache, v_cache, slot_mapping)
        new = (key.detach().numpy(), value.detach().numpy())
        _write_kernel(layer.head_dim)(*new, layer.k, layer.v, layer.block_size, *layer.strides, slot_mapping.numpy())

    def attend(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        layer = _layer_of(k_cache, v_cache)
        ours = layer is not None and self.options.only_window and _readable(query)
        if not ours or not isinstance(metadata, AttentionMetadata):
            return super().attend(query, k_cache, v_cache, metadata, scale, return_lse)
        plan = self._plan(query, k_cache, v_cache, metadata, scale, layer)
        if return_lse and plan.long:
            return super().attend(query, k_cache, v_cache, metadata, scale, return_lse)
        query = query.detach()
        out, lse = np.empty(query.shape, np.float32), np.empty(query.shape[:2], np.float32)
        if len(plan.jobs):
            run_jobs(*plan.kernel, plan.jobs, (query.numpy(), layer.k, layer.v, out, lse, *plan.arguments))
        output = torch.from_numpy(out)
        for s, rows, length in plan.long:
            table = metadata.block_tables[s]
            _attend_long(query[rows], k_cache, v_cache, table, length, scale, self.options.sliding_window, output[rows])
        return (output, torch.from_numpy(lse)) if return_lse else output

    def begin_step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        caches: Sequence[tuple[Tensor, Tensor]],
        metadata: AttentionMetadata,
        scale: float,
    ) -> CPUStep | None:
        """All layers of one step, checked once: for a caller that keeps query, key and value of every layer in the
        same three tensors.

        None where ``write`` or ``attend`` would not take the kernels alone (long new texts, no rows), where layers lie
        differently, or where somebody has replaced one of the two.
        Raises what they raise, before anything is written.
        """
        own = (type(self).write, type(self).attend) == _KERNEL_METHODS and not vars(self).keys() & {"write", "attend"}
        layers = [_layer_of(*both) for both in caches]
        ours = own and None not in layers and self.options.only_window and isinstance(metadata, AttentionMetadata)
        if not ours or not _readable(query, key, value):
            return None
        first = layers[0]
        if any(layer.shape != first.shape or layer.strides != first.strides for layer in layers):
            return None
        plan = self._plan(query, *caches[0], metadata, scale, first)
        if plan.long or not len(plan.jobs):
            return None
        if self.validate:
            validate_write(key, value, *caches[0], metadata.slot_mapping)
        return CPUStep(plan, layers, query.numpy(), key.numpy(), value.numpy(), metadata.slot_mapping.numpy())

    def _plan(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        layer: _Layer,
    ) -> _Plan:
        """Made and checked for the first layer of a step. The others differ in their numbers alone."""
        window = self.options.sliding_window

        def make() -> _Plan:
            if self.validate:
                validate_attend(query, k_cache, v_cache, metadata, self.options, scale)
            return _Plan(metadata, query, layer, scale, window)

        return metadata._once(("cpu", query.shape, layer.shape, layer.strides, scale, window, self.validate), make)


_KERNEL_METHODS = (CPUBackend.write, CPUBackend.attend)


class CPUStep:
    """What ``write`` and ``attend`` do for every layer of a step, without asking the same questions again.

    ``out`` [T, num_heads, head_dim] holds the result of the layer that ran last.
    """

    def __init__(
        self,
        plan: _Plan,
        layers: Sequence[_Layer],
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        slots: np.ndarray,
    ) -> None:
        self.out, self._lse = np.empty(query.shape, np.float32), np.empty(query.shape[:2], np.float32)
        self._plan, self._layers, self._query, self._new = plan, layers, query, (key, value)
        self._write = _write_kernel(layers[0].head_dim)
        self._places = (layers[0].block_size, *layers[0].strides, slots)

    def run(self, index: int) -> None:
        """Write the layer's new keys and values, then attend."""
        layer, plan = self._layers[index], self._plan
        self._write(*self._new, layer.k, layer.v, *self._places)
        run_jobs(*plan.kernel, plan.jobs, (self._query, layer.k, layer.v, self.out, self._lse, *plan.arguments))


class _Layer:
    """One layer's K and V as the kernels read them: flat arrays, and the strides that find a token in them."""

    def __init__(self, k_cache: Tensor, v_cache: Tensor) -> None:
        self.shape = k_cache.shape
        _, self.block_size, self.num_kv_heads, self.head_dim = k_cache.shape
        self.k, self.v = _flat(k_cache), _flat(v_cache)
        self.strides = _strides(k_cache, v_cache)
        self.addresses = (k_cache.data_ptr(), v_cache.data_ptr())


def _strides(k_cache: Tensor, v_cache: Tensor) -> tuple[int, ...]:
    return (*k_cache.stride()[:3], *v_cache.stride()[:3])


_layers: dict[tuple[int, int], tuple[weakref.ref, weakref.ref, _Layer]] = {}


def _layer_of(k_cache: Tensor, v_cache: Tensor) -> _Layer | None:
    """The layer with these caches, remembered for as long as they live; None where the kernels cannot read them."""
    name = (id(k_cache), id(v_cache))
    known = _layers.get(name)
    if known is not None and known[0]() is k_cache and known[1]() is v_cache:
        layer = known[2]
        same_memory = layer.addresses == (k_cache.data_ptr(), v_cache.data_ptr())
        if same_memory and layer.shape == k_cache.shape and layer.strides == _strides(k_cache, v_cache):
            return layer
    if not _readable(k_cache, v_cache) or k_cache.ndim != 4 or k_cache.shape != v_cache.shape or not k_cache.numel():
        return None
    if width_for(k_cache.shape[3]) is None:
        return None
    layer = _Layer(k_cache, v_cache)
    forget = functools.partial(_forget_layer, name)
    _layers[name] = (weakref.ref(k_cache, forget), weakref.ref(v_cache, forget), layer)
    return layer


def _forget_layer(name: tuple[int, int], gone: weakref.ref) -> None:
    if name in _layers and gone in _layers[name][:2]:
        del _layers[name]


class _Plan:
    """What a step asks of the kernel: which rows, in which shares. Long new texts are computed another way.

    kernel              (head size, query heads of a KV head): which kernel
    arguments           what it gets behind this layer's arrays
    jobs                int64 [jobs, 4]: (first row, last row, first KV head, last KV head), for one thread each
    long                [(sequence, slice of query rows, seq_len)]
    """

    def __init__(
        self, metadata: AttentionMetadata, query: Tensor, layer: _Layer, scale: float, window: int | None
    ) -> None:
        seq_lens = metadata.seq_lens.numpy().astype(np.int64)
        if metadata.is_decode:  # row s is sequence s
            self.long, lengths = [], seq_lens
            rows = seqs = np.arange(len(seq_lens))
        else:
            starts = metadata.query_start_loc.numpy().astype(np.int64)
            query_lens = np.diff(starts)
            long = query_lens >= LONG_QUERY
            self.long = [(int(s), slice(starts[s], starts[s + 1]), int(seq_lens[s])) for s in np.flatnonzero(long)]
            all_seqs = np.repeat(np.arange(len(seq_lens)), query_lens)
            rows = np.flatnonzero(~long[all_seqs])
            seqs = all_seqs[rows]
            lengths = seq_lens[seqs] - query_lens[seqs] + (rows - starts[seqs]) + 1  # each row's position + 1
        firsts = np.maximum(lengths - window, 0) if window else np.zeros_like(lengths)
        self.kernel = (layer.head_dim, query.shape[1] // layer.num_kv_heads)
        self.arguments = (
            metadata.block_tables.numpy(), rows, seqs, firsts, lengths,
            np.float32(scale), layer.block_size, *layer.strides,
        )  # fmt: skip
        jobs = _jobs(lengths - firsts, layer.num_kv_heads, query.shape[1] * layer.head_dim)
        self.jobs = np.array(list(jobs), np.int64)


def _jobs(lengths: np.ndarray, num_kv_heads: int, row_size: int) -> Iterator[tuple[int, int, int, int]]:
    """Shares of about equal work, one a thread: by rows, or by KV heads where rows are few.

    Work is the context that is read, not the number of rows, because lengths differ. Little work is not shared out.
    """
    num_rows, threads = len(lengths), torch.get_num_threads()
    if threads == 1 or num_rows == 0 or lengths.sum() * row_size < THREAD_WORK:
        yield from [(0, num_rows, 0, num_kv_heads)] if num_rows else []
    elif num_rows >= 2 * threads:
        work = np.cumsum(lengths)
        cuts = np.searchsorted(work, work[-1] * np.arange(1, threads) / threads, side="left") + 1
        bounds = np.minimum([0, *cuts, num_rows], num_rows).tolist()
        yield from ((a, b, 0, num_kv_heads) for a, b in itertools.pairwise(bounds) if a < b)
    else:
        cuts = np.linspace(0, num_kv_heads, min(threads, num_kv_heads) + 1).astype(int).tolist()
        yield from ((0, num_rows, a, b) for a, b in itertools.pairwise(cuts))


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
    cache = cache.detach()  # another object on the same memory: the layer shall not keep its cache alive
    if cache.is_contiguous():
        return cache.numpy().reshape(-1)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True))
    return cache.as_strided((extent,), (1,)).numpy()


@cache
def _write_kernel(head_dim: int) -> Callable:
    return build_write(head_dim)
