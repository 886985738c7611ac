"""How a request wants its next tokens chosen: the parameters, checked when they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

GREEDY_BELOW = 1e-5  # a temperature under this divides logits by almost nothing; vLLM treats it as greedy too


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of one request. The names are vLLM's; the default temperature is 0 (vLLM: 1.0), so that a
    first try gives the same text twice.

    n                number of continuations of the one prompt (parallel sampling)
    temperature      0 = greedy: always the most probable token. Higher values flatten the distribution
    top_k            only the k most probable tokens may be drawn; 0 or −1 = no limit
    top_p            only the smallest set of tokens whose probabilities reach top_p; 1.0 = no limit
    seed             makes the draw repeatable, whatever else is in the batch; continuation i uses seed + i
    stop             strings that end the text; the string itself is cut off
    stop_token_ids   tokens that end the text, as the end-of-sequence token does
    max_tokens       tokens to generate at most; None = as many as model and pool allow
    ignore_eos       go on after the end-of-sequence token (benchmarks need exact lengths)
    logprobs         report the log-probabilities of the k most probable tokens and of the chosen one, at each step
    sharing          how n > 1 continuations share the prompt: "fork" (the paper: one prefill, copy-on-write) or
                     "prefix_cache" (vLLM V1: n requests that find each other's full blocks by hash)

    Raises TypeError or ValueError that names the parameter, the value and what is allowed.
    """

    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    max_tokens: int | None = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    sharing: str = "fork"

    stop_strings: tuple[str, ...] = field(init=False, repr=False)
    stop_tokens: frozenset[int] = field(init=False, repr=False)
    greedy: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_int("n", self.n, low=1)
        check_number("temperature", self.temperature, low=0.0)
        check_int("top_k", self.top_k, low=-1)
        check_number("top_p", self.top_p, low=0.0, high=1.0)
        if self.top_p == 0:
            raise ValueError("top_p is 0, which would leave no token to draw; give 0 < top_p <= 1 (1 = no limit)")
        if self.seed is not None:
            check_int("seed", self.seed)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, low=1)
        if self.logprobs is not None:
            check_int("logprobs", self.logprobs, low=0)
        check_bool("ignore_eos", self.ignore_eos)
        if self.sharing not in ("fork", "prefix_cache"):
            raise ValueError(f'sharing is {self.sharing!r}; choose "fork" or "prefix_cache"')
        # Frozen, so that one object can serve many requests; the derived fields are set once, here.
        object.__setattr__(self, "stop_strings", _stop_strings(self.stop))
        object.__setattr__(self, "stop_tokens", frozenset(_stop_token_ids(self.stop_token_ids)))
        object.__setattr__(self, "greedy", self.temperature < GREEDY_BELOW)


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """Beam search: keep the ``beam_width`` most probable continuations at every step.

    A finished hypothesis scores ``sum of log-probabilities / generated tokens ** length_penalty``, as in Hugging
    Face transformers (vLLM 0.32 counts the prompt's tokens too). Above 0 the penalty favours longer texts.

    early_stopping   True: end as soon as beam_width hypotheses have ended. False: go on until no unfinished beam
                     can still reach a better score than the worst of the best beam_width ended ones
                     (transformers calls this "never").
    """

    beam_width: int
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        check_int("beam_width", self.beam_width, low=1)
        check_int("max_tokens", self.max_tokens, low=1)
        check_number("length_penalty", self.length_penalty)
        check_bool("early_stopping", self.early_stopping)
        check_bool("ignore_eos", self.ignore_eos)

    def score(self, cumulative_logprob: float, num_generated: int) -> float:
        return cumulative_logprob / num_generated**self.length_penalty


# What generation_config.json may ask for beyond temperature, top_k and top_p, with the value that asks for nothing.
_NOT_FOLLOWED = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "num_beams": 1,
    "bad_words_ids": None,
}


def recommended_sampling(generation: dict[str, object]) -> dict[str, object]:
    """SamplingParams' arguments from a generation_config.json. ``do_sample`` false, or left out, is greedy.

    Raises ValueError naming the settings that minipaged does not have.
    """
    asked = {name: generation[name] for name, nothing in _NOT_FOLLOWED.items() if generation.get(name) is not None}
    asked = {name: value for name, value in asked.items() if value != _NOT_FOLLOWED[name]}
    sampling: dict[str, object] = {"temperature": 0.0}
    if generation.get("do_sample"):
        # transformers' own defaults for what is left out
        defaults = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
        sampling = {
            name: default if generation.get(name) is None else generation[name] for name, default in defaults.items()
        }
    if asked:
        raise ValueError(
            f"generation_config.json recommends {', '.join(f'{k} = {v!r}' for k, v in asked.items())}, which minipaged "
            f"does not have. Choose the sampling yourself, for example SamplingParams("
            f"{', '.join(f'{k}={v!r}' for k, v in sampling.items())})"
        )
    return sampling


def check_int(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Return ``value`` if it is an int (not a bool) between ``low`` and ``high``; else raise, naming all three."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); give an integer")
    _check_range(name, value, low, high)
    return value


def check_number(name: str, value: object, low: float | None = None, high: float | None = None) -> float:
    """As ``check_int``, for a finite int or float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); give a number")
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{name} is {value}; give a finite number")
    _check_range(name, value, low, high)
    return value


def check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); give True or False")
    return value


def _check_range(name: str, value: float, low: float | None, high: float | None) -> None:
    if (low is not None and value < low) or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"{low} … {high}"
        raise ValueError(f"{name} is {value}; allowed is {allowed}")


def _stop_strings(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, list | tuple) or not all(isinstance(s, str) for s in strings):
        raise TypeError(f"stop is {stop!r}; give a string or a list of strings")
    if "" in strings:
        raise ValueError("stop holds an empty string, which every text contains; leave it out")
    return tuple(strings)


def _stop_token_ids(token_ids: object) -> tuple[int, ...]:
    if token_ids is None:
        return ()
    if not isinstance(token_ids, list | tuple | set | frozenset):
        raise TypeError(f"stop_token_ids is {token_ids!r}; give a list of token ids")
    return tuple(check_int("stop_token_ids", token, low=0) for token in token_ids)
