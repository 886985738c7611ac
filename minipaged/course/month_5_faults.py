"""Schedulers that are wrong on purpose, and what minipaged does about each: livelocks and leaks (Month 5)."""

from __future__ import annotations

import random
from unittest.mock import patch

from minipaged.course.month_5 import CountdownModel, Order, Schedule, serve_orders
from minipaged.kv_cache import BlockPool
from minipaged.serving import LLM, SamplingParams, Scheduler
from minipaged.serving.protocols import SchedulerOutput
from minipaged.serving.request import Request, RequestStatus


class AskerWinsScheduler(Scheduler):
    """Like `Scheduler`, but the request that asks for a block always gets it: somebody else has to give up.

    It sounds fair. What breaks?
    """

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> int:
        for request in list(self.running):
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if request not in self.running or num_tokens == 0:
                continue
            while self.manager.allocate_slots(request, num_tokens) is None:
                victim = next(other for other in reversed(self.running) if other is not request)
                if victim in output.scheduled:  # it was going to run in this step
                    output.scheduled.remove(victim)
                    budget += output.num_scheduled_tokens.pop(victim.request_id)
                self._preempt(victim, request, output)
            output.add(request, num_tokens)
            budget -= num_tokens
            self._note(output, "run", request, num_tokens, "running")
        return budget


class EndlessScheduler(Scheduler):
    """Like `Scheduler`, but without its guard: a request that is alone in the pool may preempt itself."""

    def _preempt(self, victim: Request, asking: Request, output: SchedulerOutput) -> None:
        if len(self.running) > 1:
            super()._preempt(victim, asking, output)
            return
        self.manager.free(victim)
        victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED
        self.waiting.insert(0, self.running.pop())
        output.preempted.append(victim)
        self._note(output, "preempt", victim, victim.num_tokens, "no block is free")


def without_the_door(order: Order, num_blocks: int, budget: int, max_steps: int) -> Schedule:
    """Let a request in that can never fit, past the check at the door, and look on for a while."""
    with patch("minipaged.serving.engine.check_size", lambda num_prompt_tokens, params, *rest: params.max_tokens):
        return serve_orders([order], EndlessScheduler, num_blocks=num_blocks, budget=budget, max_steps=max_steps)


class LazyScheduler(Scheduler):
    """Runs nobody."""

    def schedule(self) -> SchedulerOutput:
        return SchedulerOutput()


class LeakyPool(BlockPool):
    """Whoever gives back several blocks, gives back one too few."""

    def free_blocks(self, blocks) -> None:
        blocks = list(blocks)
        super().free_blocks(blocks[1:] or blocks)


def abort_at_random(num_requests: int = 40, seed: int = 0) -> dict[str, int]:
    """Requests come and go in a small pool, a third of them aborted in whatever state they are; the pool is checked
    after every step. Returns counts, and the blocks in use at the end."""
    rng = random.Random(seed)
    llm = LLM(
        (CountdownModel(), None),
        num_blocks=24,
        block_size=4,
        attention="reference",
        check_integrity=True,
        max_num_batched_tokens=16,
    )
    engine, live, counts = llm.engine, [], dict.fromkeys(("finished", "waiting", "running", "preempted"), 0)
    coming = [rng.randint(2, 40) for _ in range(num_requests)]
    while coming or engine.has_unfinished_requests():
        if coming and rng.random() < 0.5:
            prompt = [rng.randint(1, 400) for _ in range(rng.randint(1, 30))]
            live.append(engine.add_request([*prompt, coming.pop()], SamplingParams(max_tokens=50)))
        for output in engine.step():
            live.remove(output.request_id)
            counts["finished"] += 1
        if live and rng.random() < 0.12:
            victim = live.pop(rng.randrange(len(live)))
            counts[engine._groups[victim].members[0].status.value] += 1
            engine.abort(victim)
            engine.check_integrity()
    return {**counts, "blocks in use at the end": engine.manager.num_usable_blocks - engine.manager.num_free_blocks}
