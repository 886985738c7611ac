"""`minipaged bench paging`: what paging and the prefix cache buy, measured with one engine and itself.

Two pairs, each in alternation on the standard model (random weights, one thread):

1. The same memory for K and V, requests of ragged lengths. *Reserved*: a block is as long as the longest request may
   become, so each request takes one block and its memory is contiguous. *Paged*: blocks of 16 tokens. Everything else
   is the same engine, kernels included.
2. Prompts that share a long beginning. Time to the first token with the prefix cache, and without: at best it falls as
   the number of prompt tokens to compute does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from minipaged.bench.output import check_output

LONGEST = 1024  # tokens a request may have: what "reserved" sets aside for each
RESERVED = 8  # so many reservations fit into the pool
BLOCK_SIZE = 16
PREFIX, SUFFIX = 512, 64  # a system prompt and a question


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


def ragged_requests(number: int, vocab_size: int, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    """(prompts, output lengths): most are short, some are long, as in a chat; none is longer than LONGEST."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(1, vocab_size) for _ in range(rng.randint(8, 48))] for _ in range(number)]
    outputs = [min(LONGEST // 2, max(4, round(rng.lognormvariate(3.6, 0.9)))) for _ in range(number)]
    return prompts, outputs


def throughput(model: tuple, block_size: int, num_blocks: int, prompts: Sequence, outputs: Sequence) -> float:
    """Output tokens a second of one engine that gets all requests at once."""
    from minipaged.serving import LLM, SamplingParams

    sizes = {"block_size": block_size, "num_blocks": num_blocks, "enable_prefix_caching": False, "watermark": 0.0}
    llm = LLM(model, max_num_seqs=len(prompts), **sizes)
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

    llm = LLM(model, num_blocks=256, block_size=BLOCK_SIZE, enable_prefix_caching=caching)
    one_token = SamplingParams(max_tokens=1, ignore_eos=True)
    times, computed = [], 0
    for number, prompt in enumerate(prompts):
        before, start = llm.stats.num_scheduled_tokens, time.perf_counter()
        llm.generate([list(prompt)], one_token)
        if number:  # the first one fills the cache
            times.append(time.perf_counter() - start)
            computed += llm.stats.num_scheduled_tokens - before
    return statistics.median(times), computed


def reservation_pair(model: tuple, requests: int, rounds: int) -> Pair:
    """Contiguous reservation against paging, in the same number of slots."""
    prompts, outputs = ragged_requests(requests, model[0].config.vocab_size)
    paged_blocks = RESERVED * LONGEST // BLOCK_SIZE
    sides = [
        lambda: throughput(model, LONGEST, RESERVED, prompts, outputs),
        lambda: throughput(model, BLOCK_SIZE, paged_blocks, prompts, outputs),
    ]
    facts = {"slots": RESERVED * LONGEST, "requests": requests, "output tokens": sum(outputs)}
    what = f"ragged requests in {RESERVED * LONGEST:,} slots of K and V"
    values = alternate(sides, rounds)
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
    what = f"prompts of {PREFIX + SUFFIX} tokens, {PREFIX} of them shared"
    return Pair(what, ("with the cache", "without"), "ms to the first token", values, facts)


def alternate(sides: Sequence[Callable[[], float]], rounds: int) -> tuple[list[float], list[float]]:
    """Each side once to warm up, then in turns."""
    values: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for side, found in zip(sides, values, strict=True):
            value = side()
            if number:
                found.append(value)
    return values


def table(pairs: Sequence[Pair]) -> str:
    """Both pairs, medians with their range, and the ratio."""
    lines = []
    for pair in pairs:
        lines.append(pair.what)
        for name, values in zip(pair.names, pair.values, strict=True):
            median = statistics.median(values)
            lines.append(f"  {name:<16}{median:>10,.1f} {pair.unit} ({min(values):,.1f} to {max(values):,.1f})")
        best = f"; at best {pair.facts['token ratio']:.1f}, as the tokens" if "token ratio" in pair.facts else ""
        lines.append(f"  ratio {pair.ratio:.2f}{best}\n")
    return "\n".join(lines).rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when the tables were printed."""
    parser = argparse.ArgumentParser(
        prog="minipaged bench paging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=64, help="ragged requests (default 64)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side, in alternation (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the model (default 1)")
    parser.add_argument("--json", type=Path, help="write all measurements and the machine to this file")
    args = parser.parse_args(argv)
    for name in ("requests", "rounds", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least 1")
    if args.json:
        check_output(parser, "--json", args.json, ".json")
    os.environ["NUMBA_NUM_THREADS"] = str(args.threads)
    import torch

    from minipaged.bench.generate.checkpoint import SHAPES, make_checkpoint
    from minipaged.model import load_model

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), SHAPES["standard"])
        model = load_model(folder)
        pairs = [reservation_pair(model, args.requests, args.rounds), prefix_pair(model, 8, args.rounds)]
    print(table(pairs))
    if args.json:
        from minipaged.bench.command import machine

        rows = [{**asdict(pair), "ratio": pair.ratio} for pair in pairs]
        settings = {"requests": args.requests, "rounds": args.rounds, "threads": args.threads}
        written = {"machine": machine(), "settings": settings, "pairs": rows}
        args.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0
