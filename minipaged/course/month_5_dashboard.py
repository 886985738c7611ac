"""What the dashboard of Month 5 looks at: an engine in this process, step by step, or a server's /metrics."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from minipaged.course.month_5 import CountdownModel
from minipaged.scraping import MetricsSample, parse_metrics
from minipaged.serving import LLM, SamplingParams

Source = Callable[[float], MetricsSample]  # from a time to what is seen at that time


def engine_source(llm: LLM) -> Source:
    """Look at an engine in this process."""

    def look(time: float) -> MetricsSample:
        scheduler, manager, stats = llm.engine.scheduler, llm.engine.manager, llm.stats
        queue = len(scheduler.running), len(scheduler.waiting)
        return MetricsSample(
            time, manager.usage, *queue, stats.prefix_query_tokens, stats.prefix_hit_tokens, stats.num_preemptions
        )

    return look


def server_source(base_url: str) -> Source:
    """Look at /metrics of a server: minipaged's, vLLM's or SGLang's."""
    import httpx

    http = httpx.Client(base_url=base_url, timeout=10, trust_env=False)

    def look(time: float) -> MetricsSample:
        return parse_metrics(http.get("/metrics").raise_for_status().text, time)

    return look


def watch_steps(
    llm: LLM, prompts: Sequence[Sequence[int]], every: int = 2, max_tokens: int = 64
) -> list[MetricsSample]:
    """Serve prompts, one arriving every so many steps, and look after each step. The times are step numbers."""
    look, coming = engine_source(llm), list(prompts)
    samples = [look(0)]
    while coming or llm.engine.has_unfinished_requests():
        if coming and (len(samples) - 1) % every == 0:
            llm.engine.add_request(coming.pop(0), SamplingParams(max_tokens=max_tokens))
        llm.engine.step()
        samples.append(look(len(samples)))
    return samples


def example_samples(num_requests: int = 24, seed: int = 1) -> list[MetricsSample]:
    """Requests with a common beginning of 24 tokens come faster than a small pool can serve them (the toy model)."""
    llm = LLM((CountdownModel(), None), num_blocks=48, block_size=4, attention="reference", watermark=0.0)
    rng = random.Random(seed)
    start = [300 + place for place in range(24)]
    prompts = [start + [rng.randrange(100, 200) for _ in range(4)] + [rng.randint(8, 40)] for _ in range(num_requests)]
    return watch_steps(llm, prompts)
