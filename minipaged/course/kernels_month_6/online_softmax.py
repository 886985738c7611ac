"""A softmax-weighted mean of values, tile by tile, with three running numbers instead of all the weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def online_softmax_kernel(out_ptr, scores_ptr, values_ptr, n, TILE: tl.constexpr, D: tl.constexpr):
    """out [D] = softmax(scores [n]) · values [n, D], in one program."""
    lane, d = tl.arange(0, TILE), tl.arange(0, D)
    m_i = -float("inf")  # the largest score so far
    l_i = 0.0  # the sum of exp(score − m_i) so far
    acc = tl.zeros([D], tl.float32)  # the sum of exp(score − m_i) · value so far
    for start in range(0, n, TILE):
        i = start + lane
        scores = tl.load(scores_ptr + i, mask=i < n, other=-float("inf"))
        values = tl.load(values_ptr + i[:, None] * D + d[None, :], mask=(i < n)[:, None], other=0.0)
        m_new = tl.maximum(m_i, tl.max(scores, axis=0))
        correction = tl.exp(m_i - m_new)
        weights = tl.exp(scores - m_new)
        l_i = l_i * correction + tl.sum(weights, axis=0)
        acc = acc * correction + tl.sum(weights[:, None] * values, axis=0)
        m_i = m_new
    tl.store(out_ptr + d, acc / l_i)


def online_softmax(scores: Tensor, values: Tensor, tile: int = 4) -> Tensor:
    """softmax(scores [n]) · values [n, D] → [D]; ``tile`` and D powers of two."""
    out = torch.empty_like(values[0])
    online_softmax_kernel[(1,)](out, scores, values, len(scores), TILE=tile, D=values.shape[1])
    return out
