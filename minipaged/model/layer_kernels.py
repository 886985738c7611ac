"""Two ways through all decoder layers for the few rows of a decode step on a CPU, both in few calls.

The arithmetic is that of `DecoderLayer.forward`, which is its definition. It stands here again because a step with
one row is short, less than half a millisecond a layer: to start its fifteen operations one by one, and to check what
each of them is given, takes as long as the arithmetic. GPUs have the same trouble and the same cures: fused kernels
and CUDA graphs.

- `through_rows`, for the fewest rows: one Numba call before a layer's attention and one after it, with our own product
  (`cpu_products`).
- `through_columns`, for some more, or for bfloat16: a token is a column, as the library's product for such sizes wants
  it (weight · xᵀ). Its results are then the next one's factors as they are, and need not be turned round each time.

Nothing is checked here: `FewRows` does it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from minipaged.attention.cpu import CPUStep
from minipaged.attention.cpu_kernels import OPTIONS
from minipaged.model.cpu_ops import rms_norm_rows, rotate_rows, silu_mul_rows
from minipaged.model.cpu_products import product

NO_BIAS = torch.empty(0, dtype=torch.float32, device="cpu")


class LayerWeights(NamedTuple):
    """A layer's weights [outputs, inputs] and norms: contiguous, as tensors or as arrays on their memory."""

    first_norm: Tensor | np.ndarray
    qkv: Tensor | np.ndarray
    qkv_bias: Tensor | np.ndarray  # `NO_BIAS` where there is none
    o: Tensor | np.ndarray
    second_norm: Tensor | np.ndarray
    gate_up: Tensor | np.ndarray
    down: Tensor | np.ndarray


class Rotation(NamedTuple):
    """How the step's heads are rotated: the first `num_rotated` of a token, by cos and sin [T, 1, D]."""

    num_rotated: int
    cos: np.ndarray
    sin: np.ndarray


def through_rows(
    layers: Sequence[LayerWeights], eps: np.float32, hidden: Tensor, heads: np.ndarray, step: CPUStep, turn: Rotation
) -> Tensor:
    """hidden [T, size] → the same shape; ``heads`` [T, all heads, D] is where attention reads query, key and value."""
    hidden = hidden.clone()  # what was given belongs to the embedding
    rows, attended = hidden.numpy(), step.out.reshape(len(hidden), -1)
    for index, weights in enumerate(layers):
        _before_attention(rows, weights.first_norm, eps, weights.qkv, weights.qkv_bias, *turn, heads)
        step.run(index)
        _after_attention(rows, attended, weights.o, weights.second_norm, eps, weights.gate_up, weights.down)
    return hidden


def through_columns(
    layers: Sequence[LayerWeights], eps: np.float32, hidden: Tensor, heads: np.ndarray, step: CPUStep, turn: Rotation
) -> Tensor:
    """The same with tensors as weights, float32 or bfloat16. Only the products' factors
    and results are in the weights' type."""
    columns = hidden.float().t().clone(memory_format=torch.contiguous_format)
    attended = torch.from_numpy(step.out).flatten(1).t()
    normed = torch.empty_like(columns)
    for index, weights in enumerate(layers):
        _norm_columns(columns.numpy(), weights.first_norm.float().numpy(), eps, normed.numpy())
        _take_heads(_product(weights.qkv, normed).numpy(), weights.qkv_bias.float().numpy(), *turn, heads)
        step.run(index)
        columns += _product(weights.o, attended)
        _norm_columns(columns.numpy(), weights.second_norm.float().numpy(), eps, normed.numpy())
        gate_up = _product(weights.gate_up, normed)
        inner = gate_up.new_empty(len(gate_up) // 2, gate_up.shape[1])
        silu_mul_rows(gate_up.view(1, -1).numpy(), inner.view(1, -1).numpy())  # all gates, then all ups: one long row
        columns += _product(weights.down, inner)
    return columns.t().to(hidden.dtype, memory_format=torch.contiguous_format)


def _product(weight: Tensor, columns: Tensor) -> Tensor:
    return torch.mm(weight, columns.to(weight.dtype)).float()


@njit(**OPTIONS)
def _before_attention(hidden, norm, eps, weight, bias, num_rotated, cos, sin, heads):
    normed = np.empty_like(hidden)
    rms_norm_rows(hidden, norm, eps, normed)
    flat = heads.reshape(len(hidden), len(weight))
    product(normed, weight, flat)
    _finish_heads(bias, num_rotated, cos, sin, heads)


@njit(**OPTIONS)
def _finish_heads(bias, num_rotated, cos, sin, heads):
    if len(bias):
        flat = heads.reshape(len(heads), len(bias))
        flat += bias
    rotate_rows(heads[:, :num_rotated], cos, sin, heads[:, :num_rotated])


@njit(**OPTIONS)
def _after_attention(hidden, attended, o_weight, norm, eps, gate_up_weight, down_weight):
    rows, size = hidden.shape
    normed, added = np.empty((rows, size), np.float32), np.empty((rows, size), np.float32)
    product(attended, o_weight, added)
    hidden += added
    rms_norm_rows(hidden, norm, eps, normed)
    gate_up = np.empty((rows, len(gate_up_weight)), np.float32)
    product(normed, gate_up_weight, gate_up)
    inner = np.empty((rows, len(gate_up_weight) // 2), np.float32)
    silu_mul_rows(gate_up, inner)
    product(inner, down_weight, added)
    hidden += added


@njit(**{**OPTIONS, "fastmath": False})
def _inverse_root(x):
    """Exactly: an estimate, as the compiler takes it in a loop where it may, is no number at infinity."""
    return np.float32(1) / np.sqrt(x)


@njit(**OPTIONS)
def _norm_columns(x, weight, eps, out):
    size, rows = x.shape
    factors = np.zeros(rows, np.float32)
    for i in range(size):
        for t in range(rows):
            factors[t] += x[i, t] * x[i, t]
    for t in range(rows):
        factors[t] = _inverse_root(factors[t] / np.float32(size) + eps)
    for i in range(size):
        for t in range(rows):
            out[i, t] = x[i, t] * factors[t] * weight[i]


@njit(**OPTIONS)
def _take_heads(projected, bias, num_rotated, cos, sin, heads):
    outputs, rows = projected.shape
    flat = heads.reshape(rows, outputs)
    for t in range(rows):
        for n in range(outputs):
            flat[t, n] = projected[n, t]
    _finish_heads(bias, num_rotated, cos, sin, heads)
