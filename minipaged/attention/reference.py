"""Attention in plain torch: slow, short, and the truth that every other backend is measured against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minipaged.attention.metadata import AttentionMetadata
from minipaged.attention.options import PLAIN, AttentionOptions
from minipaged.attention.validate import validate_attend, validate_pairs, validate_write, validated_options


def gather(cache: Tensor, block_table: Tensor, length: int) -> Tensor:
    """One sequence's first ``length`` tokens, copied out of its blocks: [length, num_kv_heads, head_dim]."""
    block_size = cache.shape[1]
    used = block_table[: -(-length // block_size)].long()
    return cache[used].flatten(0, 1)[:length]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    options: AttentionOptions = PLAIN,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention of one sequence: query [Q, H, D] are the *last* Q of the N tokens in key, value [N, KV, D].

    Each group of H / KV query heads shares one KV head. Returns (output [Q, H, D], log-sum-exp [Q, H]).
    """
    (num_queries, num_heads, _), (length, num_kv_heads, _) = query.shape, key.shape
    key = (key * options.k_scale).repeat_interleave(num_heads // num_kv_heads, dim=1)
    value = (value * options.v_scale).repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores = scale * torch.einsum("qhd,nhd->hqn", query, key)

    if options.soft_cap is not None:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    query_pos = torch.arange(length - num_queries, length, device=query.device)[:, None]
    key_pos = torch.arange(length, device=query.device)[None, :]
    if options.alibi_slopes is not None:
        scores = scores + options.alibi_slopes.to(scores)[:, None, None] * (key_pos - query_pos)
    if causal:
        scores = scores.masked_fill(key_pos > query_pos, float("-inf"))
    if options.sliding_window is not None:
        scores = scores.masked_fill(key_pos <= query_pos - options.sliding_window, float("-inf"))

    all_scores = scores
    if options.sinks is not None:
        sinks = options.sinks.to(scores)[:, None, None].expand(-1, num_queries, 1)
        all_scores = torch.cat([scores, sinks], dim=-1)
    lse = torch.logsumexp(all_scores, dim=-1)
    weights = torch.exp(scores - lse[..., None])
    return torch.einsum("hqn,nhd->qhd", weights, value), lse.T


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
) -> Tensor:
    """Attention of whole sequences without a cache: query [..., N, H, D], key and value [..., N, KV, D].

    Differentiable, so training uses it too. ``scale`` defaults to 1 / √D. With ``window`` each position sees only
    the last ``window`` ones, itself included. Returns [..., N, H, D].
    """
    around_heads = [(*x.shape[:-2], x.shape[-1]) for x in (query, key)]
    if query.ndim < 3 or key.shape != value.shape or around_heads[0] != around_heads[1]:
        raise ValueError(
            f"query is {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}, but whole sequences "
            "[..., N, heads, D] are needed: the same N and D, and one shape for key and value"
        )
    num_heads, num_kv_heads = query.shape[-2], key.shape[-2]
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads cannot share {num_kv_heads} KV heads: the number of query heads must be a "
            "multiple of the number of KV heads"
        )
    key = key.repeat_interleave(num_heads // num_kv_heads, dim=-2)
    value = value.repeat_interleave(num_heads // num_kv_heads, dim=-2)
    heads_first = (x.transpose(-2, -3) for x in (query, key, value))
    mask = None
    if window is not None:
        position = torch.arange(query.shape[-3], device=query.device)
        distance = position[:, None] - position[None, :]
        mask = (distance < window) & ((distance >= 0) | (not causal))
    out = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=mask, is_causal=causal and mask is None, scale=scale
    )
    return out.transpose(-2, -3)


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    options: AttentionOptions = PLAIN,
    compute_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Paged attention the simple way: gather each sequence's blocks, then attend.

    Computes in ``compute_dtype`` (default: fp64 for fp64 queries, else fp32) and returns it:
    (output [T, H, D] and log-sum-exp [T, H]). Raises TypeError or ValueError for inputs that do not fit together.
    """
    validate_attend(query, k_cache, v_cache, metadata, options, scale)
    return _paged_attention(query, k_cache, v_cache, metadata, scale, options, compute_dtype)


def _paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    options: AttentionOptions = PLAIN,
    compute_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    compute = compute_dtype or (torch.float64 if query.dtype == torch.float64 else torch.float32)
    out = query.new_zeros(query.shape, dtype=compute)
    lse = query.new_zeros(query.shape[:2], dtype=compute)
    starts = metadata.query_start_loc.tolist()
    for s, length in enumerate(metadata.seq_lens.tolist()):
        rows = slice(starts[s], starts[s + 1])
        if rows.start == rows.stop:
            continue
        key = gather(k_cache, metadata.block_tables[s], length).to(compute)
        value = gather(v_cache, metadata.block_tables[s], length).to(compute)
        out[rows], lse[rows] = attention(query[rows].to(compute), key, value, scale, options)
    return out, lse


def to_cache_dtype(tensor: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """``tensor / scale`` in the cache's type. An fp8 type saturates at its largest value."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        limit = torch.finfo(dtype).max
        tensor = (tensor.float() / scale).clamp(-limit, limit)
    return tensor.to(dtype)


def write_slots(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    options: AttentionOptions = PLAIN,
) -> None:
    """Scatter this step's K and V ``[T, num_kv_heads, head_dim]`` into the cache; slot −1 is skipped."""
    block_size = k_cache.shape[1]
    keep = slot_mapping >= 0
    slots = slot_mapping[keep]
    block, offset = slots // block_size, slots % block_size
    k_cache[block, offset] = to_cache_dtype(key[keep], k_cache.dtype, options.k_scale)
    v_cache[block, offset] = to_cache_dtype(value[keep], v_cache.dtype, options.v_scale)


class ReferenceBackend:
    """The plain-torch backend: works everywhere torch does."""

    name = "reference"

    def __init__(self, validate: bool = True, options: AttentionOptions = PLAIN) -> None:
        self.validate, self.options = validate, validated_options(options)

    def write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        if self.validate:
            validate_write(key, value, k_cache, v_cache, slot_mapping)
        write_slots(key, value, k_cache, v_cache, slot_mapping, self.options)

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
        out, lse = _paged_attention(query, k_cache, v_cache, metadata, scale, self.options)
        return (out.to(query.dtype), lse) if return_lse else out.to(query.dtype)

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        if self.validate:
            validate_pairs(k_cache, v_cache, pairs)
        if pairs:
            source, destination = (list(ids) for ids in zip(*pairs, strict=True))
            k_cache[destination] = k_cache[source]
            v_cache[destination] = v_cache[source]
