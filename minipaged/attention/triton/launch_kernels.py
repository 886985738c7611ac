"""From tensors to kernel launches: grids, tiles, strides. The checks stand in ``attention/validate.py``."""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from minipaged.attention.metadata import AttentionMetadata
from minipaged.attention.options import PLAIN, AttentionOptions
from minipaged.attention.reference import to_cache_dtype
from minipaged.attention.triton.cache import copy_blocks_kernel, write_kernel
from minipaged.attention.triton.decode import decode_kernel
from minipaged.attention.triton.prefill import prefill_kernel
from minipaged.attention.triton.split import merge_kernel, split_kernel

# A GPU hides latency with many small tiles. The interpreter pays some milliseconds a step, whatever the
# tile's size.
INTERPRETER_TILE = 1024
GPU_ROWS = 16  # tl.dot compiles for matrix units from 16 rows on
PREFILL_WARPS = 8  # with 4, the accumulator of a wide head spills
INTERPRETER_ROWS = 256

_DOT_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def interpreted() -> bool:
    """True where kernels run in Triton's interpreter (TRITON_INTERPRET=1 when triton was imported)."""
    return knobs.runtime.interpret


def decode_warps(itemsize: int, rows: int) -> int:
    """Twice the warps hold what would spill from the registers: float32 has no matrix instructions on NVIDIA, and a
    group of 64 query heads (multi-query attention) has four times the rows of a small one."""
    return 4 if itemsize < 4 and rows < 64 else 8


def gpu_query_tile(group_pad: int, itemsize: int) -> int:
    """Query tokens a prefill program takes on a GPU: 64 rows, or 16 of float32, which would not fit the registers."""
    return max(1, (64 if itemsize < 4 else 16) // group_pad)


def gpu_tile(head_dim: int, itemsize: int) -> int:
    """Tokens a step on a GPU: 16 KB of K, or of V, so that a tile fits the registers; 16 to 64 of them."""
    return min(64, max(16, 16384 // (triton.next_power_of_2(head_dim) * itemsize)))


def _tile(max_seq_len: int, head_dim: int, itemsize: int) -> int:
    if not interpreted():
        return gpu_tile(head_dim, itemsize)
    return min(INTERPRETER_TILE, max(16, triton.next_power_of_2(max_seq_len)))


def _out_like(query: Tensor) -> Tensor:
    # The interpreter truncates float32 to bfloat16 instead of rounding: there, torch does the last
    # conversion.
    return torch.empty(query.shape, dtype=torch.float32 if interpreted() else query.dtype, device=query.device)


def _common(query: Tensor, k_cache: Tensor, scale: float, options: AttentionOptions, max_seq_len: int) -> dict:
    """What the decode, split and prefill kernels have in common, as keyword arguments."""
    head_dim = query.shape[2]
    # Products of float32 are computed as such (not as tf32); in the interpreter all types are, because its
    # bfloat16 arithmetic is wrong.
    dot_type = tl.float32 if interpreted() else _DOT_TYPES[query.dtype]
    return {
        "scale": scale * options.k_scale,
        "v_scale": options.v_scale,
        "soft_cap": options.soft_cap or 0.0,
        "window": options.sliding_window or 0,
        "GROUP": query.shape[1] // k_cache.shape[2],
        "BLOCK_SIZE": k_cache.shape[1],
        "TILE": _tile(max_seq_len, head_dim, query.element_size()),
        "D": head_dim,
        "D_PAD": max(16, triton.next_power_of_2(head_dim)),
        "WINDOW": options.sliding_window is not None,
        "SOFT_CAP": options.soft_cap is not None,
        "ALIBI": options.alibi_slopes is not None,
        "SINKS": options.sinks is not None,
        "DOT_TYPE": dot_type,
        "PRECISION": "ieee",
    }


def _or_dummy(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A kernel argument must be a pointer even where it is not read."""
    return stand_in if tensor is None else tensor.contiguous()


def _unit_last_stride(tensor: Tensor) -> Tensor:
    """For what a kernel reads element by element along the last axis: a view with gaps would be read wrongly."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def decode(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    options: AttentionOptions = PLAIN,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """One query token a sequence: query [S, H, D] → (output [S, H, D], log-sum-exp float32 [S, H]).

    ``num_splits`` programs share each (sequence, KV head); None lets ``choose_num_splits`` decide.
    """
    query, tables = _unit_last_stride(query), _unit_last_stride(metadata.block_tables)
    num_seqs, num_heads, _ = query.shape
    num_kv_heads = k_cache.shape[2]
    out = _out_like(query)
    lse = torch.empty(num_seqs, num_heads, dtype=torch.float32, device=query.device)
    common = _common(query, k_cache, scale, options, metadata.max_seq_len)
    group = triton.next_power_of_2(common["GROUP"])
    rows = group if interpreted() else max(GPU_ROWS, group)
    if num_splits is None:
        tiles = triton.cdiv(metadata.max_seq_len, common["TILE"])
        num_splits = choose_num_splits(num_seqs * num_kv_heads, tiles, _multiprocessors(query.device))
    if num_splits > 1 and num_seqs:
        _split_decode(out, lse, query, k_cache, v_cache, metadata, options, num_splits, rows, common)
    elif num_seqs:
        decode_kernel[(num_seqs, num_kv_heads)](
            out, lse, query, k_cache, v_cache, tables, metadata.seq_lens.contiguous(),
            _or_dummy(options.alibi_slopes, lse), _or_dummy(options.sinks, lse),
            out_stride_token=out.stride(0), out_stride_head=out.stride(1), lse_stride_token=lse.stride(0),
            q_stride_token=query.stride(0), q_stride_head=query.stride(1),
            **_cache_strides(k_cache, v_cache), tables_stride=tables.stride(0),
            ROWS=rows, num_warps=decode_warps(query.element_size(), rows), **common,
        )  # fmt: skip
    return out.to(query.dtype), lse


def choose_num_splits(programs: int, tiles: int, multiprocessors: int, most: int = 64) -> int:
    """How many splits fill the device: the rule of FlashAttention's ``num_splits_heuristic``.

    ``programs`` run without splits, each over at most ``tiles`` tiles of context. Programs run in waves of one a
    multiprocessor; the last wave is rarely full. Take the smallest number of splits whose waves are at least 85 %
    as full as those of the best number: more splits would only make more to merge.
    """
    if programs == 0 or programs >= 0.8 * multiprocessors:
        return 1
    fullness = {}
    for n in range(1, min(most, multiprocessors, tiles) + 1):
        # The same tiles a split as with fewer splits: nothing gained.
        if n > 1 and triton.cdiv(tiles, n) == triton.cdiv(tiles, n - 1):
            continue
        waves = programs * n / multiprocessors
        fullness[n] = waves / math.ceil(waves)
    best = max(fullness.values(), default=0)
    return next((n for n, full in fullness.items() if full >= 0.85 * best), 1)


@cache
def _multiprocessors(device: torch.device) -> int:
    if interpreted() or device.type == "cpu":
        return 1  # the interpreter runs one program after another: splitting gains nothing
    return torch.cuda.get_device_properties(device).multi_processor_count


def _split_decode(
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    num_splits: int,
    rows: int,
    common: dict,
) -> None:
    num_seqs, num_heads, head_dim = query.shape
    parts = torch.empty(num_seqs, num_heads, num_splits, head_dim, dtype=torch.float32, device=query.device)
    part_lses = torch.empty(num_seqs, num_heads, num_splits, dtype=torch.float32, device=query.device)
    strides = {
        "part_stride_token": parts.stride(0), "part_stride_head": parts.stride(1),
        "part_lse_stride_token": part_lses.stride(0), "part_lse_stride_head": part_lses.stride(1),
    }  # fmt: skip
    sinks, tables = common["SINKS"], _unit_last_stride(metadata.block_tables)
    common = {name: value for name, value in common.items() if name != "SINKS"}  # sinks join at the merge, once
    if interpreted():  # so that even a short context has several tiles to share out
        common["TILE"] = max(16, common["TILE"] // triton.next_power_of_2(num_splits))
    split_kernel[(num_seqs, k_cache.shape[2], num_splits)](
        parts, part_lses, query, k_cache, v_cache, tables, metadata.seq_lens.contiguous(),
        _or_dummy(options.alibi_slopes, lse), num_splits=num_splits, **strides,
        q_stride_token=query.stride(0), q_stride_head=query.stride(1), **_cache_strides(k_cache, v_cache),
        tables_stride=tables.stride(0),
        ROWS=rows, num_warps=decode_warps(query.element_size(), rows), **common,
    )  # fmt: skip
    merge_kernel[(num_seqs, num_heads)](
        out, lse, parts, part_lses, _or_dummy(options.sinks, lse), num_splits,
        out_stride_token=out.stride(0), out_stride_head=out.stride(1), lse_stride_token=lse.stride(0), **strides,
        SPLITS_PAD=triton.next_power_of_2(num_splits), D=head_dim, D_PAD=common["D_PAD"], SINKS=sinks,
    )  # fmt: skip


def prefill(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    options: AttentionOptions = PLAIN,
) -> tuple[Tensor, Tensor]:
    """Any mix of prefill, chunks and decode: query [T, H, D] → (output [T, H, D], log-sum-exp float32 [T, H])."""
    query, tables = _unit_last_stride(query), _unit_last_stride(metadata.block_tables)
    num_tokens, num_heads, _ = query.shape
    num_kv_heads = k_cache.shape[2]
    out = _out_like(query)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=query.device)
    common = _common(query, k_cache, scale, options, metadata.max_seq_len)
    group_pad = triton.next_power_of_2(common["GROUP"])
    if interpreted():
        query_tile = min(max(1, INTERPRETER_ROWS // group_pad), triton.next_power_of_2(max(1, metadata.max_query_len)))
    else:
        query_tile = gpu_query_tile(group_pad, query.element_size())
    tile_seq, tile_start = metadata.query_tiles(query_tile)
    if len(tile_seq):
        prefill_kernel[(len(tile_seq), num_kv_heads)](
            out, lse, query, k_cache, v_cache, tables, metadata.seq_lens.contiguous(),
            metadata.query_start_loc.contiguous(), tile_seq, tile_start, _or_dummy(options.alibi_slopes, lse),
            _or_dummy(options.sinks, lse), out_stride_token=out.stride(0), out_stride_head=out.stride(1),
            lse_stride_token=lse.stride(0), q_stride_token=query.stride(0), q_stride_head=query.stride(1),
            **_cache_strides(k_cache, v_cache), tables_stride=tables.stride(0),
            GROUP_PAD=group_pad, QUERY_TILE=query_tile, num_warps=PREFILL_WARPS, **common,
        )  # fmt: skip
    return out.to(query.dtype), lse


def _cache_strides(k_cache: Tensor, v_cache: Tensor) -> dict[str, int]:
    names = ("block", "slot", "head", "dim")
    return {
        **{f"k_stride_{name}": stride for name, stride in zip(names, k_cache.stride(), strict=True)},
        **{f"v_stride_{name}": stride for name, stride in zip(names, v_cache.stride(), strict=True)},
    }


def _as_bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: kernels that only move data need not know the type (nor does the interpreter)."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def write(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    options: AttentionOptions = PLAIN,
) -> None:
    """Store key and value [T, num_kv_heads, D] in their slots; an fp8 cache gets them divided by its scales."""
    key = _as_bits(_unit_last_stride(to_cache_dtype(key, k_cache.dtype, options.k_scale)))
    value = _as_bits(_unit_last_stride(to_cache_dtype(value, v_cache.dtype, options.v_scale)))
    k_cache, v_cache = _as_bits(k_cache), _as_bits(v_cache)
    num_tokens, num_kv_heads, head_dim = key.shape
    heads_pad = triton.next_power_of_2(num_kv_heads)
    rows = 2048 if interpreted() else 32
    tokens = max(1, min(rows // heads_pad, triton.next_power_of_2(max(1, num_tokens))))
    if num_tokens:
        write_kernel[(triton.cdiv(num_tokens, tokens),)](
            key, value, k_cache, v_cache, slot_mapping.contiguous(),
            key_stride_token=key.stride(0), key_stride_head=key.stride(1),
            value_stride_token=value.stride(0), value_stride_head=value.stride(1),
            **_cache_strides(k_cache, v_cache), num_tokens=num_tokens,
            BLOCK_SIZE=k_cache.shape[1], TOKENS=tokens, HEADS=num_kv_heads, HEADS_PAD=heads_pad,
            D=head_dim, D_PAD=triton.next_power_of_2(head_dim),
        )  # fmt: skip


def copy_blocks(k_cache: Tensor, v_cache: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks of one layer: pairs int64 [P, 2] of (source, destination)."""
    k_cache, v_cache = _as_bits(k_cache), _as_bits(v_cache)
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    num_rows = block_size * num_kv_heads
    rows = min(triton.next_power_of_2(num_rows), 1024 if interpreted() else 32)
    copy_blocks_kernel[(len(pairs), triton.cdiv(num_rows, rows))](
        k_cache, v_cache, pairs.contiguous(), **_cache_strides(k_cache, v_cache), num_rows=num_rows,
        HEADS=num_kv_heads, ROWS=rows, D=head_dim, D_PAD=triton.next_power_of_2(head_dim),
    )  # fmt: skip
