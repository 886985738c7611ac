"""Random operations through our manager and through the naive one: every answer and the whole state are equal."""

from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kv_cache import CacheRequest, KVCacheManager
from tests.kv_cache.naive import NaiveManager

OPERATIONS = st.sampled_from(["arrive", "compute", "compute", "append", "append", "fork", "preempt", "finish", "reset"])
STEPS = st.lists(st.tuples(OPERATIONS, st.integers(0, 10**6), st.integers(1, 9)), max_size=70)


@settings(max_examples=250, deadline=None)
@given(
    num_blocks=st.integers(2, 16),
    block_size=st.integers(1, 5),
    enable_caching=st.booleans(),
    null_block=st.booleans(),
    algorithm=st.sampled_from(["sha256", "xxhash"]),
    steps=STEPS,
)
def test_same_as_naive(num_blocks, block_size, enable_caching, null_block, algorithm, steps):
    ours = KVCacheManager(num_blocks, block_size, enable_caching, null_block, hash_algorithm=algorithm)
    naive = NaiveManager(num_blocks, block_size, enable_caching, null_block)
    requests: list[CacheRequest] = []
    for number, (name, pick, n) in enumerate(steps):
        if name == "arrive" or not requests:
            tokens = [(pick >> i) % 2 for i in range(1 + pick % 17)]
            requests.append(CacheRequest(f"r{number}", tokens, cache_salt=[None, "a", "b"][pick % 3]))
            continue
        request = requests[pick % len(requests)]
        if name == "compute":
            compute(ours, naive, request, n)
        elif name == "append" and request.num_computed_tokens == request.num_tokens:
            request.append_token(n % 2)
        elif name == "fork" and ours.has_blocks(request.request_id):
            if request.num_computed_tokens >= request.num_tokens - 1:
                child = CacheRequest(f"r{number}", request.token_ids, cache_salt=request.cache_salt)
                ours.fork(request, child)
                naive.fork(request, child)
                requests.append(child)
        elif name in ("preempt", "finish"):
            ours.free(request)
            naive.free(request)
            request.num_computed_tokens = 0
            if name == "finish":
                requests.remove(request)
        elif name == "reset":
            assert ours.reset_prefix_cache() == naive.reset()
        same_state(ours, naive, requests)


def compute(ours, naive, request, n):
    hits, hit_tokens = [], 0
    if not ours.has_blocks(request.request_id):
        blocks, hit_tokens = ours.get_computed_blocks(request)
        hits = [block.block_id for block in blocks]
        assert hits == naive.lookup(request)
        n = min(n, request.num_tokens - hit_tokens)
        got = ours.allocate_slots(request, n, hit_tokens, blocks)
    else:
        n = min(n, request.num_tokens - request.num_computed_tokens)
        if n == 0:
            return
        got = ours.allocate_slots(request, n)
    expected = naive.allocate(request, n, hits)
    assert (None if got is None else [block.block_id for block in got]) == expected
    if got is not None:
        request.num_computed_tokens += hit_tokens + n
    ours.take_copies()


def same_state(ours, naive, requests):
    ours.check_integrity()
    assert [block.block_id for block in ours.pool.free_queue] == naive.free_list
    assert [block.ref_cnt for block in ours.pool.blocks] == naive.count
    assert [block.block_hash is not None for block in ours.pool.blocks] == [c is not None for c in naive.content]
    for request in requests:
        assert ours.block_ids(request.request_id) == naive.tables.get(request.request_id, [])
