"""/metrics. The names and buckets are vLLM's (vllm/v1/metrics/loggers.py, 0.32), with ``minipaged:`` in front."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from minipaged.serving.engine import LLMEngine
from minipaged.serving.outputs import RequestOutput, RequestTimes

PREFIX = "minipaged:"
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_BUCKETS = (
    *(0.001, 0.0025, 0.005),  # vLLM's begin at 0.01; the course's model is faster than that
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.05, 0.1, 0.2),  # vLLM's begin at 0.3
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)


class EngineCollector(Collector):
    """Reads the engine's own counts when somebody asks: they are whole numbers, so no lock is needed."""

    def __init__(self, engine: LLMEngine, model_name: str, caching: bool) -> None:
        self.engine, self.model_name, self.caching = engine, model_name, caching

    def collect(self) -> Iterator:
        engine, stats, manager = self.engine, self.engine.stats, self.engine.manager
        free, total = manager.num_free_blocks, manager.num_usable_blocks
        running, waiting = len(engine.scheduler.running), len(engine.scheduler.waiting)
        queries, hits = stats.prefix_query_tokens, stats.prefix_hit_tokens
        gauges = (
            ("num_requests_running", "Sequences that hold blocks and take part in steps.", running),
            ("num_requests_waiting", "Sequences that wait for their turn.", waiting),
            ("kv_cache_usage_perc", "Blocks in use, as a part of all: 1 means 100 percent.", 1 - free / total),
            ("kv_cache_free_blocks", "Blocks that are free, or only kept as a prefix cache.", free),
            ("kv_cache_total_blocks", "Blocks in the pool.", total),
        )
        counters = (
            ("prefix_cache_queries", "Prompt tokens that were looked up.", queries if self.caching else 0),
            ("prefix_cache_hits", "Prompt tokens whose KV was found.", hits),
            ("num_preemptions", "Sequences that had to give back their blocks.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens of admitted requests, found ones included.", queries),
            ("generation_tokens", "Tokens generated.", stats.num_generated_tokens),
            ("computed_tokens", "Tokens that went through the model, repeated work too.", stats.num_scheduled_tokens),
            ("engine_steps", "Steps of the engine.", stats.num_steps),
        )
        for name, words, value in gauges:
            yield self._family(GaugeMetricFamily, name, words, value)
        for name, words, value in counters:
            yield self._family(CounterMetricFamily, name, words, value)
        info = InfoMetricFamily(PREFIX + "cache_config", "The cache's sizes.")
        sizes = {"block_size": str(manager.block_size), "num_blocks": str(total)}
        info.add_metric([], sizes | {"enable_prefix_caching": str(self.caching)})
        yield info

    def _family(self, kind, name: str, words: str, value: float):
        family = kind(PREFIX + name, words, labels=["model_name"])
        family.add_metric([self.model_name], value)
        return family


class Metrics:
    """One registry a server: several in one process do not meet."""

    def __init__(self, engine: LLMEngine, model_name: str) -> None:
        self.registry = CollectorRegistry()
        caching = bool(getattr(engine.manager, "enable_caching", True))
        self.registry.register(EngineCollector(engine, model_name, caching))
        self._model_name = model_name
        token, end = "observed when the token is there", "observed when a prompt has ended"
        self._first = self._histogram("time_to_first_token_seconds", FIRST_TOKEN_BUCKETS, token)
        self._between = self._histogram("inter_token_latency_seconds", BETWEEN_TOKENS_BUCKETS, token)
        self._whole = self._histogram("e2e_request_latency_seconds", LATENCY_BUCKETS, end)
        self._queue = self._histogram("request_queue_time_seconds", LATENCY_BUCKETS, end)
        words = "Texts by how they ended; a prompt that was given up counts once."
        labels = ["model_name", "finished_reason"]
        self._ends = Counter(PREFIX + "request_success", words, labels, registry=self.registry)
        engine.processor.on_tokens = self.observe_token

    def observe_token(self, times: RequestTimes) -> None:
        """A prompt has grown. Those that are given up later count here, too: they were waited for as well."""
        if len(times.tokens) == 1:
            self._first.observe(times.tokens[0] - times.arrival)
        else:
            self._between.observe(times.tokens[-1] - times.tokens[-2])

    def observe(self, output: RequestOutput) -> None:
        """A prompt has ended. Its times are the engine's: from its arrival there."""
        times = output.times
        for reason in (completion.finish_reason for completion in output.outputs):
            self._ends.labels(self._model_name, reason).inc()
        if times.first_scheduled is not None:
            self._queue.observe(times.first_scheduled - times.arrival)
        self._whole.observe(times.finished - times.arrival)

    def observe_abort(self) -> None:
        """A prompt was given up: its client has gone."""
        self._ends.labels(self._model_name, "abort").inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...], when: str) -> Histogram:
        words = f"{name.replace('_', ' ').capitalize()}, {when}."
        family = Histogram(PREFIX + name, words, ["model_name"], buckets=buckets, registry=self.registry)
        return family.labels(self._model_name)
