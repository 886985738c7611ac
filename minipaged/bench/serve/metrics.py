"""From records to figures, by the definitions of `vllm bench serve` (vllm/benchmarks/serve.py, calculate_metrics)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from minipaged.bench.serve.client import RequestRecord
from minipaged.scraping import MetricsSample


@dataclass(frozen=True)
class Spread:
    """Mean, median and 99th percentile of times, in milliseconds."""

    mean: float
    median: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """None when there is nothing to average. Percentiles are interpolated linearly, as numpy's default does."""
        if not seconds:
            return None
        times = 1000 * np.asarray(seconds, dtype=float)
        return cls(float(times.mean()), float(np.median(times)), float(np.percentile(times, 99)))


@dataclass(frozen=True)
class Slo:
    """Limits in milliseconds that a good request keeps, all that are given."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                limit = name.removesuffix("_ms").upper()
                raise ValueError(f"the limit for {limit} is {value:g} ms; it must be above 0")

    def __bool__(self) -> bool:
        return any(value is not None for value in asdict(self).values())

    def kept_by(self, record: RequestRecord) -> bool:
        """A single token has no time per output token: it counts as 0, as vLLM counts it."""
        pairs = ((self.ttft_ms, record.ttft), (self.tpot_ms, record.tpot or 0.0), (self.e2el_ms, record.e2el))
        return record.ok and all(limit is None or 1000 * took <= limit for limit, took in pairs)

    def __str__(self) -> str:
        limits = {name.removesuffix("_ms").upper(): value for name, value in asdict(self).items()}
        return ", ".join(f"{name} ≤ {value:g} ms" for name, value in limits.items() if value is not None)


@dataclass(frozen=True)
class Summary:
    """The figures of a run; None is what could not be measured or what the server does not report.

    Rates divide by `duration`, from the start to the end of the last request. Tokens are those of completed requests.
    """

    duration: float
    completed: int
    failed: int
    errors: dict[str, int]  # each error's words: how often
    short: int  # completed with fewer tokens than asked for
    refused_then_taken: int  # completed after one or more retries
    input_tokens: int
    output_tokens: int
    counted_by_chunks: int  # requests without usage: their tokens are the chunks
    request_throughput: float
    input_throughput: float
    output_throughput: float
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2el: Spread | None
    goodput: float | None  # requests a second that keep all limits
    mean_kv_usage: float | None
    peak_kv_usage: float | None
    prefix_hit_rate: float | None
    prefill_tokens: int | None  # prompt tokens that the server had to compute
    preemptions: int | None
    usage_samples: int  # looks at the KV usage during the run: with a few, the peak may lie between them
    client_busy: float | None = None  # part of the time that the client's thread computed, 0 to 1


def summarise(
    records: Sequence[RequestRecord],
    duration: float,
    samples: Sequence[MetricsSample] = (),
    slo: Slo | None = None,
    client_seconds: float | None = None,
) -> Summary:
    """All figures of a run. `samples`: before, during and after it, in order; `client_seconds`: of processor time."""
    good = [record for record in records if record.ok]
    input_tokens = sum(record.prompt_tokens for record in good)
    output_tokens = sum(record.output_tokens for record in good)
    tpots = [record.tpot for record in good if record.tpot is not None]
    within = [sample.usage for sample in samples if sample.usage is not None and 0 <= sample.time <= duration]
    queries, hits = _growth(samples, "prefix_queries"), _growth(samples, "prefix_hits")
    preemptions = _growth(samples, "preemptions")
    cached = [record.cached_tokens for record in good]
    if good and None not in cached:
        prefill = input_tokens - sum(cached)
    else:
        prefill = round(queries - hits) if queries and hits is not None else None  # no queries: no prefix cache
    if queries and hits is not None:
        hit_rate = hits / queries
    elif good and None not in cached and input_tokens:
        hit_rate = sum(cached) / input_tokens
    else:
        hit_rate = None
    return Summary(
        duration=duration,
        completed=len(good),
        failed=len(records) - len(good),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        short=sum(record.short for record in good),
        refused_then_taken=sum(record.retries > 0 for record in good),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        counted_by_chunks=sum(record.counted_by == "chunks" for record in good),
        request_throughput=len(good) / duration,
        input_throughput=input_tokens / duration,
        output_throughput=output_tokens / duration,
        ttft=Spread.of([record.ttft for record in good]),
        tpot=Spread.of(tpots),
        itl=Spread.of([itl for record in good for itl in record.itls]),
        e2el=Spread.of([record.e2el for record in good]),
        goodput=sum(map(slo.kept_by, good)) / duration if slo else None,
        mean_kv_usage=sum(within) / len(within) if within else None,
        peak_kv_usage=max(within, default=None),
        prefix_hit_rate=hit_rate,
        prefill_tokens=prefill,
        preemptions=None if preemptions is None else round(preemptions),
        usage_samples=len(within),
        client_busy=None if client_seconds is None else client_seconds / duration,
    )


def _growth(samples: Sequence[MetricsSample], counter: str) -> float | None:
    """By how much a counter grew from the first sample to the last; None with fewer than two of them."""
    values = [value for sample in samples if (value := getattr(sample, counter)) is not None]
    return values[-1] - values[0] if len(values) > 1 else None
