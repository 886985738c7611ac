"""The queue and the pool: order, O(1) removal, refusals that change nothing, and the integrity proof's own tests."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.kv_cache import BlockPool, FreeBlockQueue, IntegrityError, KVCacheBlock


def ids(blocks):
    return [block.block_id for block in blocks]


@given(st.lists(st.tuples(st.sampled_from(["pop", "remove", "append", "prepend"]), st.integers(0, 5)), max_size=60))
def test_queue_is_a_list(operations):
    blocks = [KVCacheBlock(i) for i in range(8)]
    queue, model, outside = FreeBlockQueue(blocks), list(blocks), []
    for name, n in operations:
        if name == "pop":
            n = min(n, len(model))
            assert queue.popleft_n(n) == model[:n]
            outside += model[:n]
            model = model[n:]
        elif name == "remove" and model:
            block = model.pop(n % len(model))
            queue.remove(block)
            outside.append(block)
        elif name == "append":
            queue.append_n(outside[:n])
            model, outside = model + outside[:n], outside[n:]
        elif name == "prepend":
            queue.prepend_n(outside[:n])
            model, outside = outside[:n] + model, outside[n:]
        assert list(queue) == model
        assert len(queue) == len(model)
        assert all((block in queue) == (block in model) for block in blocks)


def test_queue_refuses():
    block = KVCacheBlock(3)
    queue = FreeBlockQueue([block])
    with pytest.raises(ValueError, match=r"asked for 2 .* holds 1"):
        queue.popleft_n(2)
    assert ids(queue) == [3]
    queue.remove(block)
    with pytest.raises(ValueError, match="block 3 is not in the free queue"):
        queue.remove(block)


def test_order_of_the_paper():
    pool = BlockPool(8, free_order=[7, 1, 3])
    assert ids(pool.get_new_blocks(4)) == [7, 1, 3, 0]


@pytest.mark.parametrize("order", [[1, 1], [8], [-1]])
def test_bad_free_order(order):
    with pytest.raises(ValueError, match=r"free_order is .* 0 to 7"):
        BlockPool(8, free_order=order)


@pytest.mark.parametrize(("num_blocks", "null_block"), [(0, False), (-1, False), (1, True), (2.0, False), ("4", False)])
def test_bad_num_blocks(num_blocks, null_block):
    with pytest.raises(ValueError, match=re.escape(repr(num_blocks))):
        BlockPool(num_blocks, null_block=null_block)


def test_short_pool_changes_nothing():
    pool = BlockPool(3)
    pool.get_new_blocks(2)
    with pytest.raises(ValueError, match=r"asked for 2 blocks, but only 1 of 3 are free"):
        pool.get_new_blocks(2)
    assert pool.num_free_blocks == 1
    pool.check_integrity()


def test_double_free_changes_nothing():
    pool = BlockPool(4)
    a, b = pool.get_new_blocks(2)
    with pytest.raises(ValueError, match="block 1 is not in use"):
        pool.free_blocks([a, b, b])
    assert (a.ref_cnt, b.ref_cnt, pool.num_free_blocks) == (1, 1, 2)
    pool.free_blocks([a, b])
    with pytest.raises(ValueError, match="block 0 is not in use"):
        pool.free_blocks([a])
    pool.check_integrity()


def test_two_users_in_one_call():
    pool = BlockPool(2)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    pool.free_blocks([block, block])
    assert pool.num_free_blocks == 2
    pool.check_integrity()


def test_unhashed_to_the_front_hashed_to_the_back():
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(4)
    for block in blocks[:2]:
        pool.prefix_cache.insert(bytes([block.block_id]), block)
    pool.free_blocks(reversed(blocks))
    assert ids(pool.free_queue) == [3, 2, 4, 5, 1, 0]


def test_a_reused_block_is_forgotten_and_its_duplicate_stays():
    pool = BlockPool(3)
    first, second, third = pool.get_new_blocks(3)
    pool.prefix_cache.insert(b"h", first)
    pool.prefix_cache.insert(b"h", second)
    pool.prefix_cache.insert(b"h", third)
    assert pool.prefix_cache.lookup(b"h") is first
    pool.free_blocks([first])
    assert pool.prefix_cache.lookup(b"h") is first
    pool.get_new_blocks(1)
    assert pool.prefix_cache.lookup(b"h") is second
    assert pool.prefix_cache.remove(second)
    assert pool.prefix_cache.lookup(b"h") is third
    assert not pool.prefix_cache.remove(second)
    pool.check_integrity()


def test_a_block_bears_one_hash():
    pool = BlockPool(2)
    (block,) = pool.get_new_blocks(1)
    pool.prefix_cache.insert(b"a", block)
    with pytest.raises(ValueError, match="block 0 already bears a hash"):
        pool.prefix_cache.insert(b"b", block)


def test_null_block_is_never_handed_out():
    pool = BlockPool(4, null_block=True)
    assert ids(pool.get_new_blocks(3)) == [1, 2, 3]
    with pytest.raises(ValueError, match="block 0"):
        pool.free_blocks([pool.null_block])


def _leak(pool, blocks):
    blocks[0].ref_cnt = 0


def _queued_twice(pool, blocks):
    pool.free_queue.append_n([KVCacheBlock(5)])


def _negative(pool, blocks):
    blocks[0].ref_cnt = -1


def _used_and_free(pool, blocks):
    pool.free_queue.append_n(blocks[:1])


def _unknown_hash(pool, blocks):
    blocks[0].block_hash = b"nobody knows"


def _stale_hash(pool, blocks):
    pool.prefix_cache.insert(b"h", blocks[0])
    blocks[0].block_hash = None


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (_leak, "block 0 has ref_cnt 0 and is not in the free queue"),
        (_queued_twice, "block 5 stands twice"),
        (_negative, "below 0"),
        (_used_and_free, "block 0 has ref_cnt 1 and is in the free queue"),
        (_unknown_hash, "block 0 bears a hash that the prefix cache does not know"),
        (_stale_hash, "a stale hash survived"),
    ],
)
def test_integrity_finds(seed, message):
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(2)
    pool.check_integrity()
    seed(pool, blocks)
    with pytest.raises(IntegrityError, match=message):
        pool.check_integrity()
