"""The lesson's kernels as the engine's attention: the same three methods that every backend has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minipaged.attention import AttentionMetadata
from minipaged.attention.launch import validate_attend, validate_pairs, validate_write
from minipaged.attention.triton.launch_kernels import interpreted
from minipaged.course.kernels_month_6 import cache
from minipaged.course.kernels_month_6.decode import decode
from minipaged.course.kernels_month_6.prefill import prefill


class LessonBackend:
    """``LLM("tiny", parts={"attention": LessonBackend})``: float32; on a GPU float16 and bfloat16 too.

    ``launches`` counts the kernel launches by name, so that a lesson can show that they ran.
    """

    name = "lesson"

    def __init__(self) -> None:
        self.launches = {"write": 0, "decode": 0, "prefill": 0, "copy_blocks": 0}

    def write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        validate_write(key, value, k_cache, v_cache, slot_mapping)
        _require_layout(k_cache, v_cache)
        if len(slot_mapping):
            self.launches["write"] += 1
            cache.write(key.to(k_cache.dtype), value.to(v_cache.dtype), k_cache, v_cache, slot_mapping)

    def attend(
        self, query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
    ) -> Tensor:
        validate_attend(query, k_cache, v_cache, metadata)
        _require_layout(k_cache, v_cache)
        if len(query) == 0:
            return torch.empty_like(query)
        name, kernel = ("decode", decode) if metadata.is_decode else ("prefill", prefill)
        self.launches[name] += 1
        return kernel(query.contiguous(), k_cache, v_cache, metadata, scale)

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        validate_pairs(k_cache, v_cache, pairs)
        _require_layout(k_cache, v_cache)
        if pairs:
            self.launches["copy_blocks"] += 1
            cache.copy_blocks(k_cache, v_cache, pairs)


def _require_layout(k_cache: Tensor, v_cache: Tensor) -> None:
    """What the short kernels take for granted, and the package's do not."""
    _, _, num_kv_heads, head_dim = k_cache.shape
    if k_cache.stride() != v_cache.stride() or k_cache.stride()[1:] != (num_kv_heads * head_dim, head_dim, 1):
        raise ValueError(
            f"k_cache has the strides {list(k_cache.stride())} and v_cache {list(v_cache.stride())}, but the lesson's "
            f"kernels need equal strides that end in {[num_kv_heads * head_dim, head_dim, 1]}: use attention='triton', "
            "whose kernels take any"
        )
    if interpreted() and k_cache.dtype != torch.float32:
        raise TypeError(
            f"the KV cache is {k_cache.dtype}, but in Triton's interpreter the lesson's kernels compute in float32 "
            "only: use float32, or attention='triton'"
        )
