"""Softmax-weighted sums, one block of keys at a time: the idea by which attention reads a cache in place.

Softmax needs the largest score and the sum of all exponentials *before* the first weight is known. The online
form (Milakov & Gimelshein 2018, used by FlashAttention) keeps three running values instead, and corrects them
when a larger score turns up. After the last block they are exactly what the two-pass form computes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class OnlineSoftmax:
    """The running state for R rows of scores and values of size D.

    m    [R]     the largest score so far; −inf before the first block
    l    [R]     the sum of exp(score − m) so far
    acc  [R, D]  the sum of exp(score − m) · value so far
    """

    def __init__(self, rows: int, head_dim: int, dtype: torch.dtype = torch.float32) -> None:
        self.m = torch.full((rows,), float("-inf"), dtype=dtype)
        self.l = torch.zeros(rows, dtype=dtype)
        self.acc = torch.zeros(rows, head_dim, dtype=dtype)

    def update(self, scores: Tensor, values: Tensor) -> None:
        """Take in one block: ``scores`` [R, B] (−inf hides a key), ``values`` [B, D]."""
        m_new = torch.maximum(self.m, scores.max(dim=1).values)
        # A row that has seen only hidden keys has m = −inf, and −inf − −inf is NaN: give it a finite base.
        base = torch.where(m_new == float("-inf"), torch.zeros_like(m_new), m_new)
        correction = torch.exp(self.m - base)
        weights = torch.exp(scores - base[:, None])
        self.l = self.l * correction + weights.sum(dim=1)
        self.acc = self.acc * correction[:, None] + weights @ values
        self.m = m_new

    def output(self) -> Tensor:
        """[R, D]: the weighted mean of the values. A row that saw no key at all gives 0."""
        total = torch.where(self.l == 0, torch.ones_like(self.l), self.l)
        return self.acc / total[:, None]

    def lse(self) -> Tensor:
        """[R]: log of the sum of exp(score); −inf for a row that saw no key."""
        return self.m + torch.log(self.l)


def online_attention(query: Tensor, blocks: Iterable[tuple[Tensor, Tensor]], scale: float) -> Tensor:
    """Attention of ``query`` [R, D] on keys and values that come block by block ([B, D] each)."""
    state = OnlineSoftmax(*query.shape, dtype=query.dtype)
    for key, value in blocks:
        state.update(scale * query @ key.T, value)
    return state.output()


def merge_partials(outputs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention over N disjoint parts of the context: outputs [N, …, D] and their log-sum-exp [N, …].

    Each part's weight is its share of the whole sum: exp(lse of the part − lse of all). An empty part has
    lse −inf, hence weight 0. Returns (output [..., D], lse [...]).
    """
    lse = torch.logsumexp(lses, dim=0)
    base = torch.where(lse == float("-inf"), torch.zeros_like(lse), lse)
    weights = torch.exp(lses - base)
    return (weights[..., None] * outputs).sum(dim=0), lse
