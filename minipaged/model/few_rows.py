"""A decoder layer for the few rows of a decode step on a CPU: one Numba call before attention, and one after it.

The arithmetic is that of `DecoderLayer.forward`, which is its definition. It stands here a second time because a step
with one row is short, less than half a millisecond a layer: to start its fifteen operations one by one takes as long
as the arithmetic. GPUs have the same trouble and the same cures: fused kernels and CUDA graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from minipaged.attention.cpu_kernels import OPTIONS
from minipaged.model.cpu_ops import rms_norm_rows, rotate_rows, silu_mul_rows
from minipaged.model.cpu_products import is_able, product

if TYPE_CHECKING:
    from minipaged.model.decoder import DecoderLayer

NO_BIAS = np.empty(0, np.float32)


class FewRows:
    """The weights of one layer as numpy arrays on the same memory, and what must stay as it is for them to be right."""

    def __init__(self, layer: DecoderLayer) -> None:
        modules = list(layer.modules())
        hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._hooks = [*hooks, _global_forward_hooks, _global_forward_pre_hooks]
        self._has_hooks = any(self._hooks)
        self._own = [vars(module) for module in modules]
        owners = [owner for m in modules for owner in (m._modules, m._parameters)]
        self._parts = [(owner, name, part) for owner in owners for name, part in owner.items()]
        self._weights = list(layer.parameters())
        self._addresses = [weight.data_ptr() for weight in self._weights]
        self.able = not self._has_hooks and layer.is_plain and all(map(_is_readable, self._weights))
        self.able = self.able and not self._is_patched() and _shapes_fit(layer)
        if self.able:
            self._read(layer)

    def fits(self, layer: DecoderLayer) -> bool:
        """Is the layer still the one that was read? A weight that was changed in place is: its memory is the same."""
        return (
            self._has_hooks is any(self._hooks)
            and all(owner.get(name) is part for owner, name, part in self._parts)
            and [weight.data_ptr() for weight in self._weights] == self._addresses
            and (not self.able or self._is_still_able(layer))
        )

    def _is_still_able(self, layer: DecoderLayer) -> bool:
        whole = all(weight.is_contiguous() for weight in self._weights)
        return whole and not self._is_patched() and self._numbers == _numbers(layer)

    def _is_patched(self) -> bool:
        """Has somebody given one module a `forward` of its own?"""
        return any("forward" in own for own in self._own)

    def _read(self, layer: DecoderLayer) -> None:
        self._numbers = _numbers(layer)
        attention, mlp = layer.self_attn, layer.mlp
        first, second = layer.input_layernorm, layer.post_attention_layernorm
        self.scale = attention.scale
        first_key, first_value = attention.num_heads, attention.num_heads + attention.num_kv_heads
        self.parts = (slice(first_key), slice(first_key, first_value), slice(first_value, None))
        self.shape = (first_value + attention.num_kv_heads, attention.head_dim)
        self.before = (
            _array(first.weight), np.float32(first.eps), _array(attention.qkv_proj.weight),
            _array(attention.qkv_proj.bias), first_value,
        )  # fmt: skip
        self.after = (
            _array(attention.o_proj.weight), _array(second.weight), np.float32(second.eps),
            _array(mlp.gate_up_proj.weight), _array(mlp.down_proj.weight),
        )  # fmt: skip

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, k_cache, v_cache, metadata, backend) -> Tensor:
        """`DecoderLayer.forward`: hidden [T, hidden_size] → the same shape."""
        if len(cos) != len(hidden):
            raise ValueError(
                f"{len(hidden)} tokens, but the rotations of {len(cos)} positions: give one position for each token"
            )
        rows, heads = hidden.numpy(), np.empty((len(hidden), *self.shape), np.float32)
        _before_attention(rows, *self.before, cos.numpy(), sin.numpy(), heads)
        query, key, value = (torch.from_numpy(heads[:, part]) for part in self.parts)
        backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)
        attended = backend.attend(query, k_cache, v_cache, metadata, self.scale)
        attended = attended.to(hidden.dtype).numpy().reshape(len(rows), -1)
        return torch.from_numpy(_after_attention(rows, attended, *self.after))


def _numbers(layer: DecoderLayer) -> tuple[float, float, float]:
    return layer.input_layernorm.eps, layer.post_attention_layernorm.eps, layer.self_attn.scale


def _shapes_fit(layer: DecoderLayer) -> bool:
    """The kernels check no sizes: torch shall say what is wrong with a layer whose parts do not fit together."""
    attention, mlp = layer.self_attn, layer.mlp
    (size,), inner = layer.input_layernorm.weight.shape, mlp.down_proj.weight.shape[1]
    all_heads = attention.num_heads + 2 * attention.num_kv_heads
    shapes = {
        layer.post_attention_layernorm.weight: (size,),
        attention.qkv_proj.weight: (all_heads * attention.head_dim, size),
        attention.o_proj.weight: (size, attention.num_heads * attention.head_dim),
        mlp.gate_up_proj.weight: (2 * inner, size),
        mlp.down_proj.weight: (size, inner),
    }
    if attention.qkv_proj.bias is not None:
        shapes[attention.qkv_proj.bias] = (all_heads * attention.head_dim,)
    return all(weight.shape == shape for weight, shape in shapes.items())


def _is_readable(weight: Tensor) -> bool:
    of_size = type(weight) is nn.Parameter and (weight.dim() == 1 or is_able(*weight.shape))
    return of_size and weight.dtype is torch.float32 and weight.is_cpu and weight.is_contiguous()


def _array(weight: Tensor | None) -> np.ndarray:
    return NO_BIAS if weight is None else weight.detach().numpy()


@njit(**OPTIONS)
def _before_attention(hidden, norm, eps, weight, bias, num_rotated, cos, sin, heads):
    normed = np.empty_like(hidden)
    rms_norm_rows(hidden, norm, eps, normed)
    flat = heads.reshape(len(hidden), len(weight))
    product(normed, weight, flat)
    if len(bias):
        flat += bias
    rotate_rows(heads[:, :num_rotated], cos, sin, heads[:, :num_rotated])


@njit(**OPTIONS)
def _after_attention(hidden, attended, o_weight, norm, eps, gate_up_weight, down_weight):
    rows, size = hidden.shape
    normed, added = np.empty((rows, size), np.float32), np.empty((rows, size), np.float32)
    product(attended, o_weight, added)
    stream = hidden + added
    rms_norm_rows(stream, norm, eps, normed)
    gate_up = np.empty((rows, len(gate_up_weight)), np.float32)
    product(normed, gate_up_weight, gate_up)
    inner = np.empty((rows, len(gate_up_weight) // 2), np.float32)
    silu_mul_rows(gate_up, inner)
    product(inner, down_weight, added)
    stream += added
    return stream
