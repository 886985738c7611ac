"""Requests with lengths and arrivals: what the experiments of Months 4 and 5 are run on. All seeded, nothing measured.

The lengths "like ShareGPT" and "like Alpaca" are log-normal with the published means (Kwon et al., SOSP 2023, Fig. 11:
161.31 prompt and 337.99 output tokens; 19.31 and 58.45). The paper gives no variance, so the spread is an assumption
of ours, `sigma`, and every function lets you change it. A simulated figure made from these is a simulated figure.
"""

import csv
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MAX_LENGTH = 2048  # prompt and output together: the longest that OPT, the paper's model, can hold


class Workload(NamedTuple):
    """One request of a trace. `arrival` in seconds; `prefix_id` names a shared beginning of `prefix_tokens` tokens."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    prefix_id: str | None = None
    prefix_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


def poisson_arrivals(n: int, rate: float, rng: random.Random) -> list[float]:
    """`n` arrival times in seconds at `rate` requests per second; `math.inf` lets all arrive at 0 (saturation)."""
    if n < 0 or not rate > 0:
        raise ValueError(f"n is {n} and rate is {rate}; n must be at least 0 and rate above 0")
    if math.isinf(rate):
        return [0.0] * n
    now, times = 0.0, []
    for _ in range(n):
        now += rng.expovariate(rate)
        times.append(now)
    return times


def log_normal_mu(mean: float, sigma: float) -> float:
    """The mu of a log-normal distribution with this mean: mean = exp(mu + sigma² / 2)."""
    if mean <= 0 or sigma < 0:
        raise ValueError(f"mean is {mean} and sigma is {sigma}; mean must be above 0 and sigma at least 0")
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
    rng = random.Random(seed)
    sigma_output = sigma if sigma_output is None else sigma_output
    mu_prompt, mu_output = log_normal_mu(mean_prompt, sigma), log_normal_mu(mean_output, sigma_output)
    requests = []
    for arrival in poisson_arrivals(n, rate, rng):
        while True:
            prompt = max(1, round(rng.lognormvariate(mu_prompt, sigma)))
            output = max(1, round(rng.lognormvariate(mu_output, sigma_output)))
            if prompt + output <= max_length:
                break
        requests.append(Workload(arrival, prompt, output))
    return requests


def sharegpt_like(
    n: int, sigma: float = 1.0, rate: float = math.inf, seed: int = 0, sigma_output: float | None = None
) -> list[Workload]:
    """Chat-like lengths: the means of ShareGPT in the paper's Fig. 11."""
    return log_normal_lengths(n, 161.31, 337.99, sigma, rate, seed, sigma_output=sigma_output)


def alpaca_like(n: int, sigma: float = 1.0, rate: float = math.inf, seed: int = 0) -> list[Workload]:
    """Short instructions: the means of Alpaca in the paper's Fig. 11."""
    return log_normal_lengths(n, 19.31, 58.45, sigma, rate, seed)


def workload_a(n: int = 100) -> list[Workload]:
    """Short answers: `n` requests at once, 50 prompt tokens, 10 new ones."""
    return [Workload(0.0, 50, 10)] * n


def workload_b(n: int = 100) -> list[Workload]:
    """Long answers: `n` requests at once, 50 prompt tokens, 2000 new ones."""
    return [Workload(0.0, 50, 2000)] * n


def shared_prefix(
    n: int, prefix_tokens: int = 341, num_prefixes: int = 1, rate: float = math.inf, seed: int = 0
) -> list[Workload]:
    """Alpaca-like requests behind one of `num_prefixes` system prompts (the paper's Fig. 16 has 80 and 341 tokens)."""
    rng = random.Random(seed + 1)
    requests = []
    for request in alpaca_like(n, rate=rate, seed=seed):
        prefix = f"system {rng.randrange(num_prefixes)}"
        requests.append(request._replace(prompt_tokens=request.prompt_tokens + prefix_tokens, prefix_id=prefix))
    return [request._replace(prefix_tokens=prefix_tokens) for request in requests]


def multi_turn(conversations: int, turns: int = 4, think_time: float = 5.0, seed: int = 0) -> list[Workload]:
    """Chats whose prompt is all that was said before: the prompts of one chat are beginnings of one another."""
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


def load_trace(path: str | Path) -> list[Workload]:
    """Your own trace: CSV with a header line, or JSONL (one object a line).

    Columns: `arrival` (seconds), `prompt_tokens`, `output_tokens`, and optionally `prefix_id` with `prefix_tokens`.
    A bad row raises ValueError with the file and the line; nothing is returned then.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], Iterator[tuple[int, dict]]]] = {".csv": _csv_rows, ".jsonl": _jsonl_rows}
    if path.suffix not in readers:
        raise ValueError(f"{path} ends in {path.suffix!r}; a trace is a .csv or a .jsonl file")
    requests = [_workload(path, line, row) for line, row in readers[path.suffix](path)]
    if not requests:
        raise ValueError(f"{path} holds no request; it needs at least one row below the header")
    return sorted(requests, key=lambda request: request.arrival)


def _csv_rows(path: Path) -> Iterator[tuple[int, dict]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            yield reader.line_num, row


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: {row!r} is not an object with named fields")
            yield number, row


def _workload(path: Path, line: int, row: dict) -> Workload:
    def number(field: str, kind: type, least: float, default: float | None = None) -> float:
        value = row.get(field)
        if value in (None, "") and default is not None:
            return default
        try:
            got = kind(value)
            if (isinstance(value, (bool, float)) and got != value) or not least <= got < math.inf:
                raise ValueError
        except (TypeError, ValueError):
            wanted = "a whole number" if kind is int else "a number"
            raise ValueError(
                f"{path}, line {line}: {field} is {value!r}; it must be {wanted} of at least {least}"
            ) from None
        return got

    prompt = number("prompt_tokens", int, 1)
    prefix = number("prefix_tokens", int, 0, default=0)
    if prefix > prompt:
        raise ValueError(f"{path}, line {line}: prefix_tokens is {prefix}, more than the {prompt} prompt tokens")
    prefix_id = row.get("prefix_id") or None
    return Workload(number("arrival", float, 0), prompt, number("output_tokens", int, 1), prefix_id, prefix)
