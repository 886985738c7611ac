"""The tensors: written through slots, read through block ids; poisoned where nothing was written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kv_cache.storage import KVCacheStorage


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_scatter_then_gather(data):
    block_size = data.draw(st.integers(1, 5))
    num_blocks = data.draw(st.integers(1, 9))
    length = data.draw(st.integers(1, block_size * num_blocks))
    order = data.draw(st.permutations(range(num_blocks)))
    storage = KVCacheStorage(2, num_blocks, block_size, 3, 4)
    for cache in (*storage.k_cache, *storage.v_cache):
        cache.fill_(float("nan"))
    key, value = torch.randn(2, length, 3, 4)
    slots = torch.tensor([order[p // block_size] * block_size + p % block_size for p in range(length)])
    storage.write(1, key, value, slots)
    k, v = storage.gather(1, order, length)
    assert torch.equal(k, key)
    assert torch.equal(v, value)
    assert storage.k_cache[0].isnan().all()
    assert int((~storage.k_cache[1].isnan()).sum()) == key.numel()


def test_padding_slot_is_skipped():
    storage = KVCacheStorage(1, 2, 2, 1, 1)
    ones = torch.ones(3, 1, 1)
    storage.write(0, ones, ones, torch.tensor([-1, 2, -1]))
    assert storage.k_cache[0].flatten().tolist() == [0, 0, 1, 0]


def test_copies_read_before_they_write():
    storage = KVCacheStorage(2, 3, 1, 1, 1)
    for layer in range(2):
        storage.k_cache[layer][:] = torch.arange(3.0).view(3, 1, 1, 1)
    storage.copy_blocks([(0, 1), (1, 2)])
    for layer in range(2):
        assert storage.k_cache[layer].flatten().tolist() == [0, 0, 1]
    storage.copy_blocks([])


def test_bad_input():
    storage = KVCacheStorage(1, 2, 2, 1, 1)
    one = torch.ones(1, 1, 1)
    for slot in (4, -2):
        with pytest.raises(IndexError, match=f"slot {slot} is outside the cache's 4 slots"):
            storage.write(0, one, one, torch.tensor([slot]))
    with pytest.raises(ValueError, match="1 tokens need one slot each"):
        storage.write(0, one, one, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="length 5 asked, but 2 blocks of 2 hold 4"):
        storage.gather(0, [0, 1], 5)
    with pytest.raises(IndexError, match="block id 2 is outside the pool of 2"):
        storage.gather(0, [2], 1)
    with pytest.raises(IndexError, match="block id 9"):
        storage.copy_blocks([(0, 9)])
    with pytest.raises(ValueError, match="block 1 is the destination of two copies"):
        storage.copy_blocks([(0, 1), (1, 1)])
    with pytest.raises(ValueError, match="num_blocks is 0"):
        KVCacheStorage(1, 0, 2, 1, 1)
