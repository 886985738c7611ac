"""Workloads made of random lengths and arrivals. All seeded, nothing measured.

The lengths "like ShareGPT" and "like Alpaca" are log-normal with the published means (Kwon et al., SOSP 2023, Fig. 11:
161.31 prompt and 337.99 output tokens; 19.31 and 58.45). The paper gives no variance, so the spread is an assumption
of ours, `sigma`, and every function lets you change it. A simulated figure made from these is a simulated figure.
"""

import math
import random
import sys
from collections.abc import Iterable

from minipaged.os_paging.errors import require_whole
from minipaged.workloads.request import Workload, short

MAX_LENGTH = 2048  # prompt and output together: the longest that OPT, the paper's model, can hold
SHAREGPT_MEANS = (161.31, 337.99)  # prompt and output tokens: Fig. 11 of the paper
ALPACA_MEANS = (19.31, 58.45)


def _require_real(name: str, value: float, low: float, limit: str, above: bool = False, finite: bool = True) -> None:
    """ValueError unless `value` is a number, at least (or above) `low`, and finite; `limit` says it in words."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not (real and (value > low if above else value >= low) and (not finite or value <= sys.float_info.max)):
        raise ValueError(f"{name} is {short(value)}; it must be a number {limit}")


def poisson_arrivals(n: int, rate: float, rng: random.Random) -> list[float]:
    """`n` arrival times in seconds at `rate` requests per second; `math.inf` lets all arrive at 0 (saturation)."""
    require_whole("n", n, 0, None, "give the number of requests")
    _require_real("rate", rate, 0, "of requests per second above 0, or math.inf", above=True, finite=False)
    if math.isinf(rate):
        return [0.0] * n
    now, times = 0.0, []
    for _ in range(n):
        now += rng.expovariate(rate)
        times.append(now)
    return times


def log_normal_mu(mean: float, sigma: float) -> float:
    """The mu of a log-normal distribution with this mean: mean = exp(mu + sigma² / 2)."""
    _require_real("mean", mean, 0, "of tokens above 0, and finite", above=True)
    _require_real("sigma", sigma, 0, "of at least 0, and finite; 1.0 is this course's")
    return math.log(mean) - sigma * sigma / 2


def log_normal_lengths(
    n: int,
    mean_prompt: float,
    mean_output: float,
    sigma: float = 1.0,
    rate: float = math.inf,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
    sigma_output: float | None = None,
) -> list[Workload]:
    """Requests with log-normal prompt and output lengths; a pair longer than `max_length` together is drawn again.

    `sigma` is the spread of both lengths; `sigma_output` gives the outputs another one.
    Drawing again shortens the means a little: `mean_lengths` tells what came out.
    """
    require_whole("max_length", max_length, 2, None, "a request has at least one prompt and one output token")
    sigma_output = sigma if sigma_output is None else sigma_output
    mu_prompt, mu_output = log_normal_mu(mean_prompt, sigma), log_normal_mu(mean_output, sigma_output)
    too_long = (
        f"the means are {mean_prompt} + {mean_output} tokens, too many for max_length = {max_length}: nearly every "
        "pair would be drawn again; give smaller means or a larger max_length"
    )
    if mean_prompt + mean_output > max_length:
        raise ValueError(too_long)
    rng, requests = random.Random(seed), []
    for arrival in poisson_arrivals(n, rate, rng):
        for _ in range(10_000):
            prompt = max(1, round(rng.lognormvariate(mu_prompt, sigma)))
            output = max(1, round(rng.lognormvariate(mu_output, sigma_output)))
            if prompt + output <= max_length:
                break
        else:
            raise ValueError(too_long)
        requests.append(Workload(arrival, prompt, output))
    return requests


def sharegpt_like(
    n: int, sigma: float = 1.0, rate: float = math.inf, seed: int = 0, sigma_output: float | None = None
) -> list[Workload]:
    """Chat-like lengths: the means of ShareGPT in the paper's Fig. 11."""
    return log_normal_lengths(n, *SHAREGPT_MEANS, sigma, rate, seed, sigma_output=sigma_output)


def alpaca_like(n: int, sigma: float = 1.0, rate: float = math.inf, seed: int = 0) -> list[Workload]:
    """Short instructions: the means of Alpaca in the paper's Fig. 11."""
    return log_normal_lengths(n, *ALPACA_MEANS, sigma, rate, seed)


def workload_a(n: int = 100) -> list[Workload]:
    """Short answers: `n` requests at once, 50 prompt tokens, 10 new ones."""
    return [Workload(0.0, 50, 10)] * require_whole("n", n, 0, None, "give the number of requests")


def workload_b(n: int = 100) -> list[Workload]:
    """Long answers: `n` requests at once, 50 prompt tokens, 2000 new ones."""
    return [Workload(0.0, 50, 2000)] * require_whole("n", n, 0, None, "give the number of requests")


def shared_prefix(
    n: int, prefix_tokens: int = 341, num_prefixes: int = 1, rate: float = math.inf, seed: int = 0
) -> list[Workload]:
    """Alpaca-like requests behind one of `num_prefixes` system prompts (the paper's Fig. 16 has 80 and 341 tokens)."""
    way_out = f"the other half of the model's {MAX_LENGTH} tokens stays for the requests themselves"
    require_whole("prefix_tokens", prefix_tokens, 0, MAX_LENGTH // 2, way_out)
    require_whole("num_prefixes", num_prefixes, 1, None, "every request has a system prompt")
    rng, requests = random.Random(seed + 1), []
    for own in log_normal_lengths(n, *ALPACA_MEANS, rate=rate, seed=seed, max_length=MAX_LENGTH - prefix_tokens):
        name = f"system {rng.randrange(num_prefixes)}"
        prompt = prefix_tokens + own.prompt_tokens
        requests.append(Workload(own.arrival, prompt, own.output_tokens, name, prefix_tokens))
    return requests


def multi_turn(conversations: int, turns: int = 4, think_time: float = 5.0, seed: int = 0) -> list[Workload]:
    """Chats whose prompt is all that was said before: the prompts of one chat are beginnings of one another."""
    require_whole("conversations", conversations, 0, None, "give the number of chats")
    most = MAX_LENGTH // 90  # a turn has 30 + 60 tokens on average
    require_whole("turns", turns, 1, most, f"a chat is at most {MAX_LENGTH} tokens long")
    _require_real("think_time", think_time, 0, "of seconds of at least 0, and finite")
    rng = random.Random(seed)
    requests = []
    for number in range(conversations):
        history, now = 0, rng.random()
        for turn in log_normal_lengths(turns, 30, 60, 0.5, seed=rng.randrange(2**32), max_length=MAX_LENGTH // turns):
            prompt = history + turn.prompt_tokens
            requests.append(Workload(now, prompt, turn.output_tokens, f"chat {number}", prompt))
            history = prompt + turn.output_tokens
            now += think_time
    return sorted(requests)


def mean_lengths(requests: Iterable[Workload]) -> tuple[float, float]:
    """Mean prompt and output tokens."""
    requests = list(requests)
    if not requests:
        raise ValueError("no requests given; a mean needs at least 1")
    total_prompt = sum(request.prompt_tokens for request in requests)
    total_output = sum(request.output_tokens for request in requests)
    return total_prompt / len(requests), total_output / len(requests)
