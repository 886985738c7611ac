"""The operations of `ops.py` as Numba kernels: each reads its rows once and writes its result once."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from minipaged.attention.cpu_kernels import LOG2_E, OPTIONS, exp2
from minipaged.model.cpu_products import is_able, product


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x)
    rms_norm_rows(x.numpy(), weight.detach().numpy(), np.float32(eps), out.numpy())
    return out


@njit(**OPTIONS)
def rms_norm_rows(x, weight, eps, out):
    rows, size = x.shape
    for t in range(rows):
        squares = np.float32(0)
        for i in range(size):
            squares += x[t, i] * x[t, i]
        factor = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
        for i in range(size):
            out[t, i] = x[t, i] * factor * weight[i]


def silu_mul(gate_up: Tensor) -> Tensor:
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    silu_mul_rows(gate_up.numpy(), out.numpy())
    return out


@njit(**OPTIONS)
def silu_mul_rows(gate_up, out):
    rows, size = out.shape
    for t in range(rows):
        for i in range(size):
            gate = gate_up[t, i]
            power = exp2(-abs(gate) * LOG2_E)  # e^−|gate|, never above 1
            part = np.float32(1) if gate >= 0 else power
            out[t, i] = gate * part / (np.float32(1) + power) * gate_up[t, size + i]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = x.new_empty(x.shape)
    rotate_rows(x.numpy(), cos.numpy(), sin.numpy(), out.numpy())
    return out


@njit(**OPTIONS)
def rotate_rows(x, cos, sin, out):
    rows, heads, size = x.shape
    half = size // 2
    for t in range(rows):
        for h in range(heads):
            for i in range(half):
                first, second = x[t, h, i], x[t, h, half + i]
                out[t, h, i] = first * cos[t, 0, i] - second * sin[t, 0, i]
                out[t, h, half + i] = second * cos[t, 0, half + i] + first * sin[t, 0, half + i]


def can_multiply(x: Tensor, weight: Tensor) -> bool:
    """Would torch compute it, and can the kernel read it? The kernel itself checks nothing."""
    fits = weight.dim() == 2 and x.shape[1] == weight.shape[1]
    return fits and is_able(*weight.shape) and x.is_contiguous() and weight.is_contiguous()


def product_of_rows(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ for few rows."""
    out = x.new_empty(len(x), len(weight))
    product(x.numpy(), weight.detach().numpy(), out.numpy())
    return out
