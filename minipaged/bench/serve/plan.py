"""From a workload (lengths and arrivals) to requests that can be sent: real token ids, with real shared prefixes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minipaged.os_paging.errors import require_whole
from minipaged.workloads import (
    Workload,
    alpaca_like,
    checked,
    load_trace,
    multi_turn,
    poisson_arrivals,
    shared_prefix,
    sharegpt_like,
    workload_a,
    workload_b,
)

DEFAULT_REQUESTS = 100
TURNS = 4  # of each chat of the workload "multi-turn"
TOKEN_IDS = range(256, 512)
"""Ids that prompts are drawn from. Small enough for any vocabulary; in most of them the ids below are single bytes and
special tokens. Give other ones where a model keeps its special tokens here."""

WORKLOADS: dict[str, Callable[[int, int], list[Workload]]] = {  # name: function(number of requests, seed)
    "A": lambda n, seed: workload_a(n),
    "B": lambda n, seed: workload_b(n),
    "shared-prefix": lambda n, seed: shared_prefix(n, seed=seed),
    "multi-turn": lambda n, seed: multi_turn(-(-n // TURNS), TURNS, seed=seed)[:n],
    "sharegpt": lambda n, seed: sharegpt_like(n, seed=seed),
    "alpaca": lambda n, seed: alpaca_like(n, seed=seed),
}


@dataclass(frozen=True)
class PlannedRequest:
    """One request to send `arrival` seconds after the start, and not before the request number `follows` has ended."""

    index: int
    arrival: float
    prompt: list[int]  # token ids: a server's tokenizer cannot change their number
    max_tokens: int
    follows: int | None = None


@dataclass(frozen=True)
class Plan:
    """All requests of a run, in the order of their arrival, and the words that say what they are."""

    name: str
    requests: list[PlannedRequest]
    arrivals: str
    scale: float = 1.0

    @property
    def mean_prompt(self) -> float:
        return sum(len(request.prompt) for request in self.requests) / len(self.requests)

    @property
    def mean_output(self) -> float:
        return sum(request.max_tokens for request in self.requests) / len(self.requests)

    @property
    def longest(self) -> int:
        """Prompt and output tokens of the longest request."""
        return max(len(request.prompt) + request.max_tokens for request in self.requests)

    def lines(self) -> list[str]:
        """What is sent, for people. A scaled workload says so."""
        turns = "; a turn waits for the one before" if any(r.follows is not None for r in self.requests) else ""
        words = [
            f"workload {self.name}: {len(self.requests)} requests, {self.arrivals}{turns}; "
            f"{self.mean_prompt:,.0f} prompt and {self.mean_output:,.0f} output tokens (means)"
        ]
        if self.scale != 1:
            words.append(
                f"scaled: prompt, output and prefix lengths × {self.scale:g}; these are not the workload's own lengths"
            )
        return words


def make_plan(
    workload: str | Path | Sequence[Workload],
    requests: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    scale: float = 1.0,
    unique: bool = False,
    token_ids: Sequence[int] = TOKEN_IDS,
) -> Plan:
    """The requests of a run; the same arguments give the same token ids and arrivals.

    workload: a name of `WORKLOADS`, a trace (.csv or .jsonl), or requests of `minipaged.workloads`.
    requests: how many (default: 100; of a trace or a list, all). rate: requests a second, with Poisson arrivals;
    `math.inf` sends all at once; None keeps the workload's own arrivals. scale: multiplies all lengths.
    unique: no two prompts begin alike, whatever the workload shares.
    Raises ValueError for what cannot be planned.
    """
    if requests is not None:
        require_whole("requests", requests, 1, None, "a run needs at least 1")
    if rate is not None and not rate > 0:
        raise ValueError(f"rate is {rate:g}; give requests per second above 0, or inf to send all at once")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale is {scale:g}; lengths can be multiplied by a finite number above 0 only")
    if len(token_ids) < 2 or min(token_ids) < 0:
        raise ValueError(f"token_ids is {token_ids!r}; prompts are drawn from at least 2 ids, none below 0")
    name, items = _workload(workload, requests, seed)
    items = sorted((_scaled(item, scale) for item in items), key=lambda item: item.arrival)
    if rate is None:
        arrivals = [item.arrival for item in items]
        words = "all at once" if not any(arrivals) else f"arriving over {arrivals[-1]:.1f} s as the workload says"
    else:
        arrivals = poisson_arrivals(len(items), rate, random.Random(f"{seed} arrivals"))
        words = "all at once" if math.isinf(rate) else f"{rate:g} a second (Poisson)"
    chats: dict[str | None, int] = {}
    planned = []
    for index, (item, arrival) in enumerate(zip(items, arrivals, strict=True)):
        follows = chats.get(item.prefix_id) if name == "multi-turn" else None
        chats[item.prefix_id] = index
        prompt = _prompt(item, index, seed, unique, token_ids)
        planned.append(PlannedRequest(index, arrival, prompt, item.output_tokens, follows))
    return Plan(name + (", prompts made unique" if unique else ""), planned, words, scale)


def _workload(
    workload: str | Path | Sequence[Workload], requests: int | None, seed: int
) -> tuple[str, Sequence[Workload]]:
    if isinstance(workload, str | Path):
        if str(workload) in WORKLOADS:
            number = DEFAULT_REQUESTS if requests is None else requests
            return str(workload), WORKLOADS[str(workload)](number, seed)
        path = Path(workload)
        if path.suffix.lower() not in (".csv", ".jsonl"):
            known = ", ".join(WORKLOADS)
            raise ValueError(f"workload {str(workload)!r} is unknown; choose one of {known}, or a .csv or .jsonl file")
        if not path.is_file():
            raise ValueError(f"there is no trace {path}")
        name, items = path.name, load_trace(path)
    else:
        name, items = "given as a list", checked(workload)
        if not items:
            raise ValueError("the workload is an empty list; a run needs at least 1 request")
    if requests is not None and requests > len(items):
        raise ValueError(f"requests is {requests}, but the workload ({name}) has only {len(items)}")
    return name, items[:requests]


def _scaled(item: Workload, scale: float) -> Workload:
    prompt = max(1, round(item.prompt_tokens * scale))
    prefix = min(round(item.prefix_tokens * scale), prompt)
    if item.prefix_tokens < item.prompt_tokens:  # what was the request's own stays at least one token
        prefix = min(prefix, prompt - 1)
    return item._replace(
        prompt_tokens=prompt, output_tokens=max(1, round(item.output_tokens * scale)), prefix_tokens=prefix
    )


def _prompt(item: Workload, index: int, seed: int, unique: bool, token_ids: Sequence[int]) -> list[int]:
    """The shared beginning, drawn from a stream of its own name, and then tokens that are this request's alone.

    A longer draw from a stream begins with the shorter one: so each turn of a chat begins with the turn before.
    """
    shared = 0 if unique or item.prefix_id is None else item.prefix_tokens
    prefix = random.Random(f"{seed} prefix {item.prefix_id}").choices(token_ids, k=shared)
    return prefix + random.Random(f"{seed} request {index}").choices(token_ids, k=item.prompt_tokens - shared)
