"""What a request gives back. The names are vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CompletionOutput:
    """One continuation of a prompt.

    finish_reason   "stop" (end-of-sequence, stop token or stop string), "length", "abort", "error"; None while
                    it is being generated
    stop_reason     the stop string or stop token that ended it; None for the end-of-sequence token
    logprobs        one dict {token id: log-probability} a generated token, if they were asked for
    text_ends       with logprobs and a tokenizer: where in the text each token ends, in characters. Tokens that end
                    behind the text made a stop string, which was cut off. An ending token has no entry
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, float]] | None = None
    text_ends: list[int] | None = None
    score: float | None = None  # beam search only: cumulative_logprob with the length penalty

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestTimes:
    """Seconds on the engine's monotonic clock. ``tokens`` has one entry a step in which the prompt's text grew.

    With n texts for a prompt several may grow in one step, and the step counts once.
    """

    arrival: float
    first_scheduled: float | None = None
    tokens: list[float] = field(default_factory=list)
    finished: float | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token."""
        return self.tokens[0] - self.arrival if self.tokens else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: n tokens have n − 1 gaps."""
        if len(self.tokens) < 2:
            return None
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1)


@dataclass
class RequestOutput:
    """One prompt and its continuations, in the order of their index (beam search: best score first).

    num_cached_tokens   prompt tokens whose KV was found in the prefix cache when the request was first admitted.
                        Hits after a preemption do not count: they repeat work, they do not save any.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    times: RequestTimes | None = None
