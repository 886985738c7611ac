"""What the engine asks of one rank's part of an attention layer. A learner's has the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from minipaged.attention import AttentionBackend, AttentionMetadata

AllReduce = Callable[[Tensor], Tensor]
"""Returns the sum of what all ranks give it, the same on every rank. All must call it, equally often."""


@runtime_checkable
class TensorParallelAttention(Protocol):
    """One rank's part of one attention layer.

    Made as ``YourAttention(attention, rank, num_ranks, all_reduce)``, once a layer and rank. ``attention`` is the whole
    layer (``minipaged.model.decoder.Attention``): take a copy of your rows and columns, it is dropped afterwards.
    """

    def forward(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        backend: AttentionBackend,
    ) -> Tensor:
        """One step of the engine: ``hidden`` ``[T, hidden_size]`` → the layer's output, the same on every rank.

        ``k_cache`` and ``v_cache`` hold this rank's KV heads of every block. Write all keys and values first
        (``backend.write``), then read (``backend.attend``), and end with one ``all_reduce``.
        """
        ...
