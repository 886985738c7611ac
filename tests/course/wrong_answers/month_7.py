"""Month 7: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong


def changed(code: str, *changes: tuple[str, str]) -> str:
    """The code with some places changed: what a learner might have written instead."""
    for before, after in changes:
        assert code.count(before) == 1, before
        code = code.replace(before, after)
    return code


NAMES = """
today = {
    "get_cached_blocks": "KVCacheManager.get_computed_blocks",
    "BlockSpaceManager": "KVCacheManager",
    "BlockAllocator": "BlockPool",
    "PhysicalTokenBlock": "KVCacheBlock",
    "PhysicalTokenBlock.ref_count": "KVCacheBlock.ref_cnt",
    "append_slots": "KVCacheManager.allocate_slots",
    "free_blocks, a list": "FreeKVCacheBlockQueue",
    "cached_block_hash_to_block, a dict": "BlockHashToBlockMap",
}
"""
TAKE = """
def take(pool, n, block_size):
    free, total = pool.num_free_blocks, pool.num_blocks
    if n > free:
        raise ValueError(f"asked for {n} blocks of {block_size} tokens, {free} of {total} are free; send fewer")
    return pool.get_new_blocks(n)
"""
SLOTS = """
    manager = make_manager(8, 4)
    first = run(manager, "first", list(range(9)))
    ids = manager.block_ids("first")
    slots = manager.block_table("first").slot_mapping(0, 9)
    assert slots == [ids[p // 4] * 4 + p % 4 for p in range(9)]
"""
ENDS = """
    manager.free(first)
    assert manager.num_free_blocks == 8
"""
TESTS = "\ndef pool_tests(make_manager):" + SLOTS + ENDS
PLAN = """
plan = {
    "metric": "vllm:kv_cache_reusable_blocks",
    "kind": "gauge",
    "issue": "The usage counts cached blocks without a user as free, so nobody who sizes the cache can see how much of "
    "the free memory could still hit.",
    "reproduction": "Send one prompt of 1,000 tokens, wait, then curl localhost:8000/metrics: expected the blocks that "
    "can still hit, got a usage of 0.",
    "duplicates": {
        "metrics": "Nearest is vllm:kv_cache_usage_perc, which counts them as free.",
        "issues": "Searched for cached free blocks metric: nothing open.",
        "pull requests": "33435 proposed all cached blocks, was closed.",
    },
}


def measure(manager):
    return sum(block.ref_cnt == 0 and block.block_hash is not None for block in manager.pool.blocks)


def test_measure(measure):
    manager, request = KVCacheManager(8, 4), CacheRequest("r0", list(range(9)))
    assert measure(manager) == 0
    manager.allocate_slots(request, 9)
    assert measure(manager) == 0
    manager.free(request)
    assert measure(manager) == 2
"""
METRIC = '"vllm:kv_cache_reusable_blocks"'
MEASURE = "sum(block.ref_cnt == 0 and block.block_hash is not None for block in manager.pool.blocks)"

RANKS = """
def attention_on_ranks(query, key, value, wo, caches, manager, request):
    scale, backend = query.shape[-1] ** -0.5, ReferenceBackend()
    start, stop = request.num_computed_tokens, request.num_computed_tokens + len(query)
    manager.allocate_slots(request, len(query))
    total = torch.zeros(len(query), len(wo))
    for rank, (k_cache, v_cache) in enumerate(caches):
        table = manager.block_table(request.request_id)
        metadata = AttentionMetadata.build([table.block_ids], [stop], [len(query)], table.slot_mapping(start, stop))
        q, k, v, w = (part.chunk(len(caches), dim=1)[rank] for part in (query, key, value, wo))
        backend.write(k, v, k_cache, v_cache, metadata.slot_mapping)
        total += backend.attend(q, k_cache, v_cache, metadata, scale).flatten(-2) @ w.T
    return total
"""
OWN_TABLES = """
own = {}
""" + changed(
    RANKS,
    ("        table = manager.block_table(request.request_id)", """
        mine = own.setdefault((id(manager), rank), KVCacheManager(9, 4, enable_caching=False))
        mine.allocate_slots(request, len(query))
        table = mine.block_table(request.request_id)"""),
)
PARALLEL = """
class MyTensorParallelAttention:
    def __init__(self, attention, rank, num_ranks, all_reduce):
        self.head_dim, self.scale, self.all_reduce = attention.head_dim, attention.scale, all_reduce
        self.rank, self.num_ranks = rank, num_ranks
        self.num_heads, self.num_kv_heads = attention.num_heads // num_ranks, attention.num_kv_heads // num_ranks
        heads = attention.qkv_proj.weight.unflatten(0, (-1, self.head_dim))
        kinds = heads.split((attention.num_heads, attention.num_kv_heads, attention.num_kv_heads))
        self.qkv = torch.cat([kind.chunk(num_ranks)[rank] for kind in kinds]).flatten(0, 1)
        self.columns = attention.o_proj.weight.chunk(num_ranks, dim=1)[rank]

    def forward(self, hidden, cos, sin, k_cache, v_cache, metadata, backend):
        heads = F.linear(hidden, self.qkv).unflatten(-1, (-1, self.head_dim))
        query, key, value = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=-2)
        query, key = (RotaryEmbedding.rotate(part, cos, sin) for part in (query, key))
        backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)
        attended = backend.attend(query, k_cache, v_cache, metadata, self.scale)
        output = F.linear(attended.flatten(-2), self.columns)
        return self.all_reduce(output)
"""
REDUCE = "return self.all_reduce(output)"

ANSWERS = [
    Wrong("7.1", "halves a head", "replicated, not halved", """
def bytes_per_rank(bytes_per_token, num_kv_heads, num_ranks):
    return bytes_per_token // num_ranks
"""),
    Wrong("7.1", "everything everywhere", "its own heads only", """
def bytes_per_rank(bytes_per_token, num_kv_heads, num_ranks):
    return bytes_per_token
"""),
    Wrong("7.1", "no head at all", "replicated, not halved", """
def bytes_per_rank(bytes_per_token, num_kv_heads, num_ranks):
    return bytes_per_token // num_kv_heads * (num_kv_heads // num_ranks)
"""),
    Wrong("7.1", "takes 8 heads for granted", "replicated, not halved", """
def bytes_per_rank(bytes_per_token, num_kv_heads, num_ranks):
    return bytes_per_token // min(8, num_ranks)
"""),
    Alternative("7.1", "divides by the smaller one", """
def bytes_per_rank(bytes_per_token, num_kv_heads, num_ranks):
    return bytes_per_token // min(num_kv_heads, num_ranks)
"""),
    Wrong("7.2", "a table for each rank", "One manager", OWN_TABLES),
    Wrong("7.2", "blocks for each rank", "One manager", changed(
        RANKS, ("        table = manager.block_table(request.request_id)", """
        own = CacheRequest(f"rank {rank}", request.token_ids, start)
        manager.allocate_slots(own, len(query))
        table = manager.block_table(own.request_id)"""))),
    Wrong("7.2", "another type", "One rank is plain attention", changed(
        RANKS, ("return total", "return (total + 1).double()"))),
    Alternative("7.2", "in double precision", changed(RANKS, ("return total", "return total.double()"))),
    Wrong("7.2", "no scale", "One rank is plain attention", changed(RANKS, ("metadata, scale)", "metadata, 1.0)"))),
    Wrong("7.2", "slots from 0", "new tokens start at", changed(
        RANKS, ("table.slot_mapping(start, stop)", "table.slot_mapping(0, len(query))"))),
    Wrong("7.2", "all tokens each time", "the new tokens, not all", changed(
        RANKS, ("allocate_slots(request, len(query))", "allocate_slots(request, request.num_tokens)"))),
    Wrong("7.2", "what the first rank has", "that is the all-reduce", changed(
        RANKS, ("        total += ", "        total += (rank == 0) * "))),
    Wrong("7.2", "the mean", "A sum, not a mean", changed(RANKS, ("return total", "return total / len(caches)"))),
    Wrong("7.2", "every second head", "cut in the same places", changed(
        RANKS, ("        backend.write(", "        q = query[:, rank :: len(caches)]\n        backend.write("))),
    Wrong("7.2", "every second KV head", "in order", changed(
        RANKS, ("        backend.write(", "        k = key[:, rank :: len(caches)].flip(1)\n        backend.write("))),
    Alternative("7.2", "a list of parts", """
def attention_on_ranks(query, key, value, wo, caches, manager, request):
    backend, new, size = ReferenceBackend(), len(query), len(caches)
    manager.allocate_slots(request, new)
    past = request.num_computed_tokens
    table = manager.block_table(request.request_id)
    slots = table.slot_mapping(past, past + new)
    metadata = AttentionMetadata.build([table.block_ids], [past + new], [new], slots)
    heads, kv_heads, dim = query.shape[1] // size, key.shape[1] // size, query.shape[2]
    parts = []
    for rank in range(size):
        mine, kv = slice(rank * heads, (rank + 1) * heads), slice(rank * kv_heads, (rank + 1) * kv_heads)
        backend.write(key[:, kv], value[:, kv], *caches[rank], metadata.slot_mapping)
        attended = backend.attend(query[:, mine], *caches[rank], metadata, dim**-0.5)
        columns = wo[:, rank * heads * dim : (rank + 1) * heads * dim]
        parts.append(torch.einsum("thd,ohd->to", attended, columns.unflatten(1, (heads, dim))))
    return torch.stack(parts).sum(0)
"""),
    Wrong("7.3", "the old name", "Renamed", changed(
        NAMES, ('"KVCacheManager.get_computed_blocks"', '"KVCacheManager.get_cached_blocks"'))),
    Wrong("7.3", "ref_count", "Renamed", changed(NAMES, ('"KVCacheBlock.ref_cnt"', '"KVCacheBlock.ref_count"'))),
    Wrong("7.3", "another method", "for something else", changed(
        NAMES, ('"KVCacheManager.allocate_slots"', '"BlockPool.get_new_blocks"'))),
    Wrong("7.3", "the attribute instead of the class", "Of which class is it?", changed(
        NAMES, ('"FreeKVCacheBlockQueue"', '"BlockPool.free_block_queue"'))),
    Wrong("7.3", "one is missing", "Keep the keys", changed(NAMES, ('    "BlockAllocator": "BlockPool",\n', ""))),
    Wrong("7.3", "the other attribute", "Of which class is it?", changed(
        NAMES, ('"BlockHashToBlockMap"', '"BlockPool.cached_block_hash_to_block"'))),
    Wrong("7.3", "in lower case", "case count: BlockPool", changed(NAMES, ('"BlockPool"', '"blockpool"'))),
    Wrong("7.3", "with its file", "without the file", changed(NAMES, ('"BlockPool"', '"block_pool.py BlockPool"'))),
    Alternative("7.3", "as a call, and with a blank", changed(
        NAMES, ('"KVCacheManager.allocate_slots"', '"allocate_slots()"'), ('"BlockPool"', '"BlockPool "'))),
    Alternative("7.3", "without the classes of methods", changed(
        NAMES, ('"KVCacheManager.get_computed_blocks"', '"get_computed_blocks"'),
        ('"KVCacheBlock.ref_cnt"', '"ref_cnt"'))),
    Wrong("7.4", "requests = tokens", "Divide", "concurrency, fit = 123456, 241"),
    Wrong("7.4", "whole requests only", "two digits", "concurrency, fit = 30, 241"),
    Wrong("7.4", "upside down", "Upside down", "concurrency, fit = 4096 / 123456, 241"),
    Wrong("7.4", "the wrong way round", "The concurrency comes first", "concurrency, fit = 241, 30.14"),
    Wrong("7.4", "a part of a request", "keeps the whole ones", "concurrency, fit = 30.14, 7716 / 32"),
    Wrong("7.4", "tokens, and a part of a request", "only whole ones count", "concurrency, fit = 30.14, 123456 / 500"),
    Wrong("7.4", "forgets the last block", "partly filled block", "concurrency, fit = 30.14, 246"),
    Wrong("7.4", "rounds each request down", "have no place", "concurrency, fit = 30.14, 248"),
    Alternative("7.4", "by blocks", "concurrency, fit = 7716 / 256, 7716 // -(-500 // 16)"),
    Wrong("7.5", "the pool's own message", "How many tokens is that?", """
def take(pool, n, block_size):
    return pool.get_new_blocks(n)
"""),
    Wrong("7.5", "no total", "What would you need at 3 a.m.?", changed(TAKE, ("{free} of {total} are", "{free} are"))),
    Wrong("7.5", "no way out", "Say it, with the name of the setting",
          changed(TAKE, ("are free; send fewer", "are there"))),
    Wrong("7.5", "'free' is no way out", "Say it, with the name of the setting",
          changed(TAKE, ("{free} of {total} are free; send fewer", "{free} free of {total}"))),
    Wrong("7.5", "a comparison is no way out", "Say it, with the name of the setting",
          changed(TAKE, ("are free; send fewer", "are free: {n} is larger than {free}, fewer blocks than asked for"))),
    Wrong("7.5", "a value is no way out", "Say it, with the name of the setting",
          changed(TAKE, ("{free} of {total} are free; send fewer", "{free} free, num_blocks={total}"))),
    Wrong("7.5", "another kind of error", "raise a ValueError", changed(TAKE, ("ValueError", "RuntimeError"))),
    Alternative("7.5", "advises to wait", changed(TAKE, ("send fewer", "try again in a minute"))),
    Alternative("7.5", "advises to buy", changed(TAKE, ("send fewer", "this model needs more GPU memory"))),
    Wrong("7.5", "no numbers", "What would you need at 3 a.m.?", """
def take(pool, n, block_size):
    if n > pool.num_free_blocks:
        raise ValueError("out of KV cache memory, use a larger pool")
    return pool.get_new_blocks(n)
"""),
    Wrong("7.5", "takes some first", "Nothing may be taken before", """
def take(pool, n, block_size):
    total, free, taken = pool.num_blocks, pool.num_free_blocks, []
    for _ in range(n):
        if not pool.num_free_blocks:
            raise ValueError(f"asked for {n} blocks of {block_size}, {free} of {total} free; raise num_blocks")
        taken += pool.get_new_blocks(1)
    return taken
"""),
    Wrong("7.5", "None instead of an error", "first, and raise", """
def take(pool, n, block_size):
    return pool.get_new_blocks(n) if n <= pool.num_free_blocks else None
"""),
    Wrong("7.5", "refuses the last block", "5 of 6 are free", changed(TAKE, ("n > free", "n >= free")), status="error"),
    Alternative("7.5", "explains the pool's own error", """
def take(pool, n, block_size):
    try:
        return pool.get_new_blocks(n)
    except ValueError as error:
        total, free = pool.num_blocks, pool.num_free_blocks
        raise ValueError(f"{n} blocks (of {block_size} tokens) requested, free {free:,}, total {total:,}: lower "
                         "max_num_seqs or shorten the prompts") from error
"""),
    Wrong("7.6", "coverage only", "Assert state", """
def pool_tests(make_manager):
    manager = make_manager(8, 4)
    first = run(manager, "first", list(range(9)))
    second = run(manager, "second", list(range(9)))
    look_up(manager, list(range(9)))
    manager.free(first)
    manager.free(second)
    run(manager, "large", list(range(60)))
"""),
    Wrong("7.6", "two bugs of eight", "given back once more", TESTS),
    Wrong("7.6", "wrong about what is right", "on healthy code proves nothing", TESTS + """
    assert look_up(manager, list(range(9))) == 9
"""),
    Wrong("7.6", "fails always", "on healthy code proves nothing", """
def pool_tests(make_manager):
    raise AssertionError("bug!")
"""),
    Wrong("7.6", "looks at names", "Assert state", """
def pool_tests(make_manager):
    manager = make_manager(8, 4)
    assert make_manager.__name__ == "make_manager" and type(manager).__name__ == "KVCacheManager"
    assert type(manager.pool).__name__ == "BlockPool" and type(manager.pool.prefix_cache).__name__ == "PrefixCache"
"""),
    Wrong("7.6", "looks at types", "on healthy code proves nothing", """
def pool_tests(make_manager):
    assert type(make_manager(8, 4).pool) is BlockPool
"""),
    Wrong("7.6", "guesses", "on healthy code proves nothing", """
import random
dice = random.Random(0)
def pool_tests(make_manager):
    assert dice.random() < 0.9
"""),
    Wrong("7.6", "returns what it should assert", "not `return condition`", """
def pool_tests(make_manager):
    return make_manager(8, 4).num_free_blocks == 8
"""),
    Wrong("7.6", "pytest.raises, wrong about what is right", "on healthy code proves nothing", """
import pytest
def pool_tests(make_manager):
    with pytest.raises(KeyError):
        make_manager(8, 4).num_free_blocks
"""),
    Alternative("7.6", "with pytest.raises", "import pytest\n" + TESTS + """
    assert [block.block_id for block in manager.pool.free_queue] == [ids[2], 3, 4, 5, 6, 7, ids[1], ids[0]]
    (block,) = manager.pool.get_new_blocks(1)
    manager.pool.free_blocks([block])
    with pytest.raises(ValueError):
        manager.pool.free_blocks([block])
"""),
    Wrong("7.6", "never ends", "Does every loop end?", """
def pool_tests(make_manager):
    manager = make_manager(8, 4)
    while manager.num_free_blocks:
        manager.pool.free_blocks(manager.pool.get_new_blocks(1))
"""),
    Wrong("7.6", "asks for the proof", "check_integrity is not there", """
def pool_tests(make_manager):
    manager = make_manager(8, 4)
    run(manager, "first", list(range(9)))
    manager.check_integrity()
""", status="error"),
    Wrong("7.6", "counts its own calls", "on healthy code proves nothing", """
calls = []
def pool_tests(make_manager):
    calls.append(1)
    assert len(calls) == 1
"""),
    Alternative("7.6", "five of eight, with a model of its own", TESTS + """
    assert [block.block_id for block in manager.pool.free_queue] == [ids[2], 3, 4, 5, 6, 7, ids[1], ids[0]]
    first, second = run(manager, "a", list(range(9))), run(manager, "b", list(range(9)))
    manager.free(first)
    owned = {number for number in manager.block_ids("b")}
    assert not owned & {block.block_id for block in manager.pool.free_queue}
"""),
    Wrong("7.7", "is there already", "Search /metrics first", changed(PLAN, (METRIC, '"vllm:num_preemptions"'))),
    Wrong("7.7", "is there, with the ending that Prometheus adds", "Search /metrics first",
          changed(PLAN, (METRIC, '"vllm:num_preemptions_total"'))),
    Wrong("7.7", "was renamed", "Search /metrics first", changed(PLAN, (METRIC, '"vllm:gpu_cache_usage_perc"'))),
    Wrong("7.7", "the same in other words", "says the same", changed(PLAN, (METRIC, '"vllm:kv_cache_usage_ratio"'))),
    Wrong("7.7", "can be computed", "can be computed", changed(PLAN, (METRIC, '"vllm:prefix_cache_hit_rate"'))),
    Wrong("7.7", "was proposed before", "what became of it", changed(
        PLAN, (METRIC, '"vllm:num_prefix_cached_blocks"'), ("33435 proposed all", "Somebody proposed all"))),
    Wrong("7.7", "no duplicate check", "A reviewer asks", changed(PLAN, ('"duplicates"', '"notes"'))),
    Wrong("7.7", "no pull requests", "the closed ones too", changed(PLAN, ('"pull requests"', '"forum"'))),
    Wrong("7.7", "did not look at /metrics", "Search /metrics first",
          changed(PLAN, ("Nearest is vllm:kv_cache_usage_perc, which", "I looked there, and the usage"))),
    Wrong("7.7", "nothing to do again", "the command or the code", changed(
        PLAN, ("then curl localhost:8000/metrics: expected the blocks", "then look: there should be the blocks"))),
    Wrong("7.7", "measures the usage", "under another name", changed(PLAN, (MEASURE, "manager.usage"))),
    Wrong("7.7", "measures the blocks in use", "can be computed from vllm:kv_cache_usage_perc", changed(
        PLAN, (MEASURE, "sum(block.ref_cnt > 0 for block in manager.pool.blocks)"))),
    Wrong("7.7", "measures the free blocks", "can be computed from vllm:kv_cache_usage_perc", changed(
        PLAN, (MEASURE, "manager.num_free_blocks"))),
    Wrong("7.7", "resets the cache by looking", "take, free and reset nothing", changed(
        PLAN, ("    return " + MEASURE, "    manager.reset_prefix_cache()\n    return " + MEASURE))),
    Wrong("7.7", "is no number", "Return the number", changed(PLAN, (MEASURE, 'float("nan")'))),
    Alternative("7.7", "what sharing saves", changed(
        PLAN, (MEASURE, "sum(max(0, block.ref_cnt - 1) for block in manager.pool.blocks)"),
        ("    manager.free(request)\n    assert measure(manager) == 2", """
    second = CacheRequest("r1", list(range(9)))
    blocks, hit = manager.get_computed_blocks(second)
    manager.allocate_slots(second, 1, hit, blocks)
    assert measure(manager) == 2"""))),
    Wrong("7.7", "never changes", "the same in every state", changed(PLAN, (MEASURE, "manager.pool.num_blocks"))),
    Wrong("7.7", "a counter that falls", "never goes down", changed(
        PLAN, ('"gauge"', '"counter"'), (MEASURE, "sum(block.ref_cnt for block in manager.pool.blocks)"))),
    Wrong("7.7", "touches what it measures", "must not touch", changed(
        PLAN, (MEASURE, "len(manager.pool.get_new_blocks(manager.num_free_blocks))"))),
    Wrong("7.7", "a test without the number", "passes without your change", changed(
        PLAN, ("assert measure(manager) == 2", "assert measure(manager) >= 0"))),
    Wrong("7.7", "a test of the wrong number", "by hand", changed(
        PLAN, ("assert measure(manager) == 2", "assert measure(manager) == 3"))),
    Alternative("7.7", "another metric: blocks that several requests share", changed(
        PLAN, (METRIC, '"vllm:kv_cache_shared_blocks"'), (MEASURE, "sum(b.ref_cnt > 1 for b in manager.pool.blocks) + "
               "sum(b.block_hash is None and b.ref_cnt == 1 for b in manager.pool.blocks)"),
        ("    assert measure(manager) == 0\n    manager.free(request)\n    assert measure(manager) == 2\n",
         "    assert measure(manager) == 1\n    manager.free(request)\n    assert measure(manager) == 0\n"))),
    Wrong("7.8", "forgot the all-reduce", "Each rank holds only part of the sum", changed(
        PARALLEL, (REDUCE, "return output"))),
    Wrong("7.8", "one cut through the packed rows", "qkv_proj is packed", changed(
        PARALLEL, ("torch.cat([kind.chunk(num_ranks)[rank] for kind in kinds]).flatten(0, 1)",
                   "heads.chunk(num_ranks)[rank].flatten(0, 1)"))),
    Wrong("7.8", "a meeting in __init__", "there is nothing to add up yet", changed(
        PARALLEL, ("        self.columns =", "        all_reduce(torch.zeros(1))\n        self.columns ="))),
    Wrong("7.8", "no forward", "Keep the names", changed(PARALLEL, ("def forward(", "def step("))),
    Wrong("7.8", "another type", "the type that hidden has", changed(PARALLEL, (REDUCE, REDUCE + ".double()"))),
    Wrong("7.8", "keys are not rotated", "not rotated yet", changed(
        PARALLEL, ("        query, key = (RotaryEmbedding.rotate(part, cos, sin) for part in (query, key))\n", ""))),
    Wrong("7.8", "values are rotated", "queries and keys only", changed(
        PARALLEL, ("query, key = (RotaryEmbedding.rotate(part, cos, sin) for part in (query, key))",
                   "query, key, value = (RotaryEmbedding.rotate(part, cos, sin) for part in (query, key, value))"))),
    Wrong("7.8", "the other rank's heads", "the other rank's heads", changed(
        PARALLEL, ("kind.chunk(num_ranks)[rank]", "kind.chunk(num_ranks)[1 - rank]"))),
    Wrong("7.8", "attends before it writes", "before it attends", changed(
        PARALLEL, ("        backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)\n", ""),
        (REDUCE, "backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)\n        " + REDUCE))),
    Wrong("7.8", "only one rank comes to the meeting", "An all-reduce is a meeting", changed(
        PARALLEL, (REDUCE, "return self.all_reduce(output) if self.rank == 0 else output"))),
    Wrong("7.8", "the mean", "A sum, not a mean", changed(PARALLEL, (REDUCE, REDUCE + " / self.num_ranks"))),
    Wrong("7.8", "meets twice", "Add up what is ready", changed(
        PARALLEL, (REDUCE, "return self.all_reduce(self.all_reduce(output)) / self.num_ranks"))),
    Wrong("7.8", "the same columns on both ranks", "cut in the same places", changed(
        PARALLEL, ("attention.o_proj.weight.chunk(num_ranks, dim=1)[rank]",
                   "attention.o_proj.weight.chunk(num_ranks, dim=1)[0]"))),
    Wrong("7.8", "all heads on each rank", "KV heads", changed(
        PARALLEL, ("attention.num_heads // num_ranks, attention.num_kv_heads // num_ranks",
                   "attention.num_heads, attention.num_kv_heads"), ("kind.chunk(num_ranks)[rank]", "kind")),
          status="error"),
    Wrong("7.8", "passes the parts through common memory", "Two processes share no memory", changed(
        PARALLEL, ("class MyTensorParallelAttention:", "parts, made = {}, [0, 0]\n\nclass MyTensorParallelAttention:"),
        ("        self.rank, self.num_ranks = rank, num_ranks", """
        self.rank, self.num_ranks = rank, num_ranks
        self.layer, made[rank] = made[rank], made[rank] + 1"""),
        (REDUCE, """
        mine = parts.setdefault(self.layer, {})
        mine[self.rank] = output
        self.all_reduce(torch.zeros(1))
        return sum(mine[rank] for rank in sorted(mine))"""))),
    Alternative("7.8", "a module with three matrices", """
class MyTensorParallelAttention(torch.nn.Module):
    def __init__(self, attention, rank, num_ranks, all_reduce):
        super().__init__()
        self.whole, self.all_reduce, dim = attention, all_reduce, attention.head_dim
        heads, kv_heads = attention.num_heads // num_ranks, attention.num_kv_heads // num_ranks
        weight, kv_start = attention.qkv_proj.weight, attention.num_heads * dim
        v_start = kv_start + attention.num_kv_heads * dim
        self.q = weight[rank * heads * dim : (rank + 1) * heads * dim]
        self.k = weight[kv_start + rank * kv_heads * dim : kv_start + (rank + 1) * kv_heads * dim]
        self.v = weight[v_start + rank * kv_heads * dim : v_start + (rank + 1) * kv_heads * dim]
        self.o = attention.o_proj.weight[:, rank * heads * dim : (rank + 1) * heads * dim]

    def forward(self, hidden, cos, sin, k_cache, v_cache, metadata, backend):
        dim = self.whole.head_dim
        query, key, value = ((hidden @ w.T).view(len(hidden), -1, dim) for w in (self.q, self.k, self.v))
        query, key = RotaryEmbedding.rotate(query, cos, sin), RotaryEmbedding.rotate(key, cos, sin)
        backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)
        attended = backend.attend(query, k_cache, v_cache, metadata, self.whole.scale)
        return self.all_reduce(attended.reshape(len(hidden), -1) @ self.o.T)
"""),
]
