"""The Triton backend: on a GPU compiled, without one in Triton's interpreter (slow, but the same kernels)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minipaged.attention.metadata import AttentionMetadata
from minipaged.attention.options import PLAIN, AttentionOptions
from minipaged.attention.triton import launch_kernels
from minipaged.attention.validate import validate_attend, validate_pairs, validate_write, validated_options


class TritonBackend:
    """Decode when every sequence has one query token, else prefill, which takes any mix."""

    name = "triton"

    def __init__(self, validate: bool = True, options: AttentionOptions = PLAIN) -> None:
        self.validate, self.options = validate, validated_options(options)

    def write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        if self.validate:
            validate_write(key, value, k_cache, v_cache, slot_mapping)
        launch_kernels.write(key, value, k_cache, v_cache, slot_mapping, self.options)

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
            if query.dtype == torch.float64:
                raise TypeError(
                    "attention='triton' computes in float32 or less, but query is torch.float64: convert it with "
                    ".float(), or use attention='reference'"
                )
        kernel = launch_kernels.decode if metadata.is_decode else launch_kernels.prefill
        out, lse = kernel(query, k_cache, v_cache, metadata, scale, self.options)
        return (out, lse) if return_lse else out

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        if self.validate:
            validate_pairs(k_cache, v_cache, pairs)
        if pairs:
            launch_kernels.copy_blocks(k_cache, v_cache, torch.tensor(pairs, dtype=torch.int64, device=k_cache.device))


__all__ = ["TritonBackend"]
