"""One request of a workload, and what no system could serve in it."""

import sys
from collections.abc import Iterable
from typing import NamedTuple


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
            return f"{name} is {short(value)}; it must be a whole number of at least {least}"
    arrival, name = request.arrival, request.prefix_id
    # The comparison is false for nan, for inf, and for a whole number that no float can hold.
    if not isinstance(arrival, int | float) or isinstance(arrival, bool) or not 0 <= arrival <= sys.float_info.max:
        return f"arrival is {short(arrival)}; it must be a number of seconds of at least 0, and finite"
    if name is not None and not (isinstance(name, str) and name):
        return f"prefix_id is {short(name)}; it must be a text that names the prefix, or be left out"
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
            raise ValueError(f"request {number} is {short(request)}; {way_out}")
        if words := problem(request):
            raise ValueError(f"request {number}: {words}")
    return requests


def short(value: object) -> str:
    """A value as an error message shows it: long ones are cut."""
    try:
        words = repr(value)
    except ValueError:  # Python writes out no number of more than 4300 digits
        return "a number of more than 4300 digits"
    return words if len(words) <= 60 else f"{words[:50]}… ({len(words)} characters)"
