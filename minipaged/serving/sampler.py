"""Draw the next token of every row of a batch, in a handful of tensor operations."""

from __future__ import annotations

import random
from collections.abc import Sequence

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
    u = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    drawn = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(1)
    # Rounding may put u · total at the very end, behind the last token that may be drawn.
    last_allowed = probs.shape[1] - 1 - (probs > 0).flip(1).int().argmax(dim=1)
    drawn = torch.minimum(drawn, last_allowed)
    greedy = torch.tensor([p.greedy for p in params], device=logits.device)
    return torch.where(greedy, logits.argmax(dim=-1), drawn).tolist()


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Softmax after temperature, then top-k, then top-p; fp32 [rows, vocab_size], excluded tokens 0.

    The rows are not normalised again after the cut (``sample`` scales its draw instead).
    A greedy row is treated as temperature 1.
    """
    device, vocab_size = logits.device, logits.shape[1]
    temperature = torch.tensor([1.0 if p.greedy else p.temperature for p in params], device=device)
    # Shift before dividing: a tiny temperature must not overflow to inf − inf.
    shifted = (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]
    probs = shifted.softmax(dim=-1)
    if all(p.top_k in (0, -1) and p.top_p >= 1 for p in params):
        return probs
    top_k = torch.tensor([p.top_k if p.top_k > 0 else vocab_size for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], device=device)
    # A stable order, so that equal probabilities are cut the same way on every run.
    ordered, token_ids = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=device)
    ordered = ordered * (rank < top_k[:, None])
    before = ordered.cumsum(dim=-1) - ordered  # probability of all better tokens that survived top-k
    total = ordered.sum(dim=-1, keepdim=True)
    keep = (before < top_p[:, None] * total) | (top_p[:, None] >= 1) | (rank == 0)
    return torch.zeros_like(probs).scatter_(1, token_ids, ordered * keep)


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
