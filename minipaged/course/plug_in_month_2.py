"""What exercise 2.11 does with a learner's table and pool: some texts, and a storm of requests with aborts."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

from minipaged.model import load_model
from minipaged.serving import LLM, BeamSearchParams, SamplingParams

PROMPTS = ("Four score and seven years ago our", "A block table maps", "A page is")
NUM_REQUESTS = 200


@functools.cache
def _tiny():
    return load_model("tiny")


def make_llm(parts: dict | None, num_blocks: int) -> LLM:
    return LLM(
        _tiny(),
        num_blocks=num_blocks,
        block_size=4,
        attention="reference",
        enable_prefix_caching=False,
        parts=parts,
        watermark=0.0,
    )


def texts(parts: dict | None) -> list[str]:
    """Greedy, sampled (forked) and beam-searched texts. The pool is small, so that requests are preempted."""
    llm = make_llm(parts, num_blocks=11)
    jobs = [SamplingParams(max_tokens=12)] * len(PROMPTS)
    outputs = llm.generate(list(PROMPTS), jobs)
    outputs += llm.generate(PROMPTS[0], SamplingParams(max_tokens=6, n=2, temperature=1.0, seed=3))
    outputs += llm.beam_search(PROMPTS[2], BeamSearchParams(beam_width=3, max_tokens=6))
    return [completion.text for output in outputs for completion in output.outputs]


def storm(parts: dict | None, seed: int = 0) -> Iterator[tuple[int, int, int]]:
    """Random requests, one in three aborted on the way: after every step (blocks free, blocks in use, all blocks).

    "In use" are the different blocks that the tables of live requests point to, counted from outside.
    """
    rng, llm = random.Random(seed), make_llm(parts, num_blocks=24)
    engine = llm.engine
    manager, sent, alive = engine.manager, 0, []
    while sent < NUM_REQUESTS or engine.has_unfinished_requests():
        for _ in range(min(rng.randint(0, 6), NUM_REQUESTS - sent)):
            prompt = [rng.randrange(1, 500) for _ in range(rng.randint(1, 12))]
            params = SamplingParams(
                max_tokens=rng.randint(1, 6), n=rng.choice((1, 1, 1, 2)), temperature=1.0, seed=rng.randrange(99)
            )
            alive.append(engine.add_request(prompt, params))
            sent += 1
        done = {output.request_id for output in engine.step() if output.finished}
        alive = [request_id for request_id in alive if request_id not in done]
        if alive and rng.random() < 0.7:
            engine.abort(alive.pop(rng.randrange(len(alive))))
        tables = [manager.block_ids(request.request_id) for request in engine.scheduler.running]
        in_use = len({block for table in tables for block in table})
        yield manager.num_free_blocks, in_use, manager.pool.num_blocks
