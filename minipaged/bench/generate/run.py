"""Engines in processes of their own, measured in alternation on the same checkpoint, prompts, lengths and threads."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from minipaged.bench.generate import work
from minipaged.bench.generate.limit import head_weights, layer_weights, least_seconds, products
from minipaged.bench.process import PeerProcess
from minipaged.model.config import ModelConfig

OURS = "engine_minipaged.py"
PEER_SCRIPTS = {"transformers": "peer_transformers.py", "vllm": "peer_vllm.py"}


def start(name: str, python: str, settings: Mapping[str, Any]) -> PeerProcess:
    """minipaged or a peer. Raises OSError or RuntimeError when it cannot be started."""
    script = Path(__file__).parent / (OURS if name == "minipaged" else PEER_SCRIPTS[name])
    return PeerProcess(python, script, json.dumps(dict(settings)))


def measure(
    engines: Sequence[PeerProcess],
    rows: Mapping[str, Mapping[str, Any]],
    rounds: int,
    machine_question: Mapping[str, Any],
    progress: bool = False,
) -> dict[str, Any]:
    """Seconds of every row, round and engine, in alternation; each engine does every row once before, unmeasured.

    Returns {"seconds": {row: {engine: [...]}}, "same_tokens": {row: {peer: part of the requests}}, "memory": {engine:
    its bytes after it did every row once}, and "machine_speed": [what the machine showed before each round]}.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    same: dict[str, dict[str, float]] = {}
    machine = []
    bar = tqdm(total=len(rows) * (1 + rounds), unit="round", file=sys.stderr, disable=not progress, leave=False)
    for row, asked in rows.items():
        bar.set_description(row)
        first = {engine.name: engine.ask(json.dumps(asked))["outputs"] for engine in engines}
        ours = first[engines[0].name]
        same[row] = {
            name: sum(a == b for a, b in zip(ours, outputs, strict=True)) / len(ours)
            for name, outputs in list(first.items())[1:]
        }
        bar.update()
    # Before the machine is measured: that takes memory in our engine's process.
    memory = {engine.name: engine.ask(json.dumps({"memory": True})) for engine in engines}
    for row, asked in rows.items():
        bar.set_description(row)
        for _ in range(rounds):
            machine.append(engines[0].ask(json.dumps(machine_question)))
            for engine in engines:
                seconds.setdefault(row, {}).setdefault(engine.name, []).append(engine.ask(json.dumps(asked))["seconds"])
            bar.update()
    bar.close()
    return {"seconds": seconds, "same_tokens": same, "memory": memory, "machine_speed": machine}


def machine_question(config: ModelConfig, batches: Sequence[int], dtype: str) -> dict[str, Any]:
    """What to ask of the machine: a copy as large as the weights, and the products of the largest batch."""
    weights = layer_weights(config) + head_weights(config)
    return {
        "copy_bytes": weights * bytes_of(dtype),
        "products": products(config, max(batches)),
        "dtype": dtype,
    }


def bytes_of(dtype: str) -> int:
    return {"float32": 4, "bfloat16": 2}[dtype]


def add_limits(results: dict[str, Any], rows: Mapping[str, Mapping[str, Any]], config: ModelConfig, dtype: str) -> None:
    """`results["limit_seconds"]`: the least time of every row, from the medians of what the machine showed."""
    bandwidth, rate = (
        median(look[name] for look in results["machine_speed"])
        for name in ("bytes_per_second", "operations_per_second")
    )
    results["limit_seconds"] = {
        row: least_seconds(config, len(asked["prompts"][0]), asked["lengths"], bytes_of(dtype), bandwidth, rate)
        for row, asked in rows.items()
    }


def table(results: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Tokens a second: the median (slowest–fastest round), the ratio of the pairs, the part of the limit."""
    names = list(next(iter(results["seconds"].values())))
    head = f"{'generated tokens a second':<27}" + "".join(f"{name:>30}" for name in names)
    head += f"{'ratio':>8}" * (len(names) - 1) + f"{'limit':>10}{'of it':>8}"
    lines = [head]
    for row, columns in results["seconds"].items():
        tokens = sum(rows[row]["lengths"])
        line = f"{row:<27}"
        for name in names:
            slow, middle, fast = (tokens / pick(columns[name]) for pick in (max, median, min))
            line += f"{f'{middle:,.0f} ({slow:,.0f}–{fast:,.0f})':>30}"
        for name in names[1:]:
            line += f"{ratio(columns[names[0]], columns[name]):>8.2f}"
        limit = tokens / results["limit_seconds"][row]
        lines.append(line + f"{limit:>10,.0f}{100 * tokens / median(columns[names[0]]) / limit:>6.0f} %")
    bandwidth, rate = (
        median(look[name] for look in results["machine_speed"])
        for name in ("bytes_per_second", "operations_per_second")
    )
    lines += [
        "",
        f"limit: weights read once a step at {bandwidth / 1e9:.1f} GB/s (copy), products at {rate / 1e9:.1f} GFLOP/s, "
        "both measured in this run",
    ]
    if names[1:]:
        lines.append("ratio: the peer's time over ours, pair by pair; above 1, minipaged is faster")
    for name in names[1:]:
        equal = [results["same_tokens"][row][name] for row in results["seconds"]]
        lines.append(f"requests with the same tokens from {name}: {100 * sum(equal) / len(equal):.0f} %")
    return "\n".join([*lines, *memory_lines(results.get("memory", {}))])


def memory_lines(memory: Mapping[str, Mapping[str, int | None]]) -> list[str]:
    """The most memory that each engine's process held, in MB (10⁶ bytes), and what ours is made of."""
    lines = []
    for name, found in memory.items():
        peak = found.get("peak_bytes")
        if peak is None:  # this system does not say
            continue
        line = f"memory of {name}: peak {peak / 1e6:,.0f} MB"
        if "weight_bytes" in found:
            weights, pool, imported = (found[f"{what}_bytes"] for what in ("weight", "pool", "imported"))
            line += (
                f" = weights {weights / 1e6:,.0f} + pool {pool / 1e6:,.0f} + {(peak - weights - pool) / 1e6:,.0f} for "
                f"Python, torch and the rest, {imported / 1e6:,.0f} of them before the model was loaded"
            )
        lines.append(line)
    return lines


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of the peer's time over ours: above 1, we are faster."""
    return median(their / our for our, their in zip(ours, theirs, strict=True))


def run(
    folder: Path,
    *,
    against: str | None,
    python: str,
    dtype: str,
    threads: int,
    batches: Sequence[int],
    rounds: int,
    block_size: int = 32,
    progress: bool = False,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """(results, rows). Raises OSError or RuntimeError, naming the engine, when one cannot be started or fails."""
    config = ModelConfig.from_folder(folder)
    rows = work.rows(batches, work.PROMPT_TOKENS, config.vocab_size)
    settings = {"folder": str(folder), "dtype": dtype, "threads": threads, "block_size": block_size}
    settings["sequences"] = max(batches)
    engines: list[PeerProcess] = []
    try:
        for name, interpreter in (("minipaged", sys.executable), (against, python)):
            if name:
                try:
                    engines.append(start(name, interpreter, settings))
                except (OSError, RuntimeError) as error:
                    raise RuntimeError(f"{name} could not be started with {interpreter}: {error}") from error
        results = measure(engines, rows, rounds, machine_question(config, batches, dtype), progress)
    finally:
        for engine in engines:
            engine.close()
    add_limits(results, rows, config, dtype)
    return results, rows
