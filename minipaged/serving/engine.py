"""The engine: requests go in at one end, one step computes one token for everybody who may run, texts come out.

One step: the scheduler decides → blocks move (swap, copy-on-write) → the model runs, writing and reading the paged
cache → tokens are chosen → sequences grow, fork, finish, give back their blocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import perf_counter

import torch

from minipaged.kv_cache import KVCacheManager
from minipaged.serving.admission import check_params, check_prompt, check_size
from minipaged.serving.beam import BeamGroup
from minipaged.serving.metrics import EngineStats, StepStats, record_step
from minipaged.serving.output_processor import OutputProcessor
from minipaged.serving.outputs import RequestOutput
from minipaged.serving.protocols import Decision, Scheduler, SchedulerConfig, SchedulerOutput
from minipaged.serving.request import RequestGroup, RequestStatus
from minipaged.serving.runner import ModelRunner
from minipaged.serving.sampling import BeamSearchParams, SamplingParams, check_int

IDLE_STEPS = 3  # a scheduler that runs nobody so many times in a row, with work to do, is stuck


class EngineStuckError(RuntimeError):
    """Requests are there, and the scheduler runs none of them."""


class LLMEngine:
    """Serves many requests on one model, step by step. ``LLM`` makes one and feeds it.

    ``seed`` is for requests that bring no seed of their own. ``check_integrity`` proves the pool's rules after
    every step.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        config: SchedulerConfig,
        tokenizer=None,
        seed: int = 0,
        check_integrity: bool = False,
    ) -> None:
        self.runner, self.scheduler, self.config, self.tokenizer = runner, scheduler, config, tokenizer
        self.manager: KVCacheManager = runner.manager
        self.model_config = runner.model.config
        ends = (self.model_config.eos_token_id, *getattr(self.model_config, "stop_token_ids", ()))
        self._end_tokens = frozenset(token for token in ends if token is not None)
        self.stats = EngineStats(num_blocks=self.manager.num_usable_blocks, block_size=self.manager.block_size)
        self.trace: list[Decision] = []  # filled when config.trace is on
        self.processor = OutputProcessor(scheduler, self.stats, tokenizer, self.trace if config.trace else None)
        self._groups: dict[str, RequestGroup] = {}
        self._failed: list[RequestOutput] = []
        self._rng = random.Random(seed)
        self._checks = check_integrity
        self._num_requests = 0
        self._idle_steps = 0

    # In and out

    def add_request(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | BeamSearchParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        stream: bool = False,
    ) -> str:
        """Let a request wait for its turn. Returns its id.

        With ``stream`` every step that grows it reports it, else only its end is reported. Raises TypeError or
        ValueError, with nothing changed, for anything that can never run (see ``admission``).
        """
        params = params if params is not None else SamplingParams()
        text, token_ids, max_tokens = self.validate_request(prompt, params)
        check_int("priority", priority)
        if priority and self.config.policy != "priority":
            raise ValueError(f'priority is {priority}, but the policy is "fcfs"; use an engine with policy="priority"')
        request_id = request_id if request_id is not None else f"r{self._num_requests}"
        if not isinstance(request_id, str) or request_id in self._groups:
            raise ValueError(f"request_id {request_id!r} must be a string that no unfinished request has; give another")
        seed = getattr(params, "seed", None)
        kind = BeamGroup if isinstance(params, BeamSearchParams) else RequestGroup
        group = kind(
            request_id,
            text,
            token_ids,
            params,
            max_tokens=max_tokens,
            end_tokens=self._end_tokens,
            seed=seed if seed is not None else self._rng.getrandbits(63),
            arrival=self._num_requests,
            priority=priority,
            cache_salt=cache_salt,
            stream=stream,
            now=perf_counter(),
        )
        self._num_requests += 1
        self._groups[group.request_id] = group
        for member in group.first_members():
            self.processor.watch_text(member)
            self.scheduler.add_request(member)
        return group.request_id

    def validate_request(
        self, prompt: str | Sequence[int], params: SamplingParams | BeamSearchParams
    ) -> tuple[str | None, list[int], int]:
        """Raise what ``add_request`` would raise, and add nothing. Returns (text, token ids, max_tokens)."""
        vocab_size, longest = self.model_config.vocab_size, self.model_config.max_position_embeddings
        check_params(params, self.tokenizer, vocab_size)
        text, token_ids = check_prompt(prompt, self.tokenizer, vocab_size)
        return text, token_ids, check_size(len(token_ids), params, self.manager, self.config, longest)

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is and give back all it holds. False: it is not (or no longer) here."""
        group = self._groups.get(request_id)
        if group is None:
            return False
        for member in group.live_members():
            self.processor.finish(member, RequestStatus.FINISHED_ABORTED)
        self._close(group)
        return True

    def has_unfinished_requests(self) -> bool:
        return bool(self._groups)

    def check_integrity(self) -> None:
        """Prove that pool and swap space are whole. Raises IntegrityError with the block and the rule."""
        self.manager.check_integrity()
        if self.runner.swap_space is not None:
            self.runner.swap_space.check_integrity()

    def take_failed(self) -> list[RequestOutput]:
        """The requests that a failed step ended, each once."""
        failed, self._failed = self._failed, []
        return failed

    # One step

    def step(self) -> list[RequestOutput]:
        """Compute one step. Returns the requests that finished, and the streaming ones that grew.

        If anything raises, the step's requests end with "error" (see ``take_failed``), their blocks are freed and
        what they left in the prefix cache is forgotten: its KV may never have been written.
        """
        started = perf_counter()
        output = None
        try:
            output = self.scheduler.schedule()
            scheduled = perf_counter()
            self.trace += output.decisions
            if not output.scheduled:
                return self._idle(output)
            self._idle_steps = 0
            # Outside inference mode: backends look at these tensors' version to check each batch only once.
            batch = self.runner.prepare(output)
            requests, rows = self.runner.sampling_rows(output)
            with torch.inference_mode():
                num_copies = self.runner.move_blocks(output)
                prepared = perf_counter()
                logits = self.runner.execute(*batch, rows)
                computed = perf_counter()
                record = record_step(self.stats, output, num_copies, self.scheduler, self.manager, scheduled)
                self._advance(output)
                grown = self.processor.grow(requests, logits) if requests else []
        except BaseException:
            self._fail(output)
            raise
        done = [self._close(group) for group in grown if group.finished]
        streams = [group.output(self.processor.text) for group in grown if group.stream and not group.finished]
        if self._checks:
            self.check_integrity()
        ended = perf_counter()
        self.stats.schedule_time += scheduled - started
        self.stats.prepare_time += prepared - scheduled
        self.stats.model_time += computed - prepared
        self.stats.sample_time += ended - computed
        self.stats.history.append(StepStats(*record, ended - started, computed - prepared))
        return done + streams

    def _advance(self, output: SchedulerOutput) -> None:
        """The step's K and V are in the cache: from now on they count as computed."""
        for request in output.scheduled:
            request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]
        for request in output.swapped_in:
            self.runner.swap_space.release(request.request_id)

    # Ends

    def _close(self, group: RequestGroup) -> RequestOutput:
        """The last of a group: its result."""
        self._groups.pop(group.request_id, None)
        group.times.finished = perf_counter()
        self.stats.num_finished_requests += 1
        return group.output(self.processor.text)

    def _fail(self, output: SchedulerOutput | None) -> None:
        """A step raised: end its requests and leave nothing behind."""
        if output is not None:
            requests, unknown = list(output.scheduled), set(output.swapped_in)
        else:  # the scheduler itself failed: end all that hold blocks, and trust none of them
            everyone = [member for group in self._groups.values() for member in group.live_members()]
            requests = [member for member in everyone if self.manager.has_blocks(member.request_id)]
            unknown = set(requests)
        for request in requests:
            # What was not computed before this step may hold anything. A returning sequence: all of it.
            self.manager.uncache(request, 0 if request in unknown else request.num_computed_tokens)
        for group in {request.group.request_id: request.group for request in requests}.values():
            for member in group.live_members():
                self.processor.finish(member, RequestStatus.FINISHED_ERROR)
            self._failed.append(self._close(group))
        self.manager.take_copies()  # planned, never done: their destinations are free again

    def _idle(self, output: SchedulerOutput) -> list[RequestOutput]:
        """Nobody ran. Fine without work, or for a moment; otherwise say who waits for what."""
        self._idle_steps = self._idle_steps + 1 if self._groups else 0
        if self._idle_steps < IDLE_STEPS:
            return []
        waiting = ", ".join(f"{r.request_id} ({r.num_tokens} tokens)" for r in self.scheduler.waiting[:5])
        raise EngineStuckError(
            f"{type(self.scheduler).__name__} ran nobody in {self._idle_steps} steps; unfinished requests: "
            f"{len(self._groups)}; waiting: {waiting or 'none'}; running: {len(self.scheduler.running)}; "
            f"{self.manager.num_free_blocks} of {self.manager.num_usable_blocks} blocks are free. Every step must run "
            "somebody: the oldest running request, or the first waiting one when nobody runs"
        )
