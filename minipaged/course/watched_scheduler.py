"""Exercise 5.9: a learner's scheduler serves the real engine, and every step of it is looked at.

Nothing here can hang: a call that runs for too many lines of the learner's code is broken off, and so is a run that
takes more steps than the oldest request can ever need.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from minipaged.course.expect import Expect
from minipaged.course.line_limit import Endless, line_limit
from minipaged.course.plug_in_month_5 import tiny
from minipaged.kv_cache import KVCacheManager
from minipaged.serving import LLM, Request, SamplingParams, SchedulerConfig, SchedulerOutput
from minipaged.serving.parts import check_part

MAX_LINES = 200_000  # of the learner's code in one call; a good schedule() runs a few hundred
BUDGET, SEATS, NUM_BLOCKS, BLOCK_SIZE = 16, 4, 20, 4

LONGEST = "Who waits longest? "
NO_ABORTS: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Job(NamedTuple):
    """One request of a workload: it arrives before this step, with so many prompt tokens and tokens to generate."""

    step: int
    num_prompt_tokens: int
    max_tokens: int


# Workloads A (50 + 10) and B (50 + 2000), scaled to the tiny model. Half of them arrive while the others run.
A = tuple(Job(max(0, 2 * (i - 6)), 10, 2) for i in range(12))
B = tuple(Job(max(0, 6 * (i - 5)), 10, 24) for i in range(8))


class Watched:
    """The learner's scheduler, as the engine sees it: each call is passed on and its result is checked."""

    def __init__(self, inner, config: SchedulerConfig, manager: KVCacheManager, expect: Expect, name: str) -> None:
        self.inner, self.config, self.manager, self.expect, self.name = inner, config, manager, expect, name
        self.unfinished: dict[str, Request] = {}
        self.step = 0
        self.failed = False

    @property
    def waiting(self) -> list[Request]:
        return self.inner.waiting

    @property
    def running(self) -> list[Request]:
        return self.inner.running

    def add_request(self, request: Request) -> None:
        self._call(self.inner.add_request, request)
        self.unfinished[request.request_id] = request

    def fork_request(self, parent: Request, child: Request) -> None:
        self._call(self.inner.fork_request, parent, child)
        self.unfinished[child.request_id] = child

    def finish_request(self, request: Request) -> None:
        self.unfinished.pop(request.request_id, None)
        if self.failed:  # the engine cleans up after a failed step; the learner's scheduler is no longer asked
            self.manager.free(request)
            return
        self._call(self.inner.finish_request, request)
        rule = "finish_request forgets the request, wherever it is, and frees its blocks."
        known = request in self.waiting or request in self.running
        hint = "It may be running or waiting (an abort can come at any time): look in both lists."
        self.expect.that(not known, rule=rule, case=f"{self.name}, {request.request_id} has ended", hint=hint)
        hint = "Who gives the blocks of a finished request back? self.manager.free(request)."
        held = self.manager.has_blocks(request.request_id)
        self.expect.that(not held, rule=rule, case=f"{self.name}, {request.request_id} has ended", hint=hint)

    def schedule(self) -> SchedulerOutput:
        self.step += 1
        left = {request_id: request.num_uncomputed_tokens for request_id, request in self.unfinished.items()}
        try:
            output = self._call(self.inner.schedule)
            self._check(output, left)
        except BaseException:
            self.failed = True
            raise
        return output

    def _call(self, function: Callable, *args):
        try:
            with line_limit(MAX_LINES):
                return self.expect.call(function, *args)
        except Endless:
            self.expect.fail(
                rule="Every decision comes to an end.",
                case=f"{self.name}, step {self.step}: {function.__qualname__} was broken off after {MAX_LINES:,} lines",
                hint="An endless loop: each turn must free blocks, or stop asking. When nobody is left to preempt "
                "but the one that asks, it gives way itself and the loop ends.",
            )

    def _check(self, output: SchedulerOutput, left: Mapping[str, int]) -> None:
        that, case = self.expect.that, f"{self.name}, step {self.step}"
        that(
            isinstance(output, SchedulerOutput), rule="schedule returns a SchedulerOutput.", case=case, got=output,
            hint="Make one at the start, output.add(request, num_tokens) for each that runs, and return it.",
        )  # fmt: skip
        self._check_lists(case)
        self._check_order(case)
        total, budget = sum(output.num_scheduled_tokens.values()), self.config.max_num_batched_tokens
        that(
            total <= budget, rule="No step is over the token budget.", case=case, want=f"at most {budget} tokens",
            got=total, hint="One budget for the whole step: what a request takes is gone for all that come after it.",
        )  # fmt: skip
        for request in output.scheduled:
            count = output.num_scheduled_tokens[request.request_id]
            most = left[request.request_id]
            again = request.num_computed_tokens == 0 and request.num_tokens > most  # preempted in this step
            that(
                1 <= count <= (request.num_tokens if again else most),
                rule="A request runs with 1 … num_uncomputed_tokens tokens.", case=f"{case}: {request.request_id}",
                want=f"1 … {most}", got=count, hint="min(request.num_uncomputed_tokens, what is left of the budget).",
            )  # fmt: skip
            that(
                request in self.running, rule="Whoever is scheduled is in running, and keeps its blocks.",
                case=f"{case}: {request.request_id}", hint="Was it put into the batch and preempted afterwards?",
            )  # fmt: skip
        seats = self.config.max_num_seqs
        that(
            len(self.running) <= seats, rule="At most max_num_seqs requests run.", case=case, want=f"at most {seats}",
            got=len(self.running), hint="config.max_num_seqs is a limit too: look at it before you admit anybody.",
        )  # fmt: skip
        self._check_oldest(output, case)

    def _check_lists(self, case: str) -> None:
        waiting, running = ([r.request_id for r in queue] for queue in (self.waiting, self.running))
        rule = "Every unfinished request is in waiting or in running, in one of them, once."
        lost = [name for name in self.unfinished if name not in waiting and name not in running]
        hint = "A request in neither list is never served. Whoever leaves running without having ended must wait again."
        self.expect.that(not lost, rule=rule, case=f"{case}: in neither list", got=lost, want=[], hint=hint)
        twice = sorted({name for name in waiting + running if (waiting + running).count(name) > 1})
        hint = "Whoever is admitted leaves waiting; whoever is preempted leaves running."
        self.expect.that(not twice, rule=rule, case=f"{case}: in both, or twice", got=twice, want=[], hint=hint)
        for request in self.waiting:
            held, computed = self.manager.block_ids(request.request_id), request.num_computed_tokens
            self.expect.that(
                not held and computed == 0,
                rule="Whoever waits holds no block, and has nothing computed.",
                case=f"{case}: {request.request_id} waits",
                want="no block, num_computed_tokens 0",
                got=f"{len(held)} blocks, num_computed_tokens {computed}",
                hint="Preemption is all or nothing: manager.free(victim), then victim.num_computed_tokens = 0.",
            )

    def _check_order(self, case: str) -> None:
        newest = max(self.running, key=_key, default=None)
        first = min(self.waiting, key=_key, default=None)
        if newest is not None and first is not None:
            self.expect.that(
                newest.key < first.key,
                rule="First come, first served: nobody runs while an older request waits.",
                case=f"{case}: {newest.request_id} runs, {first.request_id} waits",
                hint=LONGEST + "It is admitted first. And whoever must give way is the newest: it goes back to the "
                "front of the queue, before all that came later.",
            )

    def _check_oldest(self, output: SchedulerOutput, case: str) -> None:
        oldest = min(self.unfinished.values(), key=_key)
        hint = LONGEST + "Serve it first, and let it take the blocks of all others if it must."
        if oldest.num_uncomputed_tokens > self.config.max_num_batched_tokens:
            hint = "It has more tokens than one step may compute, and will never fit as a whole: compute it in pieces."
        self.expect.that(
            oldest in output.scheduled,
            rule="Nobody starves: the oldest request gets on in every step.",
            case=f"{case}: {oldest.request_id} is the oldest and does not run",
            hint=hint,
        )


def _key(request: Request) -> tuple:
    return request.key


def _prompts(jobs: tuple[Job, ...]) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, 500) for _ in range(job.num_prompt_tokens)] for job in jobs]


def _params(job: Job) -> SamplingParams:
    return SamplingParams(max_tokens=job.max_tokens, ignore_eos=True)


@functools.cache
def reference_tokens(jobs: tuple[Job, ...]) -> list[list[int]]:
    """What each request must answer: greedy, in a pool that is large enough for all."""
    llm = LLM(tiny(), num_blocks=256, block_size=BLOCK_SIZE, attention="reference", enable_prefix_caching=False)
    outputs = llm.generate(_prompts(jobs), [_params(job) for job in jobs])
    return [output.outputs[0].token_ids for output in outputs]


def serve(
    answer: Callable,
    expect: Expect,
    name: str,
    jobs: tuple[Job, ...],
    aborts: Mapping[int, tuple[int, ...]] = NO_ABORTS,
) -> None:
    """Serve a workload with the learner's scheduler. ``aborts``: step → numbers of the requests to abort before it."""

    def make(config: SchedulerConfig, manager: KVCacheManager) -> Watched:
        watched = Watched(None, config, manager, expect, name)
        watched.inner = check_part("scheduler", watched._call(answer, config, manager))
        return watched

    rule = f"The engine serves {name} with your scheduler."
    hint = "See the Protocol Scheduler in minipaged/serving/protocols.py: what the engine calls, what it reads."
    tokens: dict[int, list[int]] = {}
    with expect.no_error(rule=rule, case=name, hint=hint):
        llm = LLM(
            tiny(), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, attention="reference", enable_prefix_caching=False,
            max_num_batched_tokens=BUDGET, max_num_seqs=SEATS, watermark=0.0, check_integrity=True,
            parts={"scheduler": make},
        )  # fmt: skip
        engine, todo, step = llm.engine, list(zip(jobs, _prompts(jobs), range(len(jobs)), strict=True)), 0
        # While a request is the oldest, each step brings it a token or a chunk of those to compute.
        limit = sum(job.max_tokens + -(-(job.num_prompt_tokens + job.max_tokens) // BUDGET) + 1 for job in jobs)
        limit += jobs[-1].step
        while todo or engine.has_unfinished_requests():
            step += 1
            while todo and todo[0][0].step < step:
                job, prompt, number = todo.pop(0)
                engine.add_request(prompt, _params(job), request_id=f"r{number}")
            for number in aborts.get(step, ()):
                engine.abort(f"r{number}")
            for output in engine.step() if engine.has_unfinished_requests() else ():
                tokens[int(output.request_id[1:])] = output.outputs[0].token_ids
            left = ", ".join(engine.scheduler.unfinished)
            expect.that(
                step <= limit, rule="Every request finishes.", case=f"{name}: {limit} steps, unfinished: {left}",
                hint="Requests run and never get on: what they computed is lost again and again. Preempt only "
                "when blocks are short, and only the newest.",
            )  # fmt: skip
    aborted = {number for numbers in aborts.values() for number in numbers}
    for number, want in enumerate(reference_tokens(jobs)):
        if number not in aborted:
            hint = "A preempted request keeps its tokens and computes all of them again."
            case = f"{name}: the tokens of r{number}"
            expect.equal(tokens.get(number), want, rule="The schedule never changes a text.", case=case, hint=hint)
    rule, hint = "At the end every block is free.", "finish_request frees the blocks, in every state."
    expect.equal(engine.manager.num_free_blocks, NUM_BLOCKS, rule=rule, case=name, hint=hint)
