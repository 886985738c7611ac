"""What the exercises of Month 5 do with a learner's parts: real schedulers, managers and engines run on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from minipaged.course.expect import Expect
from minipaged.kv_cache import BlockPool, BlockTable, KVCacheBlock, KVCacheManager
from minipaged.serving import (
    Request,
    RequestOutput,
    RequestStatus,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
)
from minipaged.serving.request import RequestGroup

PROMPTS = ("Four score and seven years ago our", "A block table maps", "A page is", "Four score and seven")


def make_request(arrival: int, token_ids: Sequence[int], max_tokens: int = 8) -> Request:
    """A request as the engine makes it; a smaller ``arrival`` came earlier."""
    params = SamplingParams(max_tokens=max_tokens)
    name = f"r{arrival}"
    group = RequestGroup(name, None, list(token_ids), params, max_tokens=max_tokens, seed=0, arrival=arrival)
    return group.first_members()[0]


# ── the real scheduler, without a model ──────────────────────────────────────────────────────────────────────────


def run_step(scheduler: Scheduler) -> SchedulerOutput:
    """One step of the real scheduler; where a model would run, every finished computation brings token 1."""
    output = scheduler.schedule()
    for request in output.scheduled:
        request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]
        if request.num_uncomputed_tokens == 0:
            request.append_token(1)
            if request.num_output_tokens == request.max_tokens:
                scheduler.finish_request(request)
                request.status = RequestStatus.FINISHED_LENGTH
    return output


def _scheduler(kind: type[Scheduler], **limits: int) -> Scheduler:
    return kind(SchedulerConfig(watermark=0.0, **limits), KVCacheManager(512, 4, enable_caching=False))


def steps_of(kind: type[Scheduler], lengths: Iterable[int], width: int) -> int:
    """Steps until answers of these lengths (prompts of one token) are done, at most ``width`` at a time."""
    scheduler = _scheduler(kind, max_num_seqs=width)
    for arrival, length in enumerate(lengths):
        scheduler.add_request(make_request(arrival, [1], length))
    steps = 0
    while scheduler.waiting or scheduler.running:
        run_step(scheduler)
        steps += 1
    return steps


def chunks_of(num_prompt_tokens: int, num_decodes: int, budget: int) -> list[int]:
    """How the real scheduler cuts a prompt that arrives while ``num_decodes`` requests are decoding."""
    scheduler = _scheduler(Scheduler, max_num_batched_tokens=budget)
    for arrival in range(num_decodes):
        scheduler.add_request(make_request(arrival, [1], max_tokens=500))
    if num_decodes:
        run_step(scheduler)
    prompt = make_request(num_decodes, [1] * num_prompt_tokens)
    scheduler.add_request(prompt)
    chunks = []
    while prompt.num_computed_tokens < num_prompt_tokens:
        chunks.append(run_step(scheduler).num_scheduled_tokens[prompt.request_id])
    return chunks


# ── parts that hand one of their methods to the learner ──────────────────────────────────────────────────────────


class AllocatingManager(KVCacheManager):
    """A manager (without prefix cache) whose ``allocate_slots`` asks the learner's function for blocks."""

    def __init__(self, num_blocks: int, block_size: int, allocate: Callable) -> None:
        super().__init__(num_blocks, block_size, enable_caching=False)
        self._allocate = allocate

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Sequence[KVCacheBlock] | None = None,
    ) -> list[KVCacheBlock] | None:
        table = self._tables.get(request.request_id)
        if table is None:
            table = BlockTable(self.block_size)
        got = self._allocate(self.pool, table, request.num_computed_tokens + num_new_tokens)
        if got is not None:
            self._tables[request.request_id] = table
            self._num_hashed_blocks[request.request_id] = 0
        return got


class ReturningManager(KVCacheManager):
    """A manager whose ``free`` lets the learner's function give the blocks back."""

    def __init__(self, num_blocks: int, block_size: int, give_back: Callable[[BlockPool, BlockTable], None]) -> None:
        super().__init__(num_blocks, block_size)
        self._give_back = give_back

    def free(self, request: Request) -> None:
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            del self._num_hashed_blocks[request.request_id]
            self._give_back(self.pool, table)


class PreemptingScheduler(Scheduler):
    """The course's scheduler, with the learner's ``preempt``."""

    def __init__(self, config: SchedulerConfig, manager: KVCacheManager, preempt: Callable) -> None:
        super().__init__(config, manager)
        self._learners = preempt

    def _preempt(self, victim: Request, asking: Request, output: SchedulerOutput) -> None:
        chosen = self._learners(self.running, self.waiting, self.manager)
        if chosen is not victim:
            raise ValueError(f"preempt returned {chosen!r}, but the newest running request was {victim!r}")
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        output.preempted.append(victim)


# ── the real engine ──────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def tiny():
    from minipaged.model import load_model

    return load_model("tiny")


def make_engine(manager: KVCacheManager, make_scheduler: Callable = Scheduler):
    """The real engine on the tiny model, with this manager and scheduler."""
    from minipaged.attention import ReferenceBackend
    from minipaged.kv_cache.storage import KVCacheStorage
    from minipaged.serving.engine import LLMEngine
    from minipaged.serving.runner import ModelRunner

    model, tokenizer = tiny()
    sizes = model.config
    storage = KVCacheStorage(
        sizes.num_layers, manager.pool.num_blocks, manager.block_size, sizes.num_kv_heads, sizes.head_dim
    )
    config = SchedulerConfig(watermark=0.0)
    runner = ModelRunner(model, storage, ReferenceBackend(), manager)
    return LLMEngine(runner, make_scheduler(config, manager), config, tokenizer, check_integrity=True)


def serve_texts(engine, prompts: Sequence[str] = PROMPTS, max_tokens: int = 12, together: bool = True) -> list[tuple]:
    """[(text, tokens from the cache)] of each prompt, greedy: all at once, or one after the other."""
    outputs: dict[str, RequestOutput] = {}
    ids = []
    for prompt in prompts:
        ids.append(engine.add_request(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
        while not together and engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step()}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    return [(outputs[name].outputs[0].text, outputs[name].num_cached_tokens) for name in ids]


def same_texts(
    expect: Expect, engine, *, num_blocks: int, caching: bool, case: str, hint: str, together: bool = True
) -> None:
    """The engine with the learner's part writes what the engine with ours writes, and its pool is whole at the end."""
    ours = make_engine(KVCacheManager(num_blocks, 4, enable_caching=caching))
    want = serve_texts(ours, together=together)
    with expect.no_error(rule="The engine runs with your part.", case=case, hint=hint):
        got = serve_texts(engine, together=together)
    expect.equal(got, want, rule="Same texts, same tokens from the cache.", case=case, hint=hint)
    expect.equal(
        engine.manager.num_free_blocks, num_blocks, rule="At the end every block is free.", case=case, hint=hint
    )
    expect.equal(
        engine.stats.num_preemptions, ours.stats.num_preemptions, rule="Preempted as often as the reference.",
        case=case, hint=hint,
    )  # fmt: skip
