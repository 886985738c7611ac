"""The reference against dense attention and against one-line truths; the online softmax; every backend's writes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported
from minipaged.attention import AttentionOptions, ReferenceBackend, dense_attention, get_backend
from minipaged.attention.online_softmax import OnlineSoftmax, merge_partials, online_attention
from minipaged.attention.reference import attention
from tests.attention.helpers import TOLERANCE, make_batch, relative_error


def test_paged_equals_dense():
    batch = make_batch([37], [37], block_size=5)
    key = batch.k_cache[batch.tables[0]].flatten(0, 1)[:37]
    value = batch.v_cache[batch.tables[0]].flatten(0, 1)[:37]
    dense = dense_attention(batch.query, key, value)
    assert relative_error(batch.attend(ReferenceBackend()), dense) < 1e-6


def test_a_chunk_equals_the_same_rows_of_the_whole():
    whole = make_batch([20, 9], [20, 9])
    chunk = make_batch([20, 9], [7, 1])
    chunk.query = torch.cat([whole.query[13:20], whole.query[28:29]])
    rows = [*range(13, 20), 28]
    assert relative_error(chunk.attend(ReferenceBackend()), whole.truth()[0][rows]) < 1e-6


def test_options_have_their_meaning():
    query, key, value = torch.randn(3, 1, 1, 8), torch.randn(5, 1, 8), torch.randn(5, 1, 8)
    query = query[0]
    plain = attention(query, key, value, 0.3)[0]
    window = attention(query, key, value, 0.3, AttentionOptions(sliding_window=2))[0]
    assert torch.allclose(window, attention(query, key[-2:], value[-2:], 0.3)[0])
    no_cap = attention(query, key, value, 0.3, AttentionOptions(soft_cap=1e6))[0]
    assert torch.allclose(no_cap, plain, atol=1e-5)
    # A sink takes its share of the weights and gives nothing for it.
    lse = attention(query, key, value, 0.3)[1]
    sunk = attention(query, key, value, 0.3, AttentionOptions(sinks=lse[0]))[0]
    assert torch.allclose(sunk, plain / 2, atol=1e-6)
    scaled = attention(query, key / 4, value / 2, 0.3, AttentionOptions(k_scale=4.0, v_scale=2.0))[0]
    assert torch.allclose(scaled, plain, atol=1e-6)
    steep = attention(query, key, value, 0.3, AttentionOptions(alibi_slopes=torch.tensor([1e4])))[0]
    assert torch.allclose(steep, value[-1:], atol=1e-6)  # a slope so steep that only the nearest key is left


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_online_softmax_equals_softmax_for_any_blocks(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(n, 8, generator=generator).double() for n in (3, sum(sizes), sum(sizes)))
    blocks = zip(key.split(sizes), value.split(sizes), strict=True)
    truth = torch.softmax(2.0 * query @ key.T, dim=1) @ value
    assert torch.allclose(online_attention(query, blocks, scale=2.0), truth)


def test_online_softmax_of_hidden_keys():
    state = OnlineSoftmax(2, 4)
    hidden = torch.full((2, 3), float("-inf"))
    state.update(hidden, torch.randn(3, 4))
    assert state.output().eq(0).all()
    assert state.lse().eq(float("-inf")).all()
    value = torch.randn(1, 4)
    state.update(torch.tensor([[1.0], [2.0]]), value)
    assert torch.allclose(state.output(), value.expand(2, 4))


def test_merge_gives_an_empty_part_no_weight():
    outputs = torch.stack([torch.ones(2, 4), torch.zeros(2, 4)])
    lses = torch.tensor([[0.5, 1.0], [float("-inf"), float("-inf")]])
    out, lse = merge_partials(outputs, lses)
    assert torch.equal(out, outputs[0])
    assert torch.allclose(lse, lses[0])


@pytest.mark.parametrize("name", ["reference", "triton", "cpu"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_write_skips_minus_one_and_copy_moves_blocks(name, dtype):
    backend = get_backend(name)
    key, value = torch.randn(2, 3, 2, 24).to(dtype)
    k_cache, v_cache = torch.full((2, 4, 5, 2, 24), float("nan"), dtype=dtype)
    backend.write(key, value, k_cache, v_cache, torch.tensor([7, -1, 19]))
    assert torch.equal(k_cache[1, 2], key[0])
    assert torch.equal(v_cache[3, 4], value[2])
    assert int((~k_cache.isnan()).sum()) == 2 * 2 * 24
    backend.copy_blocks(k_cache, v_cache, [(1, 0), (3, 2)])
    assert torch.equal(k_cache[0, 2], key[0])
    assert torch.equal(v_cache[2, 4], value[2])
    backend.copy_blocks(k_cache, v_cache, [])


@pytest.mark.parametrize("name", ["reference", "triton", "cpu"])
def test_one_step_of_prefill_then_decode(name):
    """Write, then attend, as the engine does: the same as dense attention on the whole."""
    backend = get_backend(name)
    from minipaged.attention import AttentionMetadata

    key, value = torch.randn(2, 10, 2, 32)
    query = torch.randn(10, 4, 32)
    k_cache, v_cache = torch.full((2, 5, 4, 2, 32), float("nan"))
    table = [3, 0, 4]
    slots = [table[p // 4] * 4 + p % 4 for p in range(10)]
    out = []
    for start, stop in ((0, 6), (6, 9), (9, 10)):
        metadata = AttentionMetadata.build([table], [stop], [stop - start], slots[start:stop])
        backend.write(key[start:stop], value[start:stop], k_cache, v_cache, metadata.slot_mapping)
        out.append(backend.attend(query[start:stop], k_cache, v_cache, metadata, 32**-0.5))
    assert relative_error(torch.cat(out), dense_attention(query, key, value)) < 1e-6
