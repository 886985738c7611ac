"""Draw the next token of every row of a batch, in a handful of tensor operations."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minipaged.serving.sampling import SamplingParams


def sample(logits: Tensor, params: Sequence[SamplingParams], rngs: Sequence[random.Random]) -> list[int]:
    """Choose one token a row. ``logits``: fp32 [rows, vocab_size]; one params and one generator a row.

    Each row takes exactly one number from *its own* generator, and no row looks at another. So a request with a
    seed gets the same tokens alone, in any batch, and after a preemption.
    """
    if all(p.greedy for p in params):
        return logits.argmax(dim=-1).tolist()
    uniforms = [0.0 if p.greedy else rng.random() for p, rng in zip(params, rngs, strict=True)]
    probs = probabilities(logits, params)
    # Inverse transform: the token at which the running sum of probabilities passes u · total.
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    u = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    # Rounding must not reach the total itself: behind the last token that may be drawn nothing passes it.
    target = torch.minimum(u * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    if any(p.greedy for p in params):
        greedy = torch.tensor([p.greedy for p in params], device=logits.device)
        drawn = torch.where(greedy, logits.argmax(dim=-1), drawn)
    return drawn.tolist()


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Softmax after temperature, then top-k, then top-p; fp32 [rows, vocab_size], excluded tokens 0.

    Tokens exactly as probable as the last one that is kept are kept, too. The rows are not normalised again after
    the cut (``sample`` scales its draw instead). A greedy row is treated as temperature 1.
    """
    device = logits.device
    temperature = torch.tensor([1.0 if p.greedy else p.temperature for p in params], device=device)
    # Shift before dividing: a tiny temperature must not overflow to inf − inf.
    shifted = (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]
    probs = shifted.softmax(dim=-1)
    if all(p.top_k in (0, -1) and p.top_p >= 1 for p in params):
        return probs
    return probs * (probs >= _least_kept(probs, params))


def _least_kept(probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The smallest probability that top-k and top-p keep in each row, [rows, 1]."""
    device, vocab_size = probs.device, probs.shape[1]
    top_k = torch.tensor([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
    # Ascending values. On the CPU numpy sorts rows of floats many times faster than torch does.
    ordered = torch.from_numpy(np.sort(probs.numpy(), axis=-1)) if device.type == "cpu" else probs.sort(dim=-1).values
    place = torch.arange(vocab_size, device=device)
    ordered = ordered * (place >= vocab_size - top_k[:, None])
    cumulative = ordered.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Drop from the small end what the more probable tokens can do without: they have top_p of the total already.
    first_kept = torch.searchsorted(cumulative, (1 - top_p)[:, None] * total, right=True)
    return ordered.gather(1, first_kept.clamp(max=vocab_size - 1))


def top_logprobs(logits: Tensor, chosen: Sequence[int], ks: Sequence[int]) -> list[dict[int, float]]:
    """Log-probabilities, before temperature and cuts, of each row's ``ks[row]`` best tokens and of its chosen one.

    Each dict is ordered: the chosen token first, then the best ones.
    """
    logprobs = logits.log_softmax(dim=-1)
    chosen_column = torch.tensor(chosen, device=logits.device)[:, None]
    chosen_values = logprobs.gather(1, chosen_column).squeeze(1).tolist()
    values, ids = (found.tolist() for found in logprobs.topk(min(max(ks), logits.shape[1]), dim=-1))
    return [
        {chosen[row]: chosen_values[row]} | dict(zip(ids[row][:k], values[row][:k], strict=True))
        for row, k in enumerate(ks)
    ]
