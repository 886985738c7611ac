"""The checks in front of every kernel, which has none itself: a wrong id reads garbage or ends the process.

Each check is one or two vectorised comparisons, made before anything is written, and the error names the
value, the limit and the way out. A step of N layers pays once: what was checked of the metadata is remembered
with it, and shapes and types that were found good need no second look. Backends take ``validate=False`` for
benchmarks.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from minipaged.attention.metadata import UNUSED, AttentionMetadata
from minipaged.attention.options import PLAIN, AttentionOptions

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_last_slots: tuple = (None, 0, 0)  # the slot mapping checked last: every layer of a step brings the same one
_good_layouts: set[tuple] = set()
MOST_LAYOUTS = 1000  # remembered; a step of another number of tokens is another layout


def _layout(*tensors: Tensor) -> tuple | None:
    """All that the checks by shape, type and device look at; None when something is no tensor."""
    try:
        return tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors)
    except AttributeError:
        return None


def _remember(layout: tuple | None) -> None:
    if len(_good_layouts) >= MOST_LAYOUTS:
        _good_layouts.clear()
    if layout is not None:
        _good_layouts.add(layout)


def _require_tensor(name: str, tensor: object, ndim: int, dtypes: tuple[torch.dtype, ...], layout: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, but a torch tensor {layout} is needed")
    if tensor.ndim != ndim:
        raise ValueError(f"{name} has the shape {list(tensor.shape)}, but {layout} is needed: {ndim} dimensions")
    if tensor.dtype not in dtypes:
        allowed = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} is {tensor.dtype}, but one of {allowed} is needed: convert it with .to(...)")


def _require_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(
            f"{name} is on {tensor.device}, but the KV cache is on {device}: move it with .to({str(device)!r})"
        )


def validate_cache(k_cache: Tensor, v_cache: Tensor) -> None:
    """Both caches are ``[num_blocks, block_size, num_kv_heads, head_dim]``, of one shape, dtype and device."""
    layout = "[num_blocks, block_size, num_kv_heads, head_dim]"
    _require_tensor("k_cache", k_cache, 4, FLOATS + FP8, layout)
    _require_tensor("v_cache", v_cache, 4, FLOATS + FP8, layout)
    if k_cache.shape != v_cache.shape or k_cache.dtype != v_cache.dtype:
        raise ValueError(
            f"k_cache is {list(k_cache.shape)} {k_cache.dtype} and v_cache is {list(v_cache.shape)} "
            f"{v_cache.dtype}: they must agree, make both with one KVCacheStorage"
        )
    if 0 in k_cache.shape:
        raise ValueError(
            f"the KV cache has the shape {list(k_cache.shape)}: {layout[1:-1]} must all be at least 1, or there is "
            "nothing to read"
        )
    _require_device("v_cache", v_cache, k_cache.device)


def validated_options(options: object) -> AttentionOptions:
    """``options`` as they are, when they are AttentionOptions."""
    if not isinstance(options, AttentionOptions):
        raise TypeError(f"options is a {type(options).__name__}, but an AttentionOptions is needed")
    return options


def _require_own_memory(cache: Tensor, name: str) -> None:
    """Two blocks, or two slots, that are the same memory (as ``expand`` makes them) cannot be written apart."""
    for axis, what in enumerate(("blocks", "slots", "KV heads", "elements")):
        if cache.stride(axis) == 0 and cache.shape[axis] > 1:
            raise ValueError(
                f"all {cache.shape[axis]} {what} of {name} are the same memory (stride 0): it cannot be written, "
                "make it with KVCacheStorage, or call .clone() after .expand()"
            )


def validate_slots(slot_mapping: Tensor, num_slots: int) -> None:
    """Every slot lies in −1 … num_slots − 1, and no slot is written twice. Remembered for the next layer."""
    global _last_slots
    if slot_mapping.numel() == 0:
        return
    seen, version, limit = _last_slots
    counted = not slot_mapping.is_inference()  # torch counts the changes of all other tensors
    known = seen is not None and seen() is slot_mapping and limit == num_slots
    if counted and known and version == slot_mapping._version:
        return
    slots = slot_mapping.cpu().numpy()
    in_order = np.sort(slots)
    if in_order[0] < -1 or in_order[-1] >= num_slots:
        index = int(((slots < -1) | (slots >= num_slots)).nonzero()[0][0])
        raise ValueError(
            f"slot_mapping[{index}] is {slots[index]}, but the cache has the slots 0 … "
            f"{num_slots - 1} (−1 skips a token): compute slots as block_id * block_size + offset from an "
            "allocated block table"
        )
    twice = in_order[1:][(in_order[1:] == in_order[:-1]) & (in_order[1:] >= 0)]
    if len(twice):
        tokens = (slots == twice[0]).nonzero()[0].tolist()
        raise ValueError(
            f"slot {twice[0]} is given to the tokens {tokens} of one step, but a slot holds one token: "
            "give each new token its own slot"
        )
    if counted:
        _last_slots = (weakref.ref(slot_mapping), slot_mapping._version, num_slots)


def validate_write(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Everything that ``AttentionBackend.write`` takes for granted."""
    layout = _layout(key, value, k_cache, v_cache, slot_mapping)
    if layout not in _good_layouts:
        _validate_write_layout(key, value, k_cache, v_cache, slot_mapping)
        _remember(layout)
    validate_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])


def _validate_write_layout(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    validate_cache(k_cache, v_cache)
    num_kv_heads, head_dim = k_cache.shape[2:]
    _require_tensor("slot_mapping", slot_mapping, 1, (torch.int64,), "[num_tokens]")
    for name, tensor in (("key", key), ("value", value)):
        _require_tensor(name, tensor, 3, FLOATS + FP8, "[num_tokens, num_kv_heads, head_dim]")
        expected = [len(slot_mapping), num_kv_heads, head_dim]
        if list(tensor.shape) != expected:
            raise ValueError(
                f"{name} has the shape {list(tensor.shape)}, but {expected} is needed: one row for each of "
                f"the {len(slot_mapping)} slots, in the cache's {num_kv_heads} KV heads of size {head_dim}"
            )
        _require_device(name, tensor, k_cache.device)
    _require_device("slot_mapping", slot_mapping, k_cache.device)
    _require_own_memory(k_cache, "k_cache")
    _require_own_memory(v_cache, "v_cache")


def validate_metadata(metadata: AttentionMetadata, num_blocks: int, block_size: int) -> None:
    """Every length fits its table, and every id that will be read lies in the pool.

    The outcome is remembered until one of the tensors is changed in place.
    """
    metadata._once(("valid", num_blocks, block_size), lambda: _validate_metadata(metadata, num_blocks, block_size))


def _validate_metadata(metadata: AttentionMetadata, num_blocks: int, block_size: int) -> None:
    tables, lens, starts = (
        tensor.cpu().numpy() for tensor in (metadata.block_tables, metadata.seq_lens, metadata.query_start_loc)
    )
    num_seqs, width = tables.shape
    if len(lens) != num_seqs or len(starts) != num_seqs + 1:
        raise ValueError(
            f"block_tables has {num_seqs} rows, seq_lens {len(lens)} and query_start_loc "
            f"{len(starts)} entries: that many sequences need {num_seqs} lengths and "
            f"{num_seqs + 1} starts"
        )
    _validate_lengths(metadata, lens, starts[1:] - starts[:-1])
    read = np.arange(0, width * block_size, block_size) < lens[:, None]  # is the block's first token in the context?
    good = tables.view(np.uint32) < min(num_blocks, 1 << 31)  # read as unsigned, a negative id is above all others
    if np.count_nonzero(read & ~good) or np.maximum.reduce(lens, initial=0) > width * block_size:
        _explain_tables(tables, lens, -(-lens // block_size), read, num_blocks, block_size)
    if starts[0] != 0:
        raise ValueError(
            f"query_start_loc begins at {starts[0]}, but the first sequence's query tokens begin at row 0: make "
            "metadata with AttentionMetadata.build"
        )
    if starts[-1] != metadata.num_tokens:
        raise ValueError(
            f"query_start_loc ends at {starts[-1]}, but slot_mapping has {metadata.num_tokens} entries: both "
            "count the query tokens of the step, so make metadata with AttentionMetadata.build"
        )


def _explain_tables(
    tables: np.ndarray, lens: np.ndarray, blocks_needed: np.ndarray, read: np.ndarray, num_blocks: int, block_size: int
) -> None:
    """Raise for the first table that is too short, or else for the first id outside the pool."""
    have = ((tables != UNUSED) & read).sum(axis=1)
    for s in np.flatnonzero(blocks_needed > have)[:1]:
        raise ValueError(
            f"sequence {s}: seq_len {lens[s]} needs {blocks_needed[s]} blocks of {block_size} "
            f"tokens, but its block table has {have[s]}: allocate the missing blocks first, or lower seq_len "
            f"to at most {have[s] * block_size}"
        )
    s, i = np.argwhere(read & ((tables < 0) | (tables >= num_blocks)))[0]
    raise ValueError(
        f"block_tables[{s}][{i}] is {tables[s, i]}, but the pool has the blocks "
        f"0 … {num_blocks - 1}: use ids from this cache's own block pool"
    )


def _validate_lengths(metadata: AttentionMetadata, lens: np.ndarray, query_lens: np.ndarray) -> None:
    bad = (query_lens < 0) | (query_lens > lens)
    if np.count_nonzero(bad):
        s = np.flatnonzero(bad)[0]
        raise ValueError(
            f"sequence {s} has {query_lens[s]} query tokens and seq_len {lens[s]}: "
            "it must be 0 ≤ query tokens ≤ seq_len, because the query tokens are the last tokens of the "
            "context"
        )
    longest_query, longest = (np.maximum.reduce(numbers, initial=0) for numbers in (query_lens, lens))
    if longest_query > metadata.max_query_len or longest > metadata.max_seq_len:
        raise ValueError(
            f"max_query_len is {metadata.max_query_len} and max_seq_len {metadata.max_seq_len}, but the "
            f"longest are {longest_query} and {longest}: make metadata with AttentionMetadata.build"
        )


def validate_attend(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    metadata: AttentionMetadata,
    options: AttentionOptions = PLAIN,
    scale: float = 1.0,
) -> None:
    """Everything that ``AttentionBackend.attend`` takes for granted."""
    if isinstance(scale, bool) or not isinstance(scale, Real) or not math.isfinite(scale):
        raise ValueError(f"scale is {scale!r}, but a finite number is needed, usually head_dim ** -0.5")
    if not isinstance(metadata, AttentionMetadata):
        raise TypeError(f"metadata is a {type(metadata).__name__}, but an AttentionMetadata is needed")
    of_step = (metadata.block_tables, metadata.seq_lens, metadata.query_start_loc, metadata.slot_mapping)
    layout = _layout(query, k_cache, v_cache, *of_step)
    if layout not in _good_layouts:
        _validate_attend_layout(query, k_cache, v_cache, metadata)
        _remember(layout)
    validate_metadata(metadata, *k_cache.shape[:2])
    if len(query) != metadata.num_tokens:
        raise ValueError(
            f"query has {len(query)} rows, but the metadata describes {metadata.num_tokens} query tokens: "
            "give one row for every query token of the step"
        )
    if options is not PLAIN:
        _validate_options(options, query.shape[1], k_cache.device)


def _validate_attend_layout(query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata) -> None:
    validate_cache(k_cache, v_cache)
    num_kv_heads, head_dim = k_cache.shape[2:]
    _require_tensor("query", query, 3, FLOATS, "[num_tokens, num_heads, head_dim]")
    num_heads, query_dim = query.shape[1:]
    if query_dim != head_dim:
        raise ValueError(f"query has the head size {query_dim}, but the cache has {head_dim}: they must be equal")
    if num_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads cannot share {num_kv_heads} KV heads: the number of query heads must "
            "be a multiple of the number of KV heads"
        )
    _require_tensor("block_tables", metadata.block_tables, 2, (torch.int32,), "[num_seqs, max_blocks]")
    _require_tensor("seq_lens", metadata.seq_lens, 1, (torch.int32,), "[num_seqs]")
    _require_tensor("query_start_loc", metadata.query_start_loc, 1, (torch.int32,), "[num_seqs + 1]")
    _require_tensor("slot_mapping", metadata.slot_mapping, 1, (torch.int64,), "[num_tokens]")
    for name in ("block_tables", "seq_lens", "query_start_loc"):
        _require_device(name, getattr(metadata, name), k_cache.device)
    _require_device("query", query, k_cache.device)


def _validate_options(options: AttentionOptions, num_heads: int, device: torch.device) -> None:
    for name in ("alibi_slopes", "sinks"):
        tensor = getattr(options, name)
        if tensor is not None:
            _require_tensor(name, tensor, 1, (torch.float32,), "[num_heads]")
        if tensor is not None and (tensor.shape != (num_heads,) or tensor.dtype != torch.float32):
            raise ValueError(
                f"{name} is {list(tensor.shape)} {tensor.dtype}, but one float32 value for each of the "
                f"{num_heads} query heads is needed"
            )
        if tensor is not None:
            _require_device(name, tensor, device)


def validate_pairs(k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Every block of ``pairs`` lies in the pool, and no pair depends on the order in which they are copied."""
    validate_cache(k_cache, v_cache)
    _require_own_memory(k_cache, "k_cache")
    _require_own_memory(v_cache, "v_cache")
    if not isinstance(pairs, list | tuple):
        raise TypeError(f"pairs is a {type(pairs).__name__}, but a list of (source, destination) is needed")
    num_blocks = k_cache.shape[0]
    sources: set[int] = set()
    destinations: set[int] = set()
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(f"the copy {pair!r} is no pair (source, destination) of block ids")
        for block in pair:
            if isinstance(block, bool) or not isinstance(block, Integral):
                raise TypeError(f"the copy {tuple(pair)} names block {block!r}, but a block id is a whole number")
            if not 0 <= block < num_blocks:
                raise ValueError(
                    f"the copy {tuple(pair)} names block {block}, but the pool has the blocks 0 … {num_blocks - 1}"
                )
        source, destination = pair
        if destination in destinations:
            raise ValueError(f"block {destination} is the destination of two copies: copy each block once a step")
        sources.add(source)
        destinations.add(destination)
    if sources & destinations:
        raise ValueError(
            f"block {min(sources & destinations)} is source and destination in one list of copies, so the result "
            "would depend on the order: copy in two steps"
        )
