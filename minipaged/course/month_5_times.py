"""Month 5's stopwatches, and two estimates for hardware that is not here. Measured functions say so."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

from minipaged.serving import LLM, SamplingParams

Model = tuple  # (model, tokenizer), as load_model returns


def _prompt(length: int, seed: int, vocab_size: int = 1000) -> list[int]:
    """Random tokens; no two prompts share a beginning."""
    rng = random.Random(seed)
    return [rng.randrange(1, vocab_size) for _ in range(length)]


def _engine(model: Model, **options) -> LLM:
    """An engine with the fast backend of this machine, without a prefix cache."""
    return LLM(model, enable_prefix_caching=False, attention="auto", **options)


def decode_step_ms(
    model: Model, counts: Sequence[int], context: int = 32, steps: int = 8, rounds: int = 4
) -> list[float]:
    """Measured: milliseconds of a step in which so many requests decode one token each, for every count the fastest.

    The counts take turns, so that a busy moment of the machine hits all of them.
    """
    llms = [_engine(model, num_blocks=n * (context + 2 * steps) // 16 + n) for n in counts]
    params = SamplingParams(max_tokens=steps, ignore_eos=True)
    for _ in range(rounds):
        for llm, count in zip(llms, counts, strict=True):
            llm.generate([_prompt(context, seed) for seed in range(count)], params)
    histories = [
        [step.total_time for step in llm.stats.history if step.num_tokens == n]
        for llm, n in zip(llms, counts, strict=True)
    ]
    return [1000 * min(times) for times in histories]


def prefill_ms(model: Model, lengths: Sequence[int], rounds: int = 3) -> float:
    """Measured: milliseconds of one step that computes prompts of these lengths together; the best of some rounds."""
    llm = _engine(model, num_blocks=sum(lengths) // 16 + len(lengths), max_num_batched_tokens=sum(lengths))
    prompts = [_prompt(length, seed) for seed, length in enumerate(lengths)]
    for _ in range(rounds):
        llm.generate(prompts, SamplingParams(max_tokens=1, ignore_eos=True))
    return 1000 * min(step.model_time for step in llm.stats.history)


@dataclass(frozen=True)
class Newcomer:
    """A long prompt arrives while others decode. The first two figures are counted, the times are measured: of some
    rounds, the best of each."""

    steps_to_first_token: int
    most_tokens_in_a_step: int
    ttft_ms: float
    median_gap_ms: float  # of the others, before it came
    longest_gap_ms: float  # of the others, after it came


def newcomers(model: Model, budgets: Sequence[int], rounds: int = 3) -> list[Newcomer]:
    """The same arrival under each token budget. The budgets take turns, so that a busy moment hits all of them."""
    seen = [[newcomer(model, budget) for budget in budgets] for _ in range(rounds)]
    return [Newcomer(*map(min, zip(*map(astuple, runs), strict=True))) for runs in zip(*seen, strict=True)]


def newcomer(model: Model, budget: int, prompt_tokens: int = 1500, others: int = 8) -> Newcomer:
    """Serve some decoding requests, let one with a long prompt arrive, and look at both sides."""
    blocks = (prompt_tokens + others * 200) // 16 + others + 2
    llm = _engine(model, num_blocks=blocks, max_num_batched_tokens=budget)
    engine = llm.engine
    long_answer = SamplingParams(max_tokens=100, ignore_eos=True)
    ids = [engine.add_request(_prompt(32, seed), long_answer) for seed in range(others)]
    groups = [engine._groups[request_id] for request_id in ids]
    for _ in range(20):
        engine.step()
    engine.add_request(_prompt(prompt_tokens, 99), SamplingParams(max_tokens=2, ignore_eos=True), "new")
    new, before = engine._groups["new"], llm.stats.num_steps
    while not new.times.tokens:
        engine.step()
    steps = llm.stats.num_steps - before
    most = max(step.num_tokens for step in llm.stats.history if step.step > before)
    engine.step()  # one more: the last gap of the others ends after the newcomer's first token
    gaps = [[late - early for early, late in pairwise(group.times.tokens)] for group in groups]
    calm = [gap for own in gaps for gap in own[5 : before - 1]]
    busy = [gap for own in gaps for gap in own[before - 1 :]]
    for request_id in [*ids, "new"]:
        engine.abort(request_id)
    return Newcomer(steps, most, 1000 * new.times.ttft, 1000 * statistics.median(calm), 1000 * max(busy))


# ── estimates ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Device:
    """What a data sheet says. The default is an A100 of 40 GB with PCIe 4.0."""

    flops: float = 312e12  # dense, 16 bits
    bytes_per_second: float = 1.555e12
    link_bytes_per_second: float = 25e9  # PCIe 4.0 × 16 in practice; an assumption
    transfer_seconds: float = 10e-6  # to start one copy; an assumption
    efficiency: float = 0.5  # of `flops`, in a prefill; an assumption


@dataclass(frozen=True)
class Weights:
    """A dense model in 16 bits. The default is OPT-13B, the paper's first."""

    parameters: float = 13e9
    layers: int = 40
    kv_bytes_per_token: int = 800 * 1024

    @property
    def num_bytes(self) -> float:
        return 2 * self.parameters


def idle_share(num_requests: int, device: Device | None = None, weights: Weights | None = None) -> tuple[float, float]:
    """Estimated for a decode step: (milliseconds to read the weights once, percent of that time spent on arithmetic).

    One token needs about 2 operations a parameter, and all requests of the step share one reading of the weights.
    """
    device, weights = device or Device(), weights or Weights()
    reading = weights.num_bytes / device.bytes_per_second
    computing = num_requests * 2 * weights.parameters / device.flops
    return 1000 * reading, 100 * computing / max(reading, computing)


def swap_or_recompute_ms(
    block_sizes: Iterable[int], num_tokens: int = 1024, device: Device | None = None, weights: Weights | None = None
) -> dict[str, list[float]]:
    """Estimated milliseconds to bring back a preempted sequence, by block size.

    Swap moves every block out and in again, K and V of each layer as a transfer of its own. Recompute is one prefill,
    whatever the block size.
    """
    device, weights = device or Device(), weights or Weights()
    swap, recompute = [], []
    for size in block_sizes:
        blocks = -(-num_tokens // size)
        one_way = blocks * 2 * weights.layers * device.transfer_seconds
        one_way += blocks * size * weights.kv_bytes_per_token / device.link_bytes_per_second
        swap.append(1000 * 2 * one_way)
        recompute.append(1000 * 2 * weights.parameters * num_tokens / (device.flops * device.efficiency))
    return {"swap: out and in": swap, "recompute": recompute}
