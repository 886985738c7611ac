"""The variations on plain causal attention that real models ask for. All are off by default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real

from torch import Tensor


@dataclass(frozen=True)
class AttentionOptions:
    """What is added to ``softmax(scale · q kᵀ) v``, in the order in which the kernels apply it.

    k_scale, v_scale  an fp8 cache stores ``k / k_scale``; the kernel multiplies back
    soft_cap          scores become ``cap · tanh(score / cap)`` (Gemma 2)
    alibi_slopes      fp32 [num_heads]: adds ``slope · (key position − query position)`` (BLOOM, MPT)
    sliding_window    a token sees only the last ``sliding_window`` positions, itself included (Mistral)
    sinks             fp32 [num_heads]: one more logit a head in the softmax's sum, with no value (gpt-oss)
    """

    k_scale: float = 1.0
    v_scale: float = 1.0
    soft_cap: float | None = None
    alibi_slopes: Tensor | None = None
    sliding_window: int | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("k_scale", "v_scale", "soft_cap", "sliding_window"):
            value, optional = getattr(self, name), name in ("soft_cap", "sliding_window")
            if value is None and optional:
                continue
            kind, what = (Integral, "a whole number") if name == "sliding_window" else (Real, "a number")
            if isinstance(value, bool) or not isinstance(value, kind):
                raise TypeError(f"{name} is {value!r}, but {what} is needed")
            if not 0 < value < math.inf:
                way_out = "None switches it off" if optional else "1.0 means no scaling"
                raise ValueError(f"{name} is {value}, but it must be finite and greater than 0 ({way_out})")

    @cached_property
    def only_window(self) -> bool:
        """True when nothing is switched on, or the sliding window alone."""
        extras = (self.soft_cap, self.alibi_slopes, self.sinks)
        return self.k_scale == self.v_scale == 1.0 and all(extra is None for extra in extras)


PLAIN = AttentionOptions()
