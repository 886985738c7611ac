"""The work of `minipaged bench generate`, the same for every engine: prompts, lengths, the clock, the wire.

This file imports nothing of minipaged, so that the interpreter of a peer can run it too. Every engine, minipaged's
included, is a process of its own that answers one line of JSON with another (`serve`).
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PROMPT_TOKENS = 16
EQUAL_OUTPUT = 64
RAGGED_OUTPUT = (8, 64)  # each length in between is equally likely
FIRST_ID = 1  # 0 ends a text

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[list[int]]]
"""(prompts, how many tokens to generate for each) -> the generated token ids."""


def rows(batches: Sequence[int], prompt_tokens: int, vocab_size: int, seed: int = 0) -> dict[str, dict]:
    """{row: {"prompts", "lengths"}}: every batch with equal lengths, and from 2 sequences on with ragged ones."""
    rng = random.Random(seed)
    made = {}
    for kind in ("equal", "ragged"):
        for batch in batches:
            if kind == "ragged" and batch == 1:
                continue
            prompts = [[rng.randrange(FIRST_ID, vocab_size) for _ in range(prompt_tokens)] for _ in range(batch)]
            lengths = [EQUAL_OUTPUT if kind == "equal" else rng.randint(*RAGGED_OUTPUT) for _ in range(batch)]
            made[f"batch {batch}, {kind} lengths"] = {"prompts": prompts, "lengths": lengths}
    return made


def settings() -> dict:
    """What this process was started with: the last argument, as JSON. Sets the threads before torch is imported."""
    given = json.loads(sys.argv[-1])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(given["threads"])
    import torch

    torch.set_num_threads(given["threads"])
    return given


def serve(name: str, generate: Generate, memory: Mapping[str, int] | None = None) -> None:
    """Answer each line on standard input until it ends.

    {"prompts", "lengths"} -> {"seconds", "outputs"}; {"copy_bytes", "products", "dtype"} -> `measure_machine`;
    {"memory"} -> {"peak_bytes", and what `memory` says of an engine that knows where its bytes are}.
    """
    print(json.dumps({"name": name}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "copy_bytes" in asked:
            print(json.dumps(measure_machine(**asked)), flush=True)
            continue
        if "memory" in asked:
            print(json.dumps({"peak_bytes": peak_bytes(), **(memory or {})}), flush=True)
            continue
        start = time.perf_counter()
        outputs = generate(asked["prompts"], asked["lengths"])
        seconds = time.perf_counter() - start
        got = [len(output) for output in outputs]
        if got != asked["lengths"]:  # a faster engine that did less would win
            raise RuntimeError(f"{name} generated {got} tokens instead of {asked['lengths']}")
        print(json.dumps({"seconds": seconds, "outputs": outputs}), flush=True)


def peak_bytes() -> int | None:
    """The most memory that this process has had resident so far. None where the system does not say (Windows).

    Linux has the figure of this program in a file. `getrusage` is for other systems: on Linux it would count what the
    process that started this one held at that moment.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = (line.split() for line in status.read_text().splitlines())
        found = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmHWM:", "VmRSS:")}
        if found:
            return max(found.values())
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def measure_machine(copy_bytes: int, products: Sequence[tuple[int, int, int]], dtype: str) -> dict[str, float]:
    """This machine at its best with this process's threads: bytes copied and operations done in a second.

    copy_bytes: as much as the weights take, so that the same caches hold it; a copy reads and writes every byte.
    products: (rows, inner, columns) of matrix products; the rate is that of the fastest one.
    """
    import torch

    kind = getattr(torch, dtype)
    source = torch.ones(copy_bytes, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_seconds = _fastest(lambda: target.copy_(source))
    rate = 0.0
    for rows_, inner, columns in products:
        left, right = torch.ones(rows_, inner, dtype=kind), torch.ones(columns, inner, dtype=kind)
        seconds = _fastest(lambda a=left, b=right: torch.nn.functional.linear(a, b))
        rate = max(rate, 2 * rows_ * inner * columns / seconds)
    return {"bytes_per_second": 2 * copy_bytes / copy_seconds, "operations_per_second": rate}


def _fastest(work: Callable[[], object], seconds: float = 0.2) -> float:
    """Seconds of the fastest of as many repetitions as fit."""
    work()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
