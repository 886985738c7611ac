"""Month 4's experiments on top of `minipaged.fragmentation`: what the lesson, the bench and exercise 4.8 share.

All figures are simulated (tokens and slots are counted, no model runs), but for `serve_seconds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from minipaged.course.canvas import Figure
from minipaged.course.charts import Table, draw_bars
from minipaged.course.figures_month_4 import STATE_OF, draw_card
from minipaged.fragmentation import (
    PAPER,
    POOL_SLOTS,
    Contiguous,
    Paged,
    Recorder,
    Result,
    Sample,
    compare,
    make_system,
    reserve_oracle,
    simulate,
    time_average,
)
from minipaged.fragmentation.systems import ContiguousAllocator
from minipaged.os_paging.errors import require_whole
from minipaged.workloads import Workload, alpaca_like, shared_prefix, sharegpt_like, workload_a, workload_b

NAMES = {"max": "Max", "pow2": "Pow2", "oracle": "Oracle", "paged": "paged", "mine": "mine"}
PAPER_REQUESTS = {  # Kwon et al., SOSP 2023, Fig. 13: mean requests in a batch
    "ShareGPT": {"max": 7.00, "pow2": 9.81, "oracle": 13.62, "paged": 30.42},
    "Alpaca": {"max": 7.00, "pow2": 43.24, "oracle": 72.75, "paged": 132.44},
}


def length_histogram(requests: Sequence[Workload], width: int = 128, last: int = 1024) -> dict[str, dict[str, int]]:
    """How many requests have prompts and outputs of 1 … width tokens, and so on; the last: all longer ones."""
    require_whole("width", width, 1, None, "a bar counts the lengths of at least one token")
    bars: dict[str, dict[str, int]] = {}
    for start in range(0, last + width, width):
        words = f"to {start + width}" if start < last else "more"
        stop = start + width if start < last else math.inf
        inside = [[start < n <= stop for n in (r.prompt_tokens, r.output_tokens)] for r in requests]
        bars[words] = {"prompt": sum(p for p, _ in inside), "output": sum(o for _, o in inside)}
    return bars


# ── the bars of Fig. 2 ───────────────────────────────────────────────────────────────────────────────────────


def bars(results: Mapping[str, Result], beside_paper: bool = True) -> Figure:
    """Shares of the pool as stacked bars; with `beside_paper`, the paper's bar of each system stands to the left."""
    _require_waiting(results)
    data: dict[str, dict[str, float]] = {}
    for name, result in results.items():
        if beside_paper and name in PAPER:
            data[f"{NAMES[name]}\npaper"] = {STATE_OF[part]: share for part, share in PAPER[name].items()}
        shares = {STATE_OF[part]: round(share, 1) for part, share in result.shares.items()}
        data[f"{NAMES[name]}\nsimulated"] = {state: share for state, share in shares.items() if share}
    return draw_bars(data, title="Who owns the KV memory", ylabel="percent of the pool", stacked=True, height=4.2)


def bars_table(results: Mapping[str, Result]) -> Table:
    """The same as numbers: simulated, and in brackets the paper's."""
    _require_waiting(results)

    def cell(name: str, part: str) -> str:
        published = PAPER.get(name, {}).get(part)
        return f"{results[name].shares[part]:.1f}" + (f" ({published:.1f})" if published is not None else "")

    parts = ["tokens", "reservation", "internal", "external", "free"]
    if any(result.shares["duplicate"] for result in results.values()):
        parts.insert(1, "duplicate")
    rows = [
        [NAMES[name], *(cell(name, part) for part in parts), f"{r.mean_running:.1f}"] for name, r in results.items()
    ]
    return Table(["%: simulated (paper)", *parts, "requests"], rows)


def _require_waiting(results: Mapping[str, Result]) -> None:
    """ValueError where a bar would be empty: shares are averages over the steps in which somebody waits."""
    for name, result in results.items():
        if not result.saturated_steps:
            raise ValueError(
                f"nobody ever waits for {NAMES.get(name, name)}: {result.finished} requests never fill its "
                f"{result.pool_slots:,} slots, so there is no share to show; give more requests, a smaller pool, or "
                "fewer steps_per_second"
            )


def output_spread(spreads: Iterable[float], n: int = 1000) -> Table:
    """Fig. 2's reserving systems for several spreads of the output lengths; the mean output stays 338 tokens."""
    rows: list[list[object]] = []
    for spread in spreads:
        results = compare(sharegpt_like(n, sigma_output=spread), ("max", "pow2", "oracle"))
        shares = {name: result.shares for name, result in results.items()}
        tokens = [f"{share['tokens']:.1f}" for share in shares.values()]
        rows.append([spread, *tokens, f"{shares['pow2']['external']:.1f}"])
    published = [PAPER[name]["tokens"] for name in ("max", "pow2", "oracle")]
    rows.append(["paper", *published, PAPER["pow2"]["external"]])
    return Table(["spread of outputs", "tokens %: Max", "Pow2", "Oracle", "external %: Pow2"], rows)


def batch_by_rate(rates: Iterable[float], n: int = 2000) -> Table:
    """Mean requests in the batch while Alpaca-like requests still arrive, at several rates (requests per step)."""
    rows = []
    for rate in rates:
        requests, means = alpaca_like(n, rate=rate), []
        for name in ("oracle", "paged"):
            samples = record(requests, name, pool_slots=POOL_SLOTS, layout=False)
            arriving = [sample for sample in samples if sample.step <= requests[-1].arrival]
            means.append(time_average(arriving, lambda sample: sample.running))
        rows.append([f"{rate:g}", *(f"{mean:.1f}" for mean in means), f"{means[1] / means[0]:.2f}"])
    return Table(["requests arrive per step", "Oracle", "paged", "paged / Oracle"], rows)


def five_bars(
    allocator: Callable[[int], ContiguousAllocator], requests: Sequence[Workload], pool_slots: int = POOL_SLOTS
) -> dict[str, Result]:
    """The four systems and, as "mine", exact reservations (as Oracle's) over an allocator of your own."""
    results = compare(requests, pool_slots=pool_slots)
    mine = Contiguous("mine", reserve_oracle, pool_slots, allocator(pool_slots))
    return {**results, "mine": simulate(requests, mine)}


# ── holes over time ──────────────────────────────────────────────────────────────────────────────────────────


def record(
    requests: Sequence[Workload],
    system: str = "oracle",
    allocator: str = "buddy",
    pool_slots: int = 4096,
    block_size: int = 16,
    every: int = 0,
    layout: bool = True,
    steps_per_second: float = 1.0,
) -> list[Sample]:
    """Run one system and return what a `Recorder` saw."""
    made = make_system(system, pool_slots, allocator, block_size)
    recorder = Recorder(made, every, layout)
    simulate(requests, made, steps_per_second=steps_per_second, watch=recorder)
    return recorder.samples


def refused_for_shape(sample: Sample) -> bool:
    """A request waits although more slots lie unowned than it asks for: they are only in the wrong places."""
    return 0 < sample.refused <= sample.unowned


# ── the price of a block size ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BlockSizeCost:
    """Time averages for one block size while somebody waits, and how many requests ran."""

    block_size: int
    waste_slots: float  # empty slots of a request, after its token of the step is written
    waste_percent: float  # of the pool
    entries: float  # of a request's block table
    requests: float


def block_size_costs(
    requests: Sequence[Workload], sizes: Iterable[int], pool_slots: int = POOL_SLOTS
) -> list[BlockSizeCost]:
    """Simulate the paged system with each block size.

    The simulation looks at the beginning of a step, when the slot of this step's token is there but not yet written. So
    one slot of each request is subtracted to get the waste after the write, which theory puts at (B − 1) / 2.
    """
    costs = []
    for size in sizes:
        result = simulate(requests, Paged(pool_slots, size))
        _require_waiting({"paged": result})
        empty = result.shares["internal"] / 100 * result.pool_slots
        held = empty + result.shares["tokens"] / 100 * result.pool_slots
        waste = empty / result.mean_running - 1
        percent = 100 * waste * result.mean_running / result.pool_slots
        costs.append(BlockSizeCost(size, waste, percent, held / size / result.mean_running, result.mean_running))
    return costs


# ── workloads A and B ────────────────────────────────────────────────────────────────────────────────────────


def steps_with_budget(requests: Sequence[Workload], budget: int) -> int:
    """Steps until all are done when a step computes at most `budget` tokens, and memory is ample.

    As in vLLM: one token for each request that decodes, then chunks of prompts. The step that ends a prompt also
    gives the first output token, so an output of n tokens needs n − 1 more.
    """
    if budget < 1:
        raise ValueError(f"budget is {budget}; a step must be allowed to compute at least 1 token")
    left = [[request.prompt_tokens, request.output_tokens] for request in requests]
    steps = 0
    while left:
        steps += 1
        room = budget
        for request in sorted(left, key=lambda request: request[0] > 0):
            if request[0] == 0 and room:
                request[1] -= 1
                room -= 1
            elif request[0]:
                chunk = min(request[0], room)
                request[0] -= chunk
                room -= chunk
                request[1] -= chunk > 0 and request[0] == 0
        left = [request for request in left if request[0] or request[1]]
    return steps


def tokens_to_compute(result: Result) -> int:
    """Tokens that run through the model: the last token of an answer never does, but the simulation gives it a slot."""
    return result.computed_tokens - result.finished


def a_and_b(num_blocks: int, block_size: int = 16) -> dict[str, Result]:
    """Workloads A and B on the paged system with this many blocks."""
    make = {"A": workload_a, "B": workload_b}
    return {name: simulate(requests(), Paged(num_blocks * block_size, block_size)) for name, requests in make.items()}


def a_and_b_table(pools: Mapping[str, int], runs: Mapping[str, Mapping[str, Result]]) -> Table:
    """What A and B cost in several pools. `pools`: name → blocks; `runs`: name → what `a_and_b` returned for it."""
    rows = [
        [
            f"{pool}: {num_blocks:,} blocks",
            workload,
            result.steps,
            f"{result.requests_per_step:.3g}",
            f"{tokens_to_compute(result):,}",
            result.preemptions,
        ]
        for pool, num_blocks in pools.items()
        for workload, result in runs[pool].items()
    ]
    return Table(["pool", "workload", "steps", "requests a step", "tokens to compute", "preemptions"], rows)


def serve_seconds(requests: Sequence[Workload], num_blocks: int = 1024) -> float:
    """Measured: how long the engine takes with the bundled model; each answer gets its full length."""
    import torch

    from minipaged.serving import LLM, SamplingParams

    torch.set_num_threads(1)  # steadier times
    llm = LLM("tiny", num_blocks=num_blocks, block_size=16, enable_prefix_caching=False)
    prompts = [[1 + (7 * i + j) % 1000 for j in range(r.prompt_tokens)] for i, r in enumerate(requests)]
    params = [SamplingParams(max_tokens=r.output_tokens, ignore_eos=True) for r in requests]
    llm.generate(prompts[:1], SamplingParams(max_tokens=2, ignore_eos=True))  # the first call compiles
    start = perf_counter()
    llm.generate(prompts, params)
    return perf_counter() - start


# ── the explorer ─────────────────────────────────────────────────────────────────────────────────────────────

WORKLOADS: dict[str, Callable[[], list[Workload]]] = {
    "ShareGPT-like": lambda: sharegpt_like(150),
    "Alpaca-like": lambda: alpaca_like(400),
    "shared prefix (341)": lambda: shared_prefix(150),
    "A: 50 + 10": workload_a,
    "B: 50 + 2000": lambda: workload_b(30),
}


def explore(system: str, workload: str, pool_slots: int, block_size: int) -> Figure:
    """One system on one workload: mean shares, eight looks at the memory, and the batch over time."""
    requests = WORKLOADS[workload]()
    kind, _, allocator = system.partition(", ")
    made = make_system(kind.lower(), pool_slots, allocator or "buddy", block_size)
    recorder = Recorder(made, layout=False)
    result = simulate(requests, made, watch=recorder)
    samples = recorder.samples
    # A second run draws the maps: now it is known when the run ends.
    looks = record(requests, kind.lower(), allocator or "buddy", pool_slots, block_size, -(-result.steps // 8))[:8]
    running = [(sample.step, sample.running) for sample in samples]
    shares = result.shares if result.saturated_steps else _mean_shares(samples)
    mean = result.mean_running or math.fsum(n for _, n in running) / len(running)
    title = f"{system}, {workload}, {pool_slots:,} slots" + (f", blocks of {block_size}" if kind == "paged" else "")
    when = "while somebody waits" if result.saturated_steps else "over all steps: nobody waits"
    return draw_card(looks, shares, running, mean, f"{title} (simulated; means {when})")


def _mean_shares(samples: Sequence[Sample]) -> dict[str, float]:
    """Where nobody ever waits: the mean over all steps."""
    fields = samples[0].parts._fields
    return {f: time_average(samples, lambda s, f=f: 100 * getattr(s.parts, f) / s.parts.total) for f in fields}
