"""What the engine asks of one rank's part of an attention layer. A learner's has the same."""

from __future__ import annotations

import inspect
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


OWN_ATTENTION = "tensor_parallel_attention"  # its name among the engine's parts


def check_own_attention(own: object) -> type:
    """Returns the class. Raises TypeError that says what it lacks."""
    if not isinstance(own, type):
        raise TypeError(f"parts[{OWN_ATTENTION!r}] is {own!r}; give the class: it is made once a layer and rank")
    for name, wanted in (("__init__", ("attention", "rank", "num_ranks", "all_reduce")), ("forward", FORWARD)):
        method = getattr(own, name, None)
        if method is None:
            raise TypeError(f"parts[{OWN_ATTENTION!r}]: {own.__name__} lacks {name}; see TensorParallelAttention")
        try:
            inspect.signature(method).bind(None, *wanted)
        except TypeError as error:
            raise TypeError(
                f"parts[{OWN_ATTENTION!r}]: {own.__name__}.{name} must take ({', '.join(wanted)}): {error}"
            ) from error
    return own


FORWARD = tuple(inspect.signature(TensorParallelAttention.forward).parameters)[1:]
