"""A sequence on its way through the engine, and the group of sequences that answer one prompt."""

from __future__ import annotations

import random
from enum import Enum

from minipaged.kv_cache.request import CacheRequest
from minipaged.serving.outputs import CompletionOutput, RequestOutput, RequestTimes
from minipaged.serving.sampling import BeamSearchParams, SamplingParams


class RequestStatus(Enum):
    """Where a sequence is. Those after PREEMPTED are final."""

    WAITING = "waiting"  # never ran
    RUNNING = "running"  # holds blocks
    PREEMPTED = "preempted"  # lost its blocks, waits to compute its tokens again
    SWAPPED = "swapped"  # lost its blocks, their content waits in a lower tier
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_ERROR = "error"

    def __init__(self, word: str) -> None:
        self.finished = word in ("stop", "length", "abort", "error")


class Request(CacheRequest):
    """One sequence: the unit that the scheduler runs and preempts.

    A prompt with n continuations has n of them (see ``RequestGroup``). To the cache manager it is a
    ``CacheRequest``; the rest here is what scheduler and engine remember.

    ``key`` orders all sequences: a smaller key goes first. It is (priority, arrival, index in the group), and with
    first-come-first-served every priority is 0.
    """

    def __init__(self, request_id: str, token_ids: list[int], group: RequestGroup, index: int = 0) -> None:
        super().__init__(request_id, token_ids, cache_salt=group.cache_salt)
        self.group = group
        self.index = index
        self.key = (group.priority, group.arrival, index)
        self.num_prompt_tokens = group.num_prompt_tokens
        self.max_tokens = group.max_tokens
        self.status = RequestStatus.WAITING
        self.stop_reason: str | int | None = None
        self.num_preemptions = 0
        self.rng = random.Random(group.seed + index)
        self.logprobs: list[dict[int, float]] = []
        self.cumulative_logprob = 0.0
        self.text = None  # a RunningText, where text is needed while the sequence runs

    def fork(self, request_id: str, index: int) -> Request:
        """A copy that has the same past and will go its own way. Its blocks are the manager's matter."""
        child = Request(request_id, self.token_ids, self.group, index)
        child.block_hashes = list(self.block_hashes)
        child.num_computed_tokens = self.num_computed_tokens
        child.logprobs = list(self.logprobs)
        child.cumulative_logprob = self.cumulative_logprob
        return child

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose K and V are not in the cache yet: one in decode, more in prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def finished(self) -> bool:
        return self.status.finished

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.status.value}, {self.num_computed_tokens} of {self.num_tokens} tokens "
            "computed)"
        )


class RequestGroup:
    """All sequences that answer one prompt: 1 as a rule, n for parallel sampling, up to k alive for a beam.

    ``arrival`` is the engine's count of requests. ``seats`` is how many sequences the group may have at a time: the
    scheduler keeps that many free when it admits the first one. ``lockstep`` is True for beam search, whose
    sequences must all be in the pool to take the next step: if one was preempted, the others wait for it.
    """

    lockstep = False

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams | BeamSearchParams,
        *,
        max_tokens: int,
        end_tokens: frozenset[int] = frozenset(),
        seed: int,
        arrival: int,
        priority: int = 0,
        cache_salt: str | None = None,
        stream: bool = False,
        now: float = 0.0,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params
        self.max_tokens = max_tokens
        self.end_tokens = frozenset() if params.ignore_eos else end_tokens
        self.seed = seed
        self.arrival = arrival
        self.priority = priority
        self.cache_salt = cache_salt
        self.stream = stream
        self.times = RequestTimes(arrival=now)
        self.num_cached_tokens: int | None = None  # set when the first sequence is admitted for the first time
        self.members: list[Request] = []

    @property
    def seats(self) -> int:
        return self.params.n

    @property
    def max_total_tokens(self) -> int:
        """Prompt and longest output of one sequence."""
        return self.num_prompt_tokens + self.max_tokens

    def member_id(self, index: int) -> str:
        return self.request_id if self.seats == 1 else f"{self.request_id}/{index}"

    def first_members(self) -> list[Request]:
        """The sequences that enter the waiting queue: one that will be forked, or all n (as vLLM V1 does)."""
        count = self.params.n if self.params.sharing == "prefix_cache" else 1
        self.members = [Request(self.member_id(i), self.prompt_token_ids, self, i) for i in range(count)]
        return self.members

    def missing_members(self, parent: Request) -> list[Request]:
        """The sequences still to be forked from ``parent``, whose prompt has just been computed."""
        indices = range(len(self.members), self.params.n)
        children = [parent.fork(self.member_id(i), i) for i in indices]
        self.members += children
        return children

    @property
    def finished(self) -> bool:
        return all(member.finished for member in self.members)

    def live_members(self) -> list[Request]:
        return [member for member in self.members if not member.finished]

    def output(self, decode) -> RequestOutput:
        """What the user sees now. ``decode(member)`` gives the text of one sequence."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=self.completions(decode),
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_preemptions=sum(member.num_preemptions for member in self.members),
            times=self.times,
        )

    def completions(self, decode) -> list[CompletionOutput]:
        return [self.completion(member, decode) for member in self.members]

    def completion(self, member: Request, decode) -> CompletionOutput:
        wants_logprobs = getattr(self.params, "logprobs", None) is not None
        return CompletionOutput(
            index=member.index,
            text=decode(member),
            token_ids=member.output_token_ids,
            finish_reason=member.status.value if member.finished else None,
            stop_reason=member.stop_reason,
            cumulative_logprob=member.cumulative_logprob if wants_logprobs else None,
            logprobs=member.logprobs if wants_logprobs else None,
            text_ends=member.text.ends if wants_logprobs and member.text is not None else None,
        )
