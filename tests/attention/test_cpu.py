"""The Numba backend: the same numbers as the truth, from any layout and any number of threads."""

import gc
import os
import weakref

import pytest
import torch

pytest.importorskip("numba")

import numba

from minipaged.attention import AttentionMetadata, AttentionOptions, cpu, cpu_threads, get_backend
from minipaged.attention.window import with_window
from tests.attention.helpers import TOLERANCE, Batch, make_batch, relative_error


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request, monkeypatch):
    """Both ways through: one thread, and work shared out (whatever its size)."""
    monkeypatch.setattr("minipaged.attention.cpu.THREAD_WORK", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("query_lens", [[1] * 6, [0, 1, 16, 5, 60, 0], [1, 1, 1, 16, 1, 1]])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size"), [(4, 2, 32, 16), (7, 1, 80, 5)])
def test_equals_float64(query_lens, heads, kv_heads, head_dim, block_size):
    batch = make_batch(
        [1, 15, 16, 17, 60, 33], query_lens, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
        block_size=block_size,
    )  # fmt: skip
    assert relative_error(batch.attend(get_backend("cpu")), batch.truth()[0]) < TOLERANCE[torch.float32]


def test_log_sum_exp():
    batch = make_batch([1, 40, 17], [1, 3, 1])
    out, lse = get_backend("cpu").attend(
        batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale, return_lse=True
    )
    truth, lse_truth = batch.truth()
    assert relative_error(out, truth) < 1e-6
    assert relative_error(lse, lse_truth) < 1e-6


def test_one_sequence_is_shared_out_by_kv_heads():
    batch = make_batch([50], [1], num_heads=6, num_kv_heads=3)
    assert relative_error(batch.attend(get_backend("cpu")), batch.truth()[0]) < 1e-6


def test_large_scores_do_not_overflow():
    batch = make_batch([70, 33], [1, 1])
    batch.query *= 300
    assert relative_error(batch.attend(get_backend("cpu")), batch.truth()[0]) < 1e-5


def test_nan_in_the_context_is_not_swallowed():
    batch = make_batch([40], [1])
    batch.k_cache[batch.tables[0][1], 3] = float("nan")
    assert batch.attend(get_backend("cpu")).isnan().all()


def test_cache_of_any_strides():
    batch = make_batch([33, 18], [1, 2], block_size=4)
    truth = batch.truth()[0]
    by_head = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (batch.k_cache, batch.v_cache)]
    other = Batch(batch.query, *by_head, batch.metadata, batch.tables)
    assert relative_error(other.attend(get_backend("cpu")), truth) < 1e-6
    backend = get_backend("cpu")
    slot = batch.tables[0][0] * 4 + 1
    key, value = torch.randn(2, 1, 2, 32)
    backend.write(key, value, *by_head, torch.tensor([slot]))
    assert torch.equal(by_head[0][batch.tables[0][0], 1], key[0])
    assert torch.equal(by_head[1][batch.tables[0][0], 1], value[0])


def test_block_ids_past_32_bit_offsets():
    """Two blocks, 2³³ bytes apart in one storage of which only two pages are ever touched."""
    far, head_dim = 2**31 + 64, 32
    storage = torch.empty(far + 2 * 32)
    k_cache = storage.as_strided((2, 1, 2, head_dim), (far, 64, 32, 1))
    k_cache[:] = torch.randn(2, 1, 2, head_dim)
    metadata = AttentionMetadata.build([[1, 0]], [2], [1], [-1])
    batch = Batch(torch.randn(1, 4, head_dim), k_cache, k_cache, metadata, [[1, 0]])
    assert relative_error(batch.attend(get_backend("cpu")), batch.truth()[0]) < 1e-6


def test_other_types_and_options_take_the_gather_path():
    batch = make_batch([20, 5], [1, 1], dtype=torch.bfloat16)
    assert relative_error(batch.attend(get_backend("cpu")), batch.truth()[0]) < TOLERANCE[torch.bfloat16]
    options = AttentionOptions(sliding_window=4, soft_cap=5.0)
    batch = make_batch([20, 5], [1, 1])
    got = batch.attend(get_backend("cpu", options=options))
    assert relative_error(got, batch.truth(options)[0]) < 1e-6


@pytest.mark.parametrize("window", [1, 5, 16, 33, 100])
@pytest.mark.parametrize("query_lens", [[1] * 5, [1, 15, 17, 40, 5]])
def test_sliding_window(window, query_lens):
    options = AttentionOptions(sliding_window=window)
    batch = make_batch([1, 15, 40, 60, 71], query_lens, block_size=8)
    truth = batch.truth(options)[0]
    for table, seq_len, query_len in zip(batch.tables, [1, 15, 40, 60, 71], query_lens, strict=True):
        for unseen in table[: max(0, seq_len - query_len - window + 1) // 8]:  # slid out for all its queries
            batch.k_cache[unseen] = batch.v_cache[unseen] = float("nan")
    assert relative_error(batch.attend(get_backend("cpu", options=options)), truth) < TOLERANCE[torch.float32]


def test_layers_with_and_without_a_window_share_the_metadata():
    batch = make_batch([40, 33], [1, 1])
    plain = get_backend("cpu")
    sliding = with_window(plain, 7)
    assert relative_error(batch.attend(plain), batch.truth()[0]) < 1e-6
    assert relative_error(batch.attend(sliding), batch.truth(AttentionOptions(sliding_window=7))[0]) < 1e-6
    assert relative_error(batch.attend(plain), batch.truth()[0]) < 1e-6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_makes_its_own_threads():
    batch = make_batch([50, 60, 70, 80], [1] * 4)
    backend = get_backend("cpu")
    batch.attend(backend)  # the parent's threads exist now
    child = os.fork()
    if child == 0:
        batch.attend(backend)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("openmp", [True, False])
def test_openmp_and_the_pool_give_the_same(openmp, threads, monkeypatch):
    monkeypatch.setattr(cpu_threads, "_has_openmp", lambda: openmp)
    before = numba.get_num_threads()
    batch = make_batch([50, 60, 7, 80, 33], [1, 3, 1, 1, 2])
    assert relative_error(batch.attend(get_backend("cpu")), batch.truth()[0]) < 1e-6
    assert numba.get_num_threads() == before


def test_a_changed_batch_gets_a_new_plan():
    batch = make_batch([32, 33], [1, 1])
    backend = get_backend("cpu")
    batch.attend(backend)
    batch.metadata.seq_lens[1] = 30
    batch.metadata.block_tables[0, :2] = batch.metadata.block_tables[0, :2].flip(0)
    tables = [[block for block in row if block >= 0] for row in batch.metadata.block_tables.tolist()]
    metadata = AttentionMetadata.build(tables, [32, 30], [1, 1], [-1, -1])
    fresh = Batch(batch.query, batch.k_cache, batch.v_cache, metadata, tables)
    assert torch.equal(batch.attend(backend), fresh.attend(get_backend("cpu")))


def test_a_cache_is_read_anew_when_its_memory_is_another():
    batch = make_batch([20], [1])
    backend = get_backend("cpu")
    batch.attend(backend)
    moved = Batch(batch.query, batch.k_cache.clone(), batch.v_cache.clone(), batch.metadata, batch.tables)
    batch.k_cache.data = 2 * batch.k_cache.data.transpose(1, 2).contiguous().transpose(1, 2)
    assert not torch.equal(batch.attend(backend), moved.attend(backend))
    assert relative_error(batch.attend(backend), batch.truth()[0]) < 1e-6


def test_a_cache_that_is_gone_is_forgotten():
    batch = make_batch([20], [1])
    batch.attend(get_backend("cpu"))
    name, cache = (id(batch.k_cache), id(batch.v_cache)), weakref.ref(batch.k_cache)
    assert name in cpu._layers
    del batch
    gc.collect()
    assert cache() is None
    assert name not in cpu._layers
