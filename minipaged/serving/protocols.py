"""What the engine asks of a scheduler, and what a scheduler answers. A learner's scheduler needs just this."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from minipaged.serving.request import Request
from minipaged.serving.sampling import check_bool, check_int, check_number


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """The limits of one step.

    max_num_seqs              sequences that run at the same time, at most
    max_num_batched_tokens    the token budget: tokens that one step computes, at most
    policy                    "fcfs" (first come, first served) or "priority" (smaller number first, then FCFS)
    enable_chunked_prefill    a prompt longer than what is left of the budget is computed in pieces
    watermark                 share of the pool that admitting a request must leave free, so that running ones can
                              grow for a while (the default of vLLM's first versions, 0.01)
    preemption                "recompute" or "swap": what happens to a sequence that must give back its blocks
    trace                     write down every decision (``SchedulerOutput.decisions``), also who waits and why
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    watermark: float = 0.01
    preemption: str = "recompute"
    trace: bool = False

    def __post_init__(self) -> None:
        check_int("max_num_seqs", self.max_num_seqs, low=1)
        check_int("max_num_batched_tokens", self.max_num_batched_tokens, low=1)
        check_number("watermark", self.watermark, low=0.0, high=1.0)
        check_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        check_bool("trace", self.trace)
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f'policy is {self.policy!r}; choose "fcfs" or "priority"')
        if self.preemption not in ("recompute", "swap"):
            raise ValueError(f'preemption is {self.preemption!r}; choose "recompute" or "swap"')


class Decision(NamedTuple):
    """One line of the trace. ``action``: admit, run, idle (it keeps its blocks and computes nothing), wait, preempt,
    swap_out, swap_in, finish; the static baseline also has hold. ``num_tokens``: this step's tokens where the request
    runs, else all it has so far."""

    step: int
    action: str
    request_id: str
    num_tokens: int
    reason: str


@dataclass
class SchedulerOutput:
    """One step's batch. The tokens of ``scheduled[i]`` are its next ``num_scheduled_tokens[its id]`` ones.

    The engine moves blocks first: ``swap_out`` (block id → slot of the swap space), then the manager's copies, then
    ``swap_in`` (slot → block id). Only then does the model write.
    """

    step: int = 0
    scheduled: list[Request] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[Request] = field(default_factory=list)
    num_swap_fallbacks: int = 0  # sequences that should have been swapped but found the swap space full
    decisions: list[Decision] = field(default_factory=list)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())

    def add(self, request: Request, num_tokens: int) -> None:
        self.scheduled.append(request)
        self.num_scheduled_tokens[request.request_id] = num_tokens


@runtime_checkable
class Scheduler(Protocol):
    """Made as ``YourScheduler(config, manager)``; with ``preemption="swap"`` also ``swap_space=…``.

    The engine advances ``request.num_computed_tokens`` when the model has run. The scheduler sets it when it admits
    a request (tokens found in the prefix cache) and when it preempts one (0). A request whose tokens are all
    computed has nothing to run: it is a beam that waits for its siblings.
    """

    waiting: list[Request]
    running: list[Request]

    def add_request(self, request: Request) -> None:
        """A new request joins the waiting ones."""
        ...

    def schedule(self) -> SchedulerOutput:
        """Decide who runs in this step, with how many tokens, and get their blocks from the manager."""
        ...

    def fork_request(self, parent: Request, child: Request) -> None:
        """``child`` joins the running ones and shares all blocks of ``parent``."""
        ...

    def finish_request(self, request: Request) -> None:
        """Forget a request, in whatever state it is, and give back all that it holds."""
        ...
