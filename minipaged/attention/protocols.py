"""What the engine asks of an attention backend: a name and three methods. A learner's has the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from minipaged.attention.metadata import AttentionMetadata


@runtime_checkable
class AttentionBackend(Protocol):
    """Writes to and reads from one layer's paged KV cache.

    ``k_cache`` and ``v_cache`` are ``[num_blocks, block_size, num_kv_heads, head_dim]``, with any strides. A model
    with a sliding window asks for one method more, ``with_window(window)`` (see ``attention/window.py``).
    """

    name: str

    def write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """Store ``key`` and ``value`` ``[T, num_kv_heads, head_dim]`` in their slots; slot −1 is skipped."""
        ...

    def attend(
        self, query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
    ) -> Tensor:
        """Causal attention of ``query`` ``[T, num_heads, head_dim]`` on the paged context; same shape back."""
        ...

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)``: the "copy" of copy-on-write."""
        ...
