"""A server's own counts, read from the text of `/metrics`: the names of vLLM, minipaged, SGLang."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

NAMES: dict[str, tuple[str, ...]] = {
    # vLLM 0.32, vllm/v1/metrics/loggers.py; minipaged uses the same names with its own prefix
    "usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",  # its older name
        "minipaged:kv_cache_usage_perc",
        "sglang:token_usage",
    ),
    "running": ("vllm:num_requests_running", "minipaged:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "minipaged:num_requests_waiting", "sglang:num_queue_reqs"),
    "prefix_queries": (  # in tokens
        "vllm:prefix_cache_queries_total",
        "minipaged:prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
    ),
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "minipaged:prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
    "preemptions": (
        "vllm:num_preemptions_total",
        "minipaged:num_preemptions_total",
        "sglang:num_retracted_requests_total",
    ),
}
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)")


@dataclass(frozen=True)
class MetricsSample:
    """One look at `/metrics`, `time` seconds after the start; None for what the server does not report."""

    time: float
    usage: float | None = None  # of the KV cache, 0 to 1
    running: float | None = None
    waiting: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None


def parse_metrics(text: str, time: float) -> MetricsSample:
    """Read Prometheus's text format. Several engines are added up; their usage is averaged."""
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        if found := _SAMPLE.match(line):
            try:
                value = float(found[2])
            except ValueError:  # a line that is no sample after all
                continue
            if math.isfinite(value):  # Prometheus knows NaN for "no value yet"
                values.setdefault(found[1], []).append(value)
    fields = {}
    for field, names in NAMES.items():
        there = next((values[name] for name in names if name in values), None)
        if there is not None:
            fields[field] = sum(there) / (len(there) if field == "usage" else 1)
    return MetricsSample(time, **fields)
