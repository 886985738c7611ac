"""The lessons' driver gives the model's own logits, whatever the blocks, and says when the pool is too small."""

import pytest
import torch

from minipaged.course.driver import Driver
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.model import load_model


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")[0]


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_paged_steps_equal_whole_sequences(model, block_size):
    driver = Driver(model, KVCacheManager(60, block_size, free_order=[7, 1, 3]))
    requests = [CacheRequest("A", list(range(10, 17))), CacheRequest("B", list(range(30, 35)))]
    for _ in range(6):
        before = [list(request.token_ids) for request in requests]
        driver.greedy(*requests)
        for request, ids in zip(requests, before, strict=True):
            assert request.token_ids[-1] == int(model.forward_dense(torch.tensor(ids))[-1].argmax())
    driver.manager.check_integrity()


def test_one_batch_mixes_prefill_and_decode(model):
    driver = Driver(model, KVCacheManager(9, 4, free_order=[7, 1, 5, 2]))
    first, second = CacheRequest("A", list(range(10, 17))), CacheRequest("B", list(range(30, 36)))
    driver.greedy(first)
    logits = driver.step(first, second)
    assert driver.positions == {"A": range(7, 8), "B": range(6)}
    assert driver.metadata.query_lens.tolist() == [1, 6]
    for row, request in zip(logits, (first, second), strict=True):
        torch.testing.assert_close(row, model.forward_dense(torch.tensor(request.token_ids))[-1], rtol=1e-4, atol=1e-4)


def test_forked_requests_copy_before_they_write(model):
    driver = Driver(model, KVCacheManager(9, 4, free_order=[7, 1, 3]))
    first = CacheRequest("A1", list(range(10, 17)))
    driver.step(first)
    second = CacheRequest("A2", list(first.token_ids))
    driver.manager.fork(first, second)
    first.append_token(50)
    second.append_token(60)
    logits = driver.step(first, second)
    assert [driver.manager.block_ids(i) for i in ("A1", "A2")] == [[7, 3], [7, 1]]
    for row, request in zip(logits, (first, second), strict=True):
        torch.testing.assert_close(row, model.forward_dense(torch.tensor(request.token_ids))[-1], rtol=1e-4, atol=1e-4)


def test_a_small_pool_is_named(model):
    driver = Driver(model, KVCacheManager(1, 4))
    with pytest.raises(RuntimeError, match=r"'A' needs slots for 7 more tokens, but only 1 of 1 blocks"):
        driver.step(CacheRequest("A", list(range(10, 17))))
