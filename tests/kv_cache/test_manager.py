"""The manager: the paper's figures, copy-on-write, refusals, hits counted honestly, misses explained."""

import pytest

from minipaged.kv_cache import BlockPool, BlockTable, CacheRequest, IntegrityError, KVCacheManager, PrefixCache
from minipaged.kv_cache.events import AllBlocksCleared, BlockRemoved, BlockStored

PROMPT = list(range(100, 107))  # "Four score and seven years ago our": 7 tokens


def start(manager, request, n=None):
    blocks, hit = manager.get_computed_blocks(request)
    got = manager.allocate_slots(request, n or request.num_tokens - hit, hit, blocks)
    if got is not None:
        request.num_computed_tokens = hit + (n or request.num_tokens - hit)
    return hit


def decode(manager, request, token):
    request.append_token(token)
    got = manager.allocate_slots(request, 1)
    if got is not None:
        request.num_computed_tokens += 1
    return got


def state(manager):
    return (
        [b.block_id for b in manager.pool.free_queue],
        [(b.ref_cnt, b.block_hash) for b in manager.pool.blocks],
    )


def test_figure_6():
    manager = KVCacheManager(9, 4, free_order=[7, 1, 3])
    request = CacheRequest("r", PROMPT)
    start(manager, request)
    table = manager.block_table("r")
    assert table.rows(7) == [(7, 4), (1, 3)]
    assert decode(manager, request, 107) == []  # "fathers" fills the last slot; no block is taken
    assert table.rows(8) == [(7, 4), (1, 4)]
    decode(manager, request, 108)
    assert table.rows(9) == [(7, 4), (1, 4), (3, 1)]
    assert table.slot_mapping(2, 3) + table.slot_mapping(5, 6) + table.slot_mapping(8, 9) == [30, 5, 12]


def test_figure_8_copy_on_write():
    manager = KVCacheManager(9, 4, free_order=[7, 1, 3])
    a1 = CacheRequest("a1", PROMPT)
    start(manager, a1)
    a2 = CacheRequest("a2", PROMPT)
    manager.fork(a1, a2)
    assert [manager.pool.blocks[i].ref_cnt for i in (7, 1)] == [2, 2]
    decode(manager, a1, 107)  # "fathers": block 1 is shared, so it is copied to block 3
    assert manager.block_ids("a1") == [7, 3]
    decode(manager, a2, 108)  # "mothers": the count is 1 now, written in place
    assert manager.block_ids("a2") == [7, 1]
    assert manager.take_copies() == [(1, 3)]
    assert [manager.pool.blocks[i].ref_cnt for i in (7, 1, 3)] == [2, 1, 1]
    manager.check_integrity()


def test_fork_at_a_full_last_block_copies_nothing():
    manager = KVCacheManager(9, 4)
    a1 = CacheRequest("a1", list(range(8)))
    start(manager, a1)
    a2 = CacheRequest("a2", list(range(8)))
    manager.fork(a1, a2)
    decode(manager, a1, 8)
    decode(manager, a2, 9)
    assert manager.take_copies() == []
    assert manager.block_ids("a1")[:2] == manager.block_ids("a2")[:2]
    assert manager.block_ids("a1")[2] != manager.block_ids("a2")[2]


def test_forks_of_forks():
    manager = KVCacheManager(20, 4)
    requests = [CacheRequest("r0", PROMPT)]
    start(manager, requests[0])
    for i in range(1, 5):
        requests.append(CacheRequest(f"r{i}", PROMPT))
        manager.fork(requests[i - 1], requests[i])
    for i, request in enumerate(requests):
        decode(manager, request, i)
    assert len(manager.take_copies()) == 4  # the last writer writes in place
    for request in requests:
        manager.free(request)
        manager.check_integrity()
    assert manager.usage == 0


def test_a_source_is_held_until_the_copy_is_taken():
    manager = KVCacheManager(3, 4, enable_caching=False)
    a1, a2 = CacheRequest("a1", [1, 2]), CacheRequest("a2", [1, 2])
    start(manager, a1)
    manager.fork(a1, a2)
    decode(manager, a1, 3)
    manager.free(a2)  # the source, block 0, has no table any more
    manager.check_integrity()
    assert 0 not in [block.block_id for block in manager.pool.free_queue]
    assert manager.take_copies() == [(0, 1)]
    assert 0 in [block.block_id for block in manager.pool.free_queue]
    manager.check_integrity()


def test_a_freed_destination_drops_its_copy():
    manager = KVCacheManager(3, 4)
    a1, a2 = CacheRequest("a1", [1, 2]), CacheRequest("a2", [1, 2])
    start(manager, a1)
    manager.fork(a1, a2)
    decode(manager, a1, 3)
    manager.free(a1)
    assert manager.take_copies() == []
    manager.free(a2)
    manager.check_integrity()
    assert manager.num_free_blocks == 3


def test_fork_refused():
    manager = KVCacheManager(9, 4)
    parent, child = CacheRequest("p", PROMPT), CacheRequest("c", PROMPT)
    with pytest.raises(ValueError, match="'p' has no blocks to share"):
        manager.fork(parent, child)
    start(manager, parent, n=3)
    with pytest.raises(ValueError, match="still in prefill: 3 of 7"):
        manager.fork(parent, child)
    manager.allocate_slots(parent, 4)
    parent.num_computed_tokens = 7
    with pytest.raises(ValueError, match="does not begin with the 7 computed tokens"):
        manager.fork(parent, CacheRequest("c", [1] * 7))
    manager.fork(parent, child)
    with pytest.raises(ValueError, match="'c' already has blocks"):
        manager.fork(parent, child)
    manager.check_integrity()


def test_refused_allocation_changes_nothing_even_with_hits():
    manager = KVCacheManager(4, 2)
    first = CacheRequest("first", [1, 2, 3, 4, 5])
    start(manager, first)
    manager.free(first)
    other = CacheRequest("other", [9, 9])
    start(manager, other)
    big = CacheRequest("big", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    blocks, hit = manager.get_computed_blocks(big)
    assert hit == 4
    before = state(manager)
    # Two hits are free, one block is in use: of the 3 free ones only 1 is left for the 3 that are missing.
    assert manager.allocate_slots(big, 5, hit, blocks) is None
    assert state(manager) == before
    assert not manager.has_blocks("big")


@pytest.mark.parametrize("block_size", [0, -4, 2.5, None])
def test_bad_block_size(block_size):
    with pytest.raises(ValueError, match=f"block_size is {block_size!r}"):
        KVCacheManager(4, block_size)


def test_bad_calls_change_nothing():
    manager = KVCacheManager(8, 4)
    request = CacheRequest("r", PROMPT)
    for n in (0, -1):
        with pytest.raises(ValueError, match=f"num_new_tokens is {n}"):
            manager.allocate_slots(request, n)
    with pytest.raises(ValueError, match="num_new_computed_tokens is 4, but 0 computed blocks"):
        manager.allocate_slots(request, 1, 4, [])
    with pytest.raises(ValueError, match="from_token is -1"):
        manager.uncache(request, -1)
    start(manager, request)
    with pytest.raises(ValueError, match="already has a block table"):
        manager.allocate_slots(request, 1, 4, manager.block_table("r").blocks[:1])
    with pytest.raises(KeyError, match="'nobody' has no block table"):
        manager.block_table("nobody")
    with pytest.raises(IndexError, match=r"positions 0 … 8 asked, .* hold positions 0 … 7"):
        manager.block_table("r").slot_mapping(0, 9)
    with pytest.raises(ValueError, match="has no tokens"):
        CacheRequest("empty", [])
    manager.check_integrity()


def test_a_pool_without_prefix_cache_needs_caching_off():
    pool = BlockPool(4, enable_caching=False)
    with pytest.raises(ValueError, match="BlockPool has no prefix_cache"):
        KVCacheManager(4, 4, pool=pool)
    KVCacheManager(4, 4, pool=pool, enable_caching=False)


def test_hit_is_at_most_n_minus_1():
    manager = KVCacheManager(8, 4)
    request = CacheRequest("r", list(range(8)))
    start(manager, request)
    again = CacheRequest("again", list(range(8)))
    assert start(manager, again) == 4
    assert manager.block_ids("again") == [0, 2]


def test_salt_adapter_and_image_keep_requests_apart():
    tokens = list(range(9))
    keys = [{}, {"cache_salt": "x"}, {"adapter": "x"}, {"images": [("x", 0, 2)]}, {"images": [("x", 1, 2)]}]
    from minipaged.kv_cache import ImageSpan

    manager = KVCacheManager(40, 4)
    for i, key in enumerate(keys):
        if "images" in key:
            key = {"images": [ImageSpan(*span) for span in key["images"]]}
        request = CacheRequest(f"r{i}", tokens, **key)
        assert start(manager, request) == 0
    assert start(manager, CacheRequest("same", tokens, cache_salt="x")) == 8


def test_uncache_takes_back_what_never_ran():
    manager = KVCacheManager(8, 4)
    request = CacheRequest("r", list(range(9)))
    start(manager, request)
    manager.uncache(request, 4)
    manager.free(request)
    assert manager.get_computed_blocks(CacheRequest("s", list(range(9))))[1] == 4
    manager.check_integrity()


def test_hits_are_counted_once():
    manager = KVCacheManager(4, 4)
    first = CacheRequest("first", list(range(9)))
    start(manager, first)
    second = CacheRequest("second", list(range(16)))
    start(manager, second)  # refused: hits 2 blocks, needs 2 more, 1 is free
    assert not manager.has_blocks("second")
    manager.free(first)
    first.num_computed_tokens = 0
    start(manager, first)  # computed again after a preemption
    stats = manager.prefix_stats
    assert (stats.requests, stats.queries, stats.hits) == (1, 9, 0)
    assert (stats.recomputed_requests, stats.recomputed_queries, stats.recomputed_hits) == (1, 9, 8)
    assert stats.hit_rate == stats.recent_hit_rate == 0


def test_events_tell_the_story():
    manager = KVCacheManager(2, 2, enable_events=True)
    request = CacheRequest("r", [1, 2, 3, 4])
    start(manager, request)
    hashes = tuple(request.block_hashes)
    assert manager.take_events() == [BlockStored(hashes, None, (1, 2, 3, 4), 2)]
    manager.free(request)
    start(manager, CacheRequest("s", [7]))
    assert manager.take_events() == [BlockRemoved(hashes[1])]
    with pytest.raises(ValueError, match="enable_events=True"):
        KVCacheManager(2, 2).take_events()


def test_reset_is_an_event_and_is_refused_in_use():
    manager = KVCacheManager(4, 2, enable_events=True)
    request = CacheRequest("r", [1, 2, 3])
    start(manager, request)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    manager.take_events()
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared()]
    assert manager.get_computed_blocks(CacheRequest("s", [1, 2, 3]))[1] == 0
    manager.check_integrity()


def test_why_no_hit():
    manager = KVCacheManager(4, 4, explain_misses=True)
    request = CacheRequest("r", list(range(9)))
    start(manager, request)

    def why(tokens, **keys):
        return manager.why_no_hit(CacheRequest("q", tokens, **keys))

    assert why([0, 1, 2, 3]).reason == "shorter than a block"
    assert "at least 5 tokens" in str(why([0, 1, 2, 3]))
    assert why(list(range(9))).reason == "all found"
    assert why(list(range(9)), cache_salt="other").reason == "extra keys differ"
    different = why([0, 1, 2, 3, 9, 9, 9, 9, 9])
    assert (different.reason, different.block, different.hit_tokens) == ("tokens differ or never seen", 1, 4)
    manager.free(request)
    start(manager, CacheRequest("big", [50] * 15))
    assert why(list(range(9))).reason == "evicted"
    assert KVCacheManager(4, 4, enable_caching=False).why_no_hit(request).reason == "caching off"


def test_integrity_counts_the_tables():
    manager = KVCacheManager(8, 4)
    request = CacheRequest("r", PROMPT)
    start(manager, request)
    manager.pool.touch(manager.block_table("r").blocks[:1])
    with pytest.raises(IntegrityError, match="block 0 has ref_cnt 2, but 1 tables point to it"):
        manager.check_integrity()


def test_a_subclass_may_name_blocks_its_own_way():
    class Unchained(PrefixCache):
        def hash_block(self, parent_hash, token_ids, keys):
            return bytes(token_ids)

    manager = KVCacheManager(8, 2, prefix_cache=Unchained())
    start(manager, CacheRequest("r", [1, 2, 3, 4, 5]))
    assert manager.get_computed_blocks(CacheRequest("s", [3, 4, 9]))[1] == 2  # equal block, other past: it hits


@pytest.mark.parametrize("wrong", ["3", 3.0, None, 0])
def test_new_tokens_are_counted_in_whole_numbers(wrong):
    manager = KVCacheManager(4, 4)
    with pytest.raises(ValueError, match="it must be a whole number: allocate for at least 1 token"):
        manager.allocate_slots(CacheRequest("r", [1, 2, 3]), wrong)
    assert manager.pool.num_free_blocks == 4


@pytest.mark.parametrize("tokens", [[1, 2.5], ["a"], "text", [None], [2**70], 7.5])
def test_tokens_are_whole_numbers(tokens):
    with pytest.raises(TypeError, match="request 'r': token_ids must be whole numbers"):
        CacheRequest("r", tokens)
    request = CacheRequest("r", [1])
    with pytest.raises(TypeError, match="is no token id"):
        request.append_token(tokens)
    assert request.token_ids == [1]


@pytest.mark.parametrize("name", ["cache_salt", "adapter"])
def test_extra_keys_are_texts(name):
    with pytest.raises(TypeError, match=f"request 'r': {name} is 7 of type int; give a text"):
        CacheRequest("r", [1], **{name: 7})


class FragileTable(BlockTable):
    """A learner's table that raises where it is told to."""

    fails_at = ""

    def append_blocks(self, blocks):
        if self.fails_at == "append before":
            raise RuntimeError("my table is broken")
        super().append_blocks(blocks)
        if self.fails_at == "append after":
            raise RuntimeError("my table is broken")

    def replace_block(self, index, block):
        if self.fails_at == "replace":
            raise RuntimeError("my table is broken")
        return super().replace_block(index, block)


@pytest.mark.parametrize("moment", ["first", "hits", "more", "copy", "fork"])
@pytest.mark.parametrize("fails_at", ["append before", "append after", "replace"])
def test_a_table_that_raises_loses_no_block(monkeypatch, moment, fails_at):
    manager = KVCacheManager(12, 4, block_table=FragileTable)
    old, new = CacheRequest("old", list(range(11))), CacheRequest("new", list(range(11)))
    if moment != "first":
        start(manager, old)
    if moment == "copy":
        old.append_token(99)
        manager.fork(old, child := CacheRequest("child", [*old.token_ids]))
        new = child
    if moment == "more":
        new = old
        new.append_token(11)
        new.append_token(12)
        new.num_computed_tokens = 12
    monkeypatch.setattr(FragileTable, "fails_at", fails_at)
    try:
        if moment == "fork":
            manager.fork(old, new)
        elif moment in ("more", "copy"):
            manager.allocate_slots(new, 1)
        else:
            start(manager, new)
    except RuntimeError:
        manager.check_integrity()
    monkeypatch.setattr(FragileTable, "fails_at", "")
    manager.take_copies()
    for request in (old, new):
        manager.free(request)
    manager.check_integrity()
    assert manager.usage == 0
