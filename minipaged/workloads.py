"""Requests with lengths and arrivals: what the experiments of Months 4 and 5 are run on. All seeded, nothing measured.

The lengths "like ShareGPT" and "like Alpaca" are log-normal with the published means (Kwon et al., SOSP 2023, Fig. 11:
161.31 prompt and 337.99 output tokens; 19.31 and 58.45). The paper gives no variance, so the spread is an assumption
of ours, `sigma`, and every function lets you change it. A simulated figure made from these is a simulated figure.
"""

import csv
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from minipaged.os_paging.errors import require_whole

MAX_LENGTH = 2048  # prompt and output together: the longest that OPT, the paper's model, can hold
SHAREGPT_MEANS = (161.31, 337.99)  # prompt and output tokens: Fig. 11 of the paper
ALPACA_MEANS = (19.31, 58.45)


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


def problem(request: Workload) -> str | None:
    """What no system could serve in this request, in words; None when all is well.

    Asked by whoever takes requests from outside, before it begins. Whether it fits a pool is the system's matter.
    """
    for name, least in (("prompt_tokens", 1), ("output_tokens", 1), ("prefix_tokens", 0)):
        value = getattr(request, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            return f"{name} is {_short(value)}; it must be a whole number of at least {least}"
    arrival, name = request.arrival, request.prefix_id
    # The comparison is false for nan, for inf, and for a whole number that no float can hold.
    if not isinstance(arrival, int | float) or isinstance(arrival, bool) or not 0 <= arrival <= sys.float_info.max:
        return f"arrival is {_short(arrival)}; it must be a number of seconds of at least 0, and finite"
    if name is not None and not (isinstance(name, str) and name):
        return f"prefix_id is {_short(name)}; it must be a text that names the prefix, or be left out"
    prefix, prompt = request.prefix_tokens, request.prompt_tokens
    if prefix > prompt:
        return f"prefix_tokens is {prefix}, more than the {prompt} prompt tokens; a prefix is the prompt's beginning"
    if prefix and name is None:
        return f"prefix_tokens is {prefix}, but prefix_id is missing; name the prefix, or leave prefix_tokens out"
    return None


def checked(requests: Iterable[Workload]) -> list[Workload]:
    """The requests as a list; ValueError names the first that no system could serve."""
    requests = list(requests)
    for number, request in enumerate(requests):
        if not isinstance(request, Workload):
            way_out = "write Workload(arrival, prompt_tokens, output_tokens)"
            raise ValueError(f"request {number} is {_short(request)}; {way_out}")
        if words := problem(request):
            raise ValueError(f"request {number}: {words}")
    return requests


def _short(value: object) -> str:
    """A value as an error message shows it: long ones are cut."""
    try:
        words = repr(value)
    except ValueError:  # Python writes out no number of more than 4300 digits
        return "a number of more than 4300 digits"
    return words if len(words) <= 60 else f"{words[:50]}… ({len(words)} characters)"


def _require_real(name: str, value: float, low: float, limit: str, above: bool = False, finite: bool = True) -> None:
    """ValueError unless `value` is a number, at least (or above) `low`, and finite; `limit` says it in words."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not (real and (value > low if above else value >= low) and (not finite or value <= sys.float_info.max)):
        raise ValueError(f"{name} is {_short(value)}; it must be a number {limit}")


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


COLUMNS = ("arrival", "prompt_tokens", "output_tokens")


def load_trace(path: str | Path) -> list[Workload]:
    """Your own trace: CSV with a header line, or JSONL (one object a line); UTF-8.

    Columns: `arrival` (seconds), `prompt_tokens`, `output_tokens`, and optionally `prefix_id` with `prefix_tokens`;
    others are ignored. A bad row raises ValueError with the file and the line; nothing is returned then.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], Iterator[tuple[int, dict]]]] = {".csv": _csv_rows, ".jsonl": _jsonl_rows}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} ends in {path.suffix!r}; a trace is a .csv or a .jsonl file")
    requests = []
    for line, row in readers[path.suffix.lower()](path):
        try:
            requests.append(_workload(row))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    if not requests:
        raise ValueError(f"{path} holds no request; a CSV file needs a header and a row, a JSONL file an object")
    return sorted(requests, key=lambda request: request.arrival)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, one at a time, without a byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x}"
                raise ValueError(f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8") from None


def _csv_rows(path: Path) -> Iterator[tuple[int, dict]]:
    """(line, row) for each row: the line where it begins, since a quoted cell may hold line breaks."""
    reader, names, line = csv.reader(_lines(path), strict=True), [], 1
    try:
        for cells in reader:
            if cells and not names:
                names = _header(path, line, [name.strip() for name in cells])
            elif len(cells) > len(names):
                raise ValueError(f"{path}, line {line}: {len(cells)} cells, but the header names {len(names)} columns")
            elif cells:
                yield line, dict(zip(names, cells, strict=False))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: not CSV ({error})") from None


def _header(path: Path, line: int, names: list[str]) -> list[str]:
    wrong = [f"{name} is missing" for name in COLUMNS if name not in names]
    wrong += [f"{name} stands there {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]
    if wrong:
        found = _short(", ".join(names))
        raise ValueError(
            f"{path}, line {line}: the header is {found}: {'; '.join(wrong)}. It needs {', '.join(COLUMNS)}, "
            "separated by commas"
        )
    return names


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: {_short(row)} is not an object with named fields")
            yield number, row


def _workload(row: dict) -> Workload:
    """One row as a request; ValueError says what is wrong with it."""
    for name in COLUMNS:
        if row.get(name) in (None, ""):
            raise ValueError(f"{name} is missing; every row needs {', '.join(COLUMNS)}")
    numbers = {name: _number(row[name], float if name == "arrival" else int) for name in COLUMNS}
    prefix_id, prefix_tokens = row.get("prefix_id"), row.get("prefix_tokens")
    if isinstance(prefix_id, int) and not isinstance(prefix_id, bool):
        prefix_id = str(prefix_id)  # JSON may count its prefixes; CSV has only texts
    if prefix_id == "":
        prefix_id = None
    if prefix_id is not None and prefix_tokens in (None, ""):
        raise ValueError(f"prefix_id is {_short(prefix_id)}, but prefix_tokens is missing; say how many tokens it has")
    prefix = 0 if prefix_tokens in (None, "") else _number(prefix_tokens, int)
    request = Workload(**numbers, prefix_id=prefix_id, prefix_tokens=prefix)
    if words := problem(request):
        raise ValueError(words)
    return request


def _number(value: Any, kind: type) -> Any:
    """The number that a cell stands for; what stands for none is returned as it is, for `problem` to name."""
    if isinstance(value, float) and value.is_integer():
        return kind(value)
    if isinstance(value, str) and "_" not in value:  # Python would read 1_000 as a number
        try:
            return kind(value)
        except ValueError:
            pass
    return value
