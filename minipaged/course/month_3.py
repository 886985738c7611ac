"""Month 3's experiments: a story of evictions, workloads with and without the prefix cache, a guess by stopwatch."""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from minipaged.course.canvas import Figure
from minipaged.course.figures_month_3 import draw_free_queue
from minipaged.kv_cache import CacheRequest, FreeBlockQueue, KVCacheBlock, KVCacheManager, PrefixCache
from minipaged.serving import LLM, SamplingParams

# ── driving the manager by hand ──────────────────────────────────────────────────────────────────────────────


def admit(manager: KVCacheManager, request: CacheRequest) -> int | None:
    """Look a request up, allocate slots for the rest of it, count it as computed.

    Returns the tokens that hit, or None when the pool is short of blocks (nothing has changed then).
    """
    blocks, hit = manager.get_computed_blocks(request)
    if manager.allocate_slots(request, request.num_tokens - hit, hit, blocks) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    return hit


def grow(manager: KVCacheManager, request: CacheRequest, token_ids: Sequence[int]) -> None:
    """Append tokens one by one, each with its slot, as a decode does."""
    for token in token_ids:
        request.append_token(token)
        if manager.allocate_slots(request, 1) is None:
            raise RuntimeError(f"no block is free for token {request.num_tokens} of {request.request_id!r}")
        request.num_computed_tokens += 1


def serve(manager: KVCacheManager, token_ids: Sequence[int], name: str = "request") -> int:
    """A whole short life: admit a prompt and free it again. Returns the tokens that hit."""
    request = CacheRequest(name, list(token_ids))
    hit = admit(manager, request)
    if hit is None:
        raise RuntimeError(f"{request.num_tokens} tokens do not fit into {manager.num_free_blocks} free blocks")
    manager.free(request)
    return hit


def free_ids(manager: KVCacheManager) -> list[int]:
    """The free queue, front (handed out next) first."""
    return [block.block_id for block in manager.pool.free_queue]


def name_blocks(tokenizer, token_ids: list[int], block_size: int) -> list[tuple[str, bytes]]:
    """Each full block of a sequence: (its text, its hash)."""
    request = CacheRequest("named", token_ids)
    KVCacheManager(1, block_size).get_computed_blocks(request)  # hashes the full blocks, finds none
    starts = range(0, len(request.block_hashes) * block_size, block_size)
    texts = [tokenizer.decode(token_ids[start : start + block_size]).strip() for start in starts]
    return list(zip(texts, request.block_hashes, strict=True))


# ── the story of exercises 3.5 and 3.6 ───────────────────────────────────────────────────────────────────────


@dataclass
class EvictionStory:
    """Three requests over ten blocks of four, step by step; a picture and the free queue after each step."""

    captions: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    queues: list[list[int]] = field(default_factory=list)
    tables: list[dict[str, list[int]]] = field(default_factory=list)


def eviction_story() -> EvictionStory:
    """r0 (15 tokens, grows to 17), r1 (14 tokens, 10 as r0), both end, then r2 (29 tokens, 12 as r0)."""
    story, manager, contents, hits = EvictionStory(), KVCacheManager(10, 4), {}, {}
    r0 = CacheRequest("r0", list(range(15)))
    r1 = CacheRequest("r1", [*range(10), *range(50, 54)])
    r2 = CacheRequest("r2", [*range(12), *range(100, 117)])
    requests = [r0, r1, r2]

    def show(caption: str) -> None:
        for request in requests:
            for logical, block_id in enumerate(manager.block_ids(request.request_id)):
                if logical >= hits.get(request.request_id, 0) // 4:  # a block that hit keeps the name of its maker
                    contents[block_id] = f"{request.request_id}·{logical}"
        story.captions.append(caption)
        story.figures.append(draw_free_queue(manager, requests, contents))
        story.queues.append(free_ids(manager))
        story.tables.append({r.request_id: manager.block_ids(r.request_id) for r in requests})

    show("an empty pool")
    admit(manager, r0)
    show("r0 arrives: 15 tokens, 4 blocks")
    grow(manager, r0, [15, 16])
    show("r0 grows to 17 tokens: block 3 is full and gets its name, block 4 is taken")
    hits["r1"] = admit(manager, r1)
    show(f"r1 arrives: {hits['r1']} of 14 tokens hit, blocks 0 and 1 are shared")
    manager.free(r0)
    show("r0 ends: unnamed 4 to the front, named 3 and 2 to the back; r1 still uses 0 and 1")
    manager.free(r1)
    show("r1 ends: unnamed 6 to the front, named 5, 1, 0 to the back")
    hits["r2"] = admit(manager, r2)
    show(f"r2 arrives: {hits['r2']} of 29 tokens hit; 0, 1, 2 leave the queue, then 5 new blocks come from its front")
    return story


# ── workloads ────────────────────────────────────────────────────────────────────────────────────────────────

SHOP_RULES = (
    " You can return it within 30 days. Put it in the box and print the label from our website. Open your account,"
    " choose the order, and enter the new address. You can do this until we ship it. We refund you as soon as the"
    " parcel is back. It takes about five days. Please tell me your order number, and I will check it."
)
QUESTIONS = (
    "how do I return this?",
    "how do I change the address?",
    "where is my order?",
    "how do I get a refund?",
    "can I return this?",
    "when will my order arrive?",
)


@dataclass(frozen=True)
class Workload:
    """Requests that come one after the other. `prompts(answers)` gives the next prompt from the answers so far."""

    name: str
    num_requests: int
    num_new_tokens: int
    next_prompt: Callable[[list[list[int]]], list[int]]


def workloads(tokenizer, system_prompt: str) -> list[Workload]:
    """The four workloads of the lesson: three with long prompts and short answers, one the other way round."""
    rules = system_prompt + 3 * SHOP_RULES
    rng = random.Random(7)
    unique = [[rng.randrange(5, tokenizer.vocab_size) for _ in range(256)] for _ in QUESTIONS]
    chat: list[int] = []

    def next_turn(answers: list[list[int]]) -> list[int]:
        turn = len(answers)
        if turn == 0:
            chat[:] = tokenizer.encode(f"<|system|>{rules}<|end|>")
        else:
            chat.extend([*answers[-1], tokenizer.eos_token_id])
        chat.extend(tokenizer.encode(f"<|user|>{QUESTIONS[turn]}<|end|><|assistant|>"))
        return list(chat)

    return [
        Workload("shared system prompt", 6, 4, lambda a: tokenizer.encode(f"{rules} {QUESTIONS[len(a)]}")),
        Workload("multi-turn chat", 6, 8, next_turn),
        Workload("unique prompts", 6, 4, lambda a: unique[len(a)]),
        Workload("decode-heavy", 3, 48, lambda a: tokenizer.encode(f"{system_prompt} {QUESTIONS[len(a)]}")),
    ]


class TimedPrefixCache(PrefixCache):
    """A prefix cache that counts the blocks it hashes, and the time this takes."""

    def __init__(self, hash_algorithm: str = "sha256") -> None:
        super().__init__(hash_algorithm)
        self.num_hashed, self.hash_time = 0, 0.0
        plain = self.hash_block

        def timed(parent_hash: bytes | None, token_ids: Sequence[int], keys: tuple | None = None) -> bytes:
            started = perf_counter()
            name = plain(parent_hash, token_ids, keys)
            self.hash_time += perf_counter() - started
            self.num_hashed += 1
            return name

        self.hash_block = timed


@dataclass(frozen=True)
class Result:
    """What one workload cost. Times in milliseconds."""

    workload: str
    caching: bool
    asked_tokens: int
    hit_tokens: int
    computed_tokens: int
    hashed_blocks: int
    hash_ms: float
    first_token_ms: float
    total_ms: float
    texts: tuple[str, ...]


def run_workload(workload: Workload, model: tuple, caching: bool) -> Result:
    """Serve a workload's requests one after the other, on a new engine.

    `first_token_ms` is the median time to first token, without the first request (nobody has been there before it).
    """
    caches: list[TimedPrefixCache] = []

    def make_cache() -> TimedPrefixCache:
        caches.append(TimedPrefixCache())
        return caches[-1]

    llm = LLM(
        model,
        num_blocks=256,
        attention="reference",
        enable_prefix_caching=caching,
        parts={"prefix_cache": make_cache} if caching else None,
    )
    params = SamplingParams(max_tokens=workload.num_new_tokens, ignore_eos=True)
    answers, texts, waits, asked, hits = [], [], [], 0, 0
    started = perf_counter()
    for _ in range(workload.num_requests):
        prompt = workload.next_prompt(answers)
        output = llm.generate(prompt, params)[0]
        answers.append(list(output.outputs[0].token_ids))
        texts.append(output.outputs[0].text)
        waits.append(output.times.ttft)
        asked, hits = asked + len(prompt), hits + output.num_cached_tokens
    total = perf_counter() - started
    cache = caches[0] if caches else None
    return Result(
        workload.name,
        caching,
        asked,
        hits,
        llm.stats.num_scheduled_tokens,
        cache.num_hashed if cache else 0,
        1000 * cache.hash_time if cache else 0.0,
        1000 * statistics.median(waits[1:]),
        1000 * total,
        tuple(texts),
    )


# ── a guess by stopwatch ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Probe:
    """What the attacker sees of one guess, and what only the engine knows."""

    right: bool
    first_token_ms: float
    hit_tokens: int


def probe(llm: LLM, tokenizer, num_victims: int, victim_salt: str | None, attacker_salt: str | None) -> list[Probe]:
    """Another tenant asks for the victims' prompts, one guess right and one wrong for each, and looks at the clock.

    Each prompt begins with an order number (the secret), followed by a letter that everybody knows. A guess is used
    once only: it is in the cache itself afterwards.
    """
    rng, probes = random.Random(3), []
    one = SamplingParams(max_tokens=1)

    def letter(number: int) -> list[int]:
        return tokenizer.encode(f"my order number is {number}." + 4 * SHOP_RULES)

    llm.generate(letter(9), one)  # the first request of an engine warms it up
    for _ in range(num_victims):
        secret, wrong = rng.sample(range(1000, 9000), 2)
        llm.generate(letter(secret), one, cache_salt=victim_salt)
        for number in rng.sample((secret, wrong), 2):
            output = llm.generate(letter(number), one, cache_salt=attacker_salt)[0]
            probes.append(Probe(number == secret, 1000 * output.times.ttft, output.num_cached_tokens))
    return probes


def median_ms(probes: Sequence[Probe], right: bool) -> float:
    """Median time to first token of the right or of the wrong guesses."""
    return statistics.median(p.first_token_ms for p in probes if p.right == right)


# ── two small stopwatches ────────────────────────────────────────────────────────────────────────────────────


def hash_microseconds(algorithm: str, repeats: int = 5000) -> float:
    """Time to name one block of 16 tokens, the best of three rounds."""
    name, tokens, rounds = PrefixCache(algorithm).hash_block, list(range(16)), []
    for _ in range(3):
        started, parent = perf_counter(), None
        for _ in range(repeats):
            parent = name(parent, tokens, None)
        rounds.append((perf_counter() - started) / repeats * 1e6)
    return min(rounds)


def removal_milliseconds(num_blocks: int, num_hits: int) -> dict[str, float]:
    """Take `num_hits` blocks out of the far end of a free queue of `num_blocks`, from two kinds of queue."""
    blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
    hits = blocks[-num_hits:]
    times = {}
    for name, queue in (("deque: search, then close the gap", deque(blocks)), ("linked list", FreeBlockQueue(blocks))):
        started = perf_counter()
        for block in hits:
            queue.remove(block)
        times[name] = 1000 * (perf_counter() - started)
    return times
