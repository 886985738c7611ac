"""`minipaged bench paging`: what paging and the prefix cache buy, measured with one engine and itself.

Pairs, each in alternation, with random weights and one thread:

1. The same memory for K and V, more work than reservations fit. *Reserved*: a block is as long as a request may ever
   become, so each request takes one block and its memory is contiguous. *Paged*: blocks of 16 tokens. Everything else
   is the same engine, kernels included. The work is the paper's, in miniature: requests of up to 2048 tokens, lengths
   like ShareGPT's (chats) and like Alpaca's (short instructions), memory for three reservations, and for seven (the
   paper's 13B model on one GPU held seven). All requests are there from the beginning; the clock runs until the last
   one is done, so what is computed again after a preemption counts against paging. Standard model; a request is
   admitted only where 5 % of the pool stay free (the watermark), so that those who run can grow.
2. Prompts that share a long beginning. Time to the first token with the prefix cache, and without. A system prompt with
   examples (1024 tokens), and 256 tokens of one's own. At best the time falls as the number of prompt tokens to compute
   does, if it is all spent on products with the weights. Attention falls less: a new token attends to the whole
   prefix, cached or not. So the share of attention must be that of a model that people serve. Here four layers as wide
   as Qwen2-0.5B's are taken; in the standard model, with its small matrices, it would be several times as large.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.bench.output import check_output

if TYPE_CHECKING:
    from minipaged.model.config import ModelConfig
    from minipaged.workloads import Workload

LONGEST = 2048  # tokens a request may have: what "reserved" sets aside for each
RESERVED = (3, 7)  # so many reservations fit into the pool
WATERMARK = 0.05  # of the pool stay free when a request is admitted, so that running ones can grow
BLOCK_SIZE = 16
WARM_UP = 16  # requests of each side before its first measurement
SHORT_REQUESTS = 4  # short instructions for one chat: about as many output tokens
PREFIX, SUFFIX = 1024, 256
PREFIX_REQUESTS = 4
PREFIX_ROUNDS = 7  # at least: a round is short


@dataclass(frozen=True)
class Pair:
    """One comparison: what it is, the measurements of both sides by round, and the ratio that counts."""

    what: str
    names: tuple[str, str]
    unit: str
    values: tuple[list[float], list[float]]
    facts: dict[str, float]

    @property
    def ratio(self) -> float:
        """Second over first, the median over rounds: both sides of a pair were measured next to each other."""
        return statistics.median(second / first for first, second in zip(*self.values, strict=True))


def requests_of(lengths: Sequence[Workload], vocab_size: int) -> tuple[list[list[int]], list[int]]:
    """(prompts of random tokens, output lengths). The same lengths give the same prompts."""
    rng = random.Random(0)
    prompts = [[rng.randrange(1, vocab_size) for _ in range(one.prompt_tokens)] for one in lengths]
    return prompts, [one.output_tokens for one in lengths]


def throughput(model: tuple, block_size: int, num_blocks: int, prompts: Sequence, outputs: Sequence) -> float:
    """Output tokens a second of one engine that gets all requests at once."""
    from minipaged.serving import LLM, SamplingParams

    llm = LLM(model, block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=False, watermark=WATERMARK)
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in outputs]
    start = time.perf_counter()
    done = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    made = sum(len(one.outputs[0].token_ids) for one in done)
    if made != sum(outputs):
        raise RuntimeError(f"{made} tokens were generated instead of {sum(outputs)}")
    return made / seconds


def first_token_seconds(model: tuple, caching: bool, prompts: Sequence[Sequence[int]]) -> tuple[float, int]:
    """(median time to the first token of all prompts but the first, prompt tokens that were computed for them); they
    come one after the other."""
    from minipaged.serving import LLM, SamplingParams

    num_blocks = 2 * -(-(PREFIX + SUFFIX) // BLOCK_SIZE)
    llm = LLM(model, num_blocks=num_blocks, block_size=BLOCK_SIZE, enable_prefix_caching=caching)
    one_token = SamplingParams(max_tokens=1, ignore_eos=True)
    times, computed = [], 0
    for number, prompt in enumerate(prompts):
        before, start = llm.stats.num_scheduled_tokens, time.perf_counter()
        llm.generate([list(prompt)], one_token)
        if number:  # the first one fills the cache
            times.append(time.perf_counter() - start)
            computed += llm.stats.num_scheduled_tokens - before
    return statistics.median(times), computed


def reservation_pair(model: tuple, name: str, lengths: Sequence[Workload], reserved: int, rounds: int) -> Pair:
    """Contiguous reservation against paging, in the same number of slots."""
    prompts, outputs = requests_of(lengths, model[0].config.vocab_size)
    slots = reserved * LONGEST
    pools = ((LONGEST, reserved), (BLOCK_SIZE, slots // BLOCK_SIZE))

    def sides(number: int) -> list[Callable[[], float]]:
        return [partial(throughput, model, *pool, prompts[:number], outputs[:number]) for pool in pools]

    facts = {"slots": slots, "requests": len(lengths)}
    facts |= {"prompt tokens": sum(map(len, prompts)), "output tokens": sum(outputs)}
    values = alternate(sides(len(lengths)), rounds, warm_up=sides(WARM_UP))
    what = f"{len(lengths)} requests like {name}'s in memory for {reserved} requests of {LONGEST} tokens"
    return Pair(what, ("reserved", "paged"), "output tokens/s", values, facts)


def prefix_pair(model: tuple, requests: int, rounds: int) -> Pair:
    """Time to the first token, with the prefix cache against without it."""
    rng = random.Random(1)
    vocab_size, computed = model[0].config.vocab_size, {True: 0, False: 0}
    shared = [rng.randrange(1, vocab_size) for _ in range(PREFIX)]
    prompts = [[*shared, *(rng.randrange(1, vocab_size) for _ in range(SUFFIX))] for _ in range(requests + 1)]

    def side(caching: bool) -> float:
        seconds, computed[caching] = first_token_seconds(model, caching, prompts)
        return seconds * 1e3

    values = alternate([lambda: side(True), lambda: side(False)], rounds)
    facts = {"tokens with": computed[True], "tokens without": computed[False]}
    facts["token ratio"] = computed[False] / computed[True]
    whole, rest = (prefill_operations(model[0].config, start, PREFIX + SUFFIX) for start in (0, PREFIX))
    facts["arithmetic ratio"] = whole / rest
    what = f"prompts of {PREFIX + SUFFIX} tokens, {PREFIX} of them shared"
    return Pair(what, ("with the cache", "without"), "ms to the first token", values, facts)


def prefill_operations(config: ModelConfig, start: int, stop: int) -> int:
    """Multiplications and additions for the prompt tokens from `start` to `stop`; those before are cached."""
    from minipaged.bench.generate.limit import head_weights, layer_weights

    pairs = sum(range(start + 1, stop + 1))  # a token attends to itself and to all before it
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs
    return 2 * layer_weights(config) * (stop - start) + attention + 2 * head_weights(config)


def random_model(shape: dict[str, int]) -> tuple:
    """(model, tokenizer) of this shape, loaded as every other checkpoint is."""
    from minipaged.bench.generate.checkpoint import make_checkpoint
    from minipaged.model import load_model

    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), shape)
        return load_model(folder)


def prefix_shape() -> dict[str, int]:
    """Four layers of Qwen2-0.5B's shape, and a small vocabulary."""
    from minipaged.bench.generate.checkpoint import SHAPES

    return {**SHAPES["larger"], "num_hidden_layers": 4, "vocab_size": 512}


def alternate(
    sides: Sequence[Callable[[], float]], rounds: int, warm_up: Sequence[Callable[[], float]] | None = None
) -> tuple[list[float], list[float]]:
    """Each side once to warm up (or what stands for it in `warm_up`), then in turns."""
    values: tuple[list[float], list[float]] = ([], [])
    for side in warm_up or sides:
        side()
    for _ in range(rounds):
        for side, found in zip(sides, values, strict=True):
            found.append(side())
    return values


def table(pairs: Sequence[Pair]) -> str:
    """Each pair: medians with their range, and the ratio."""
    lines = []
    for pair in pairs:
        lines.append(pair.what)
        for name, values in zip(pair.names, pair.values, strict=True):
            median = statistics.median(values)
            lines.append(f"  {name:<16}{median:>10,.1f} {pair.unit} ({min(values):,.1f} to {max(values):,.1f})")
        lines.append(f"  ratio {pair.ratio:.2f}")
        if "token ratio" in pair.facts:
            bounds = (pair.facts[f"{what} ratio"] for what in ("token", "arithmetic"))
            lines[-1] += "; at best {:.1f}, as the tokens; {:.1f}, as all arithmetic with attention".format(*bounds)
        lines.append("")
    return "\n".join(lines).rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when the tables were printed."""
    parser = argparse.ArgumentParser(
        prog="minipaged bench paging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--requests", type=int, default=60, help=f"chats (default 60); {SHORT_REQUESTS} short instructions for each"
    )
    parser.add_argument("--rounds", type=int, default=2,
        help=f"measurements of each side, in alternation (default 2; the pair of prefixes: at least {PREFIX_ROUNDS})",)
    parser.add_argument("--threads", type=int, default=1, help="threads of the model (default 1)")
    parser.add_argument("--json", type=Path, help="write all measurements and the machine to this file")
    args = parser.parse_args(argv)
    for name in ("requests", "rounds", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least 1")
    if args.json:
        check_output(parser, "--json", args.json, ".json")
    import torch

    from minipaged.bench.generate.checkpoint import SHAPES
    from minipaged.workloads import alpaca_like, sharegpt_like

    torch.set_num_threads(args.threads)
    work = {"ShareGPT": sharegpt_like(args.requests), "Alpaca": alpaca_like(SHORT_REQUESTS * args.requests)}
    model = random_model(SHAPES["standard"])
    pairs = [
        reservation_pair(model, name, lengths, reserved, args.rounds)
        for reserved in RESERVED
        for name, lengths in work.items()
    ]
    pairs.append(prefix_pair(random_model(prefix_shape()), PREFIX_REQUESTS, max(args.rounds, PREFIX_ROUNDS)))
    print(table(pairs))
    if args.json:
        from minipaged.bench.command import machine

        rows = [{**asdict(pair), "ratio": pair.ratio} for pair in pairs]
        settings = {"requests": args.requests, "rounds": args.rounds, "threads": args.threads}
        written = {"machine": machine(), "settings": settings, "pairs": rows}
        args.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0
