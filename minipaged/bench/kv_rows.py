"""The rows of `minipaged bench kv`: the same work for any manager that an adapter makes reachable.

This file imports nothing of minipaged, so that the interpreter of a peer can run it too (see `serve`).
"""

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

clock = time.perf_counter


class Adapter(Protocol):
    """One manager's own way to do each thing. Blocks and requests are that manager's own objects."""

    name: str

    def make_pool(self, num_blocks: int, caching: bool) -> Any: ...
    def get(self, pool: Any, n: int) -> list: ...
    def free(self, pool: Any, blocks: list) -> None: ...
    def touch(self, pool: Any, blocks: list) -> None: ...
    def fill_cache(self, pool: Any, n: int) -> list: ...  # n blocks, each with a hash of its own; returns hash keys
    def lookup(self, pool: Any, keys: list) -> list: ...  # the block of each key
    def hash_block(self, algorithm: str) -> Callable: ...  # (parent, tokens) -> hash
    def make_manager(self, num_blocks: int, block_size: int) -> Any: ...
    def make_request(self, manager: Any, name: str, prompt: list[int]) -> Any: ...
    def prefill(self, manager: Any, request: Any) -> bool: ...  # look up, allocate all, advance; False: no room
    def decode(self, manager: Any, request: Any, token: int) -> bool: ...  # append, allocate 1, advance
    def finish(self, manager: Any, request: Any) -> None: ...


def best(times: list[float]) -> float:
    """The median of the faster half: robust against a neighbour on the machine."""
    faster = sorted(times)[: max(1, len(times) // 2)]
    return faster[len(faster) // 2]


def get_and_free(adapter: Adapter, n: int) -> dict[str, float]:
    pool = adapter.make_pool(100_000, True)
    gets, frees = [], []
    for _ in range(max(60, 6000 // n)):
        start = clock()
        blocks = adapter.get(pool, n)
        middle = clock()
        adapter.free(pool, blocks)
        gets.append(middle - start)
        frees.append(clock() - middle)
    return {f"get {n} of 100,000": best(gets), f"free {n}": best(frees)}


def get_with_eviction(adapter: Adapter) -> dict[str, float]:
    pool = adapter.make_pool(20_001, True)
    adapter.fill_cache(pool, 20_000)
    times = []
    for _ in range(150):
        start = clock()
        adapter.get(pool, 100)
        times.append(clock() - start)
    return {"get 100, each evicts cached content": best(times)}


def look_up_and_touch(adapter: Adapter) -> dict[str, float]:
    pool = adapter.make_pool(20_001, True)
    keys = adapter.fill_cache(pool, 20_000)[5000:5128]
    lookups, touches = [], []
    for _ in range(150):
        start = clock()
        blocks = adapter.lookup(pool, keys)
        middle = clock()
        adapter.touch(pool, blocks)
        adapter.free(pool, blocks)
        lookups.append(middle - start)
        touches.append(clock() - middle)
    return {"look up 128 hashes": best(lookups), "touch 128 and free them": best(touches)}


def hash_blocks(adapter: Adapter) -> dict[str, float]:
    rows = {}
    tokens = list(range(1000, 1016))
    for algorithm in ("sha256", "xxhash"):
        try:
            hash_block = adapter.hash_block(algorithm)
            parent = hash_block(None, tokens)
        except ModuleNotFoundError:  # the peer's environment lacks the package of this algorithm
            continue
        times = []
        for _ in range(40):
            start = clock()
            for _ in range(200):
                hash_block(parent, tokens)
            times.append((clock() - start) / 200)
        rows[f"hash a block of 16 tokens, {algorithm}"] = best(times)
    return rows


def replay(adapter: Adapter, num_requests: int = 600, seed: int = 0) -> dict[str, float]:
    """Shared system prompts, 32 requests at a time, decode to the end, a pool that has to evict and to preempt."""
    rng = random.Random(seed)
    systems = [[rng.randrange(32000) for _ in range(rng.randrange(64, 400))] for _ in range(8)]
    jobs = [
        (rng.choice(systems) + [rng.randrange(32000) for _ in range(rng.randrange(20, 300))], rng.randrange(20, 200))
        for _ in range(num_requests)
    ]
    manager = adapter.make_manager(1400, 16)
    start = clock()
    waiting = [(f"r{i}", prompt, length) for i, (prompt, length) in enumerate(jobs)][::-1]
    running: list[list] = []
    while waiting or running:
        for entry in list(running):
            if entry not in running:
                continue
            while not adapter.decode(manager, entry[0], entry[1] % 32000):
                victim = running.pop()
                adapter.finish(manager, victim[0])
                waiting.append(victim[2])
                if victim is entry:
                    break
            else:
                entry[1] -= 1
                if entry[1] == 0:
                    adapter.finish(manager, entry[0])
                    running.remove(entry)
        while waiting and len(running) < 32:
            name, prompt, length = waiting[-1]
            request = adapter.make_request(manager, name, prompt)
            if not adapter.prefill(manager, request):
                break
            running.append([request, length, waiting.pop()])
    return {f"replay of {num_requests} requests": clock() - start}


GROUPS: dict[str, Callable[[Adapter], dict[str, float]]] = {
    "get10": lambda adapter: get_and_free(adapter, 10),
    "get100": lambda adapter: get_and_free(adapter, 100),
    "get1000": lambda adapter: get_and_free(adapter, 1000),
    "evict": get_with_eviction,
    "lookup": look_up_and_touch,
    "hash": hash_blocks,
    "replay": replay,
}


def serve(adapter: Adapter) -> None:
    """Answer each line on standard input (the name of a group) with its rows in seconds, as one line of JSON."""
    print(json.dumps({"name": adapter.name}), flush=True)
    for line in sys.stdin:
        print(json.dumps(GROUPS[line.strip()](adapter)), flush=True)
