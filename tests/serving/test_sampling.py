"""Parameters are checked when they are made; draws follow the distribution and nothing else in the batch."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.serving import BeamSearchParams, SamplingParams
from minipaged.serving.sampler import probabilities, sample, top_logprobs


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"n": 0}, ValueError, "n is 0; allowed is at least 1"),
        ({"n": True}, TypeError, "n is True"),
        ({"n": 1.5}, TypeError, "n is 1.5"),
        ({"temperature": -0.1}, ValueError, "temperature is -0.1"),
        ({"temperature": float("nan")}, ValueError, "temperature is nan"),
        ({"temperature": "hot"}, TypeError, "temperature is 'hot'"),
        ({"top_k": -2}, ValueError, "top_k is -2"),
        ({"top_p": 0}, ValueError, "top_p is 0"),
        ({"top_p": 1.1}, ValueError, "top_p is 1.1; allowed is 0.0 … 1.0"),
        ({"seed": "one"}, TypeError, "seed is 'one'"),
        ({"max_tokens": 0}, ValueError, "max_tokens is 0"),
        ({"max_tokens": -3}, ValueError, "max_tokens is -3"),
        ({"max_tokens": "8"}, TypeError, "max_tokens is '8'"),
        ({"logprobs": -1}, ValueError, "logprobs is -1"),
        ({"ignore_eos": 1}, TypeError, "ignore_eos is 1"),
        ({"stop": ""}, ValueError, "empty string"),
        ({"stop": 5}, TypeError, "stop is 5"),
        ({"stop": ["a", 3]}, TypeError, "stop is"),
        ({"stop_token_ids": 5}, TypeError, "stop_token_ids is 5"),
        ({"stop_token_ids": [-1]}, ValueError, "stop_token_ids is -1"),
        ({"sharing": "none"}, ValueError, "sharing is 'none'"),
    ],
)
def test_params_refuse(wrong, error, message):
    with pytest.raises(error, match=message):
        SamplingParams(**wrong)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"beam_width": 0}, ValueError),
        ({"beam_width": "2"}, TypeError),
        ({"beam_width": 2, "max_tokens": None}, TypeError),
        ({"beam_width": 2, "length_penalty": float("inf")}, ValueError),
        ({"beam_width": 2, "early_stopping": "never"}, TypeError),
    ],
)
def test_beam_params_refuse(wrong, error):
    with pytest.raises(error):
        BeamSearchParams(**wrong)


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.0]])


def draw(params: SamplingParams, count: int = 4000):
    """Relative frequency of each token over many draws of one row."""
    rng = random.Random(0)
    logits = LOGITS.expand(count, -1)
    tokens = torch.tensor(sample(logits, [params] * count, [rng] * count))
    return torch.bincount(tokens, minlength=5) / count


def softmax(temperature=1.0):
    return (LOGITS[0].double() / temperature).softmax(-1)


def test_greedy_takes_the_most_probable():
    assert sample(LOGITS, [SamplingParams()], [random.Random(0)]) == [0]
    assert sample(LOGITS, [SamplingParams(temperature=1e-6)], [random.Random(0)]) == [0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_softmax(temperature):
    wanted = softmax(temperature)
    assert (draw(SamplingParams(temperature=temperature)) - wanted).abs().max() < 0.025


def test_top_k_draws_from_the_k_best_only():
    found = draw(SamplingParams(temperature=1.0, top_k=3))
    wanted = softmax()[[0, 1, 4]] / softmax()[[0, 1, 4]].sum()
    assert found[[2, 3]].sum() == 0
    assert (found[[0, 1, 4]] - wanted).abs().max() < 0.025


def test_top_p_takes_the_smallest_set_that_reaches_it():
    logits = torch.tensor([[0.53, 0.2, 0.18, 0.06, 0.03]]).log()
    for top_p, kept in ((0.5, [0]), (0.54, [0, 1]), (0.75, [0, 1, 2]), (0.95, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3, 4])):
        probs = probabilities(logits, [SamplingParams(temperature=1.0, top_p=top_p)])[0]
        assert probs.nonzero().flatten().tolist() == kept, top_p


def test_top_p_works_on_what_top_k_left():
    # After top-k 2 the two probabilities are .73 and .27 of what is left.
    logits = torch.tensor([[0.53, 0.2, 0.18, 0.06, 0.03]]).log()
    kept = probabilities(logits, [SamplingParams(temperature=1.0, top_k=2, top_p=0.7)])[0].nonzero().flatten()
    assert kept.tolist() == [0]


@given(st.integers(0, 10**6), st.integers(-1, 12), st.floats(0.01, 1.0))
@settings(deadline=None, derandomize=True)
def test_cuts_are_those_of_a_loop_over_sorted_tokens(seed, top_k, top_p):
    logits = torch.randn(1, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float() * 2
    exact = logits[0].double().softmax(-1).tolist()
    best = sorted(range(10), key=lambda token: -exact[token])[: top_k if top_k > 0 else 10]
    total, kept, mass = sum(exact[token] for token in best), [], 0.0
    for token in best:
        if abs(mass - top_p * total) < 1e-6:
            return  # at the edge, rounding decides
        if mass < top_p * total or top_p == 1:
            kept.append(token)
        mass += exact[token]
    probs = probabilities(logits, [SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p)])[0]
    assert probs.nonzero().flatten().tolist() == sorted(kept)


def test_equal_probabilities_are_kept_together():
    probs = probabilities(LOGITS, [SamplingParams(temperature=1.0, top_k=2)])[0]
    assert probs.nonzero().flatten().tolist() == [0, 1, 4]


def test_a_row_does_not_depend_on_the_others():
    mixed = [
        SamplingParams(),
        SamplingParams(temperature=0.9),
        SamplingParams(temperature=1.3, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.6),
    ]
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    together = sample(logits, mixed, [random.Random(i) for i in range(4)])
    alone = [sample(logits[i : i + 1], [mixed[i]], [random.Random(i)])[0] for i in range(4)]
    assert together == alone


def test_extreme_values_stay_finite():
    logits = torch.tensor([[1e4, 1e4 - 1, -1e4], [float("-inf"), 0.0, float("-inf")]])
    for temperature in (1e-4, 1.0, 1e6):
        params = [SamplingParams(temperature=temperature, top_k=2, top_p=0.9)] * 2
        probs = probabilities(logits, params)
        assert probs.isfinite().all()
        assert sample(logits, params, [random.Random(0)] * 2)[1] == 1


class Always(random.Random):
    """A generator that always gives the same number."""

    def __init__(self, value):
        super().__init__(0)
        self.value = value

    def random(self):
        return self.value


@pytest.mark.parametrize("u", [0.0, 1.0 - 2**-53])
def test_an_excluded_token_is_never_drawn(u):
    """Not at the ends of the interval either, where rounding could point at a token with probability 0."""
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(1))
    for params in (SamplingParams(temperature=1.0, top_k=3), SamplingParams(temperature=1.0, top_p=0.1)):
        (token,) = sample(logits, [params], [Always(u)])
        assert probabilities(logits, [params])[0, token] > 0


def test_logprobs_name_the_chosen_token_first():
    found, none = top_logprobs(LOGITS.expand(2, -1), [3, 0], [2, 0])
    exact = LOGITS[0].double().log_softmax(-1).tolist()
    assert list(found) == [3, 0, 1]
    assert all(math.isclose(value, exact[token], abs_tol=1e-6) for token, value in found.items())
    assert list(none) == [0]
