"""The small operations between the matrix products, each in plain torch and in one pass.

A decode step has few numbers and much to call: torch's operations on them take longer to start than to compute. So
the rows of an engine step, float32 on a CPU, go through Numba kernels (`cpu_ops`) where Numba is installed. All else
takes torch's way, which is the definition: other types and devices, training, and the dense sequences of
`forward_dense`, which have one dimension more.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from minipaged.model.decoder import LlamaModel
    from minipaged.model.few_rows import FewRows

FEW_ROWS = 24  # up to here reading the weights takes much of the time, and our own product is the fastest
EXCHANGED = {torch.float32: range(FEW_ROWS + 1, 49), torch.bfloat16: range(2, 49)}
"""Numbers of rows for which the library is faster when the factors are exchanged: weight · xᵀ. `linear` turns the
result round; for whole layers that is not needed (`layer_kernels.through_columns`)."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight, over the last dimension."""
    fits = weight.dtype is torch.float32 and weight.shape == x.shape[-1:]
    if fits and _in_one_pass(x, 2) and x.is_contiguous():
        return _kernels().rms_norm(x, weight, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """[..., 2 · n] → [..., n]: silu(first half) · second half."""
    if _in_one_pass(gate_up, 2) and gate_up.is_contiguous():
        return _kernels().silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [..., T, heads, D] by the angles of its positions: cos and sin [T, 1, D]."""
    fits = cos.dtype is torch.float32 and cos.shape == sin.shape == (*x.shape[:1], 1, *x.shape[-1:])
    if fits and _in_one_pass(x, 3) and x.stride(-1) == 1:
        return _kernels().rotate(x, cos, sin)
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias: x [..., K], weight [N, K]."""
    product = None
    if _in_one_pass(x, 2) and _are_few(x) and weight.dtype is x.dtype and _kernels().can_multiply(x, weight):
        product = _kernels().product_of_rows(x, weight)
    elif x.dim() == 2 and x.is_cpu and len(x) in EXCHANGED.get(x.dtype, ()) and not torch.is_grad_enabled():
        product = torch.mm(weight, x.t()).t().contiguous()
    if product is not None:
        return product if bias is None else product.add_(bias)
    return F.linear(x, weight, bias)


def few_rows(model: LlamaModel, hidden: Tensor) -> FewRows | None:
    """The layers in few calls each, where a step has few rows; None: one operation after the other.

    How the kernels read the layers is remembered until a part is replaced, or asks to be called by itself (a hook).
    """
    few = len(hidden) in EXCHANGED.get(hidden.dtype, ()) or (hidden.dtype is torch.float32 and _are_few(hidden))
    if not few or hidden.dtype is not model.dtype or not hidden.is_contiguous() or not _has_kernels(hidden, 2):
        return None
    if model.read_layers is None or not model.read_layers.fits():
        from minipaged.model.few_rows import FewRows

        model.read_layers = FewRows(model)
    return model.read_layers if model.read_layers.able else None


def _are_few(x: Tensor) -> bool:
    """Few rows for one thread; a library's product uses several."""
    return 0 < len(x) <= FEW_ROWS and torch.get_num_threads() == 1


def _in_one_pass(x: Tensor, dimensions: int) -> bool:
    """Whether x has the type and form of an engine step's rows, and there are kernels for it."""
    return x.dtype is torch.float32 and _has_kernels(x, dimensions)


def _has_kernels(x: Tensor, dimensions: int) -> bool:
    return x.is_cpu and x.dim() == dimensions and not torch.is_grad_enabled() and _kernels() is not None


@cache
def _kernels() -> ModuleType | None:
    """Imported when the first step needs it: Numba takes a second."""
    try:
        from minipaged.model import cpu_ops
    except ImportError:
        return None
    return cpu_ops
