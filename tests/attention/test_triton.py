"""The Triton kernels against float64: random shapes, every option, every type, far blocks, any number of splits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported

pytest.importorskip("triton")

from minipaged.attention import AttentionMetadata, AttentionOptions
from minipaged.attention.judge import sparse_storage
from minipaged.attention.online_softmax import merge_partials
from minipaged.attention.triton import TritonBackend, launch_kernels
from minipaged.attention.triton.launch_kernels import choose_num_splits
from tests.attention.helpers import TOLERANCE, Batch, make_batch, relative_error

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
SINKS = torch.tensor([-1.0, 0.5, 3.0, 0.0])
OPTIONS = {
    "window": AttentionOptions(sliding_window=7),
    "window of one": AttentionOptions(sliding_window=1),
    "soft cap": AttentionOptions(soft_cap=2.0),
    "alibi": AttentionOptions(alibi_slopes=SLOPES),
    "sinks": AttentionOptions(sinks=SINKS),
    "all": AttentionOptions(soft_cap=5.0, alibi_slopes=SLOPES, sliding_window=9, sinks=SINKS),
}


@st.composite
def options_for(draw, heads: int):
    """Each option on or off, by itself or with others; the scales are those of an fp8 cache."""

    def by_head(least: float) -> st.SearchStrategy[torch.Tensor]:
        return st.lists(st.floats(least, 2, width=32), min_size=heads, max_size=heads).map(torch.tensor)

    scales = st.sampled_from([1.0, 0.25, 0.04])
    return AttentionOptions(
        k_scale=draw(scales), v_scale=draw(scales), soft_cap=draw(st.sampled_from([None, 1.0, 5.0])),
        alibi_slopes=draw(st.none() | by_head(0)), sliding_window=draw(st.none() | st.integers(1, 45)),
        sinks=draw(st.none() | by_head(-2)),
    )  # fmt: skip


@st.composite
def batches(draw, decode: bool):
    return draw_batch(draw, decode)


@st.composite
def batches_with_options(draw, decode: bool):
    return draw_batch(draw, decode, with_options=True)


def draw_batch(draw, decode: bool, with_options: bool = False):
    block_size = draw(st.sampled_from([1, 2, 5, 16]))
    edges = [1, max(1, block_size - 1), block_size, block_size + 1]
    seq_lens = draw(st.lists(st.one_of(st.sampled_from(edges), st.integers(1, 40)), min_size=1, max_size=4))
    query_lens = [1 if decode else draw(st.one_of(st.sampled_from([0, 1, n]), st.integers(0, n))) for n in seq_lens]
    heads, kv_heads = draw(st.sampled_from([(2, 2), (4, 1), (4, 2), (7, 1), (6, 2)]))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    head_dim = draw(st.sampled_from([32, 64, 80, 96, 128, 256]))
    options = draw(options_for(heads)) if with_options else AttentionOptions()
    scaled = (options.k_scale, options.v_scale) != (1.0, 1.0)
    fp8 = draw(st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2])) if scaled else None
    batch = make_batch(
        seq_lens, query_lens, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size,
        dtype=dtype, cache_dtype=fp8, options=options, seed=draw(st.integers(0, 1000)),
    )  # fmt: skip
    return (batch, options) if with_options else batch


def check(got, batch, options=None):
    truth, lse_truth = batch.truth(options)
    assert relative_error(got[0], truth) < TOLERANCE[batch.query.dtype]
    assert relative_error(got[1], lse_truth) < 2e-6


def run(kernel, batch, options=None, **extra):
    options = options or AttentionOptions()
    return kernel(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale, options, **extra)


@settings(max_examples=15, deadline=None)
@given(batch=batches(decode=True), num_splits=st.sampled_from([1, 1, 2, 5]))
def test_decode(batch, num_splits):
    check(run(launch_kernels.decode, batch, num_splits=num_splits), batch)


@settings(max_examples=15, deadline=None)
@given(batch=batches(decode=False))
def test_prefill_chunks_and_decode_mixed(batch):
    check(run(launch_kernels.prefill, batch), batch)


@settings(max_examples=10, deadline=None)
@given(drawn=batches_with_options(decode=True), num_splits=st.sampled_from([1, 2, 3, 7]))
def test_decode_with_options_and_splits(drawn, num_splits):
    batch, options = drawn
    check(run(launch_kernels.decode, batch, options, num_splits=num_splits), batch, options)


@settings(max_examples=10, deadline=None)
@given(drawn=batches_with_options(decode=False))
def test_prefill_with_options(drawn):
    batch, options = drawn
    check(run(launch_kernels.prefill, batch, options), batch, options)


@pytest.mark.parametrize("num_splits", [2, 3, 7, 64])
def test_any_number_of_splits_agrees_and_empty_splits_weigh_nothing(num_splits):
    batch = make_batch([1, 33, 150], [1] * 3, num_heads=2, num_kv_heads=1)
    check(run(launch_kernels.decode, batch, num_splits=num_splits), batch)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_in_every_kernel(name):
    options = OPTIONS[name]
    batch = make_batch([1, 16, 37], [1] * 3)
    check(run(launch_kernels.decode, batch, options), batch, options)
    check(run(launch_kernels.decode, batch, options, num_splits=3), batch, options)
    batch = make_batch([1, 16, 37], [1, 0, 20])
    check(run(launch_kernels.prefill, batch, options), batch, options)


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_fp8_cache_with_scales(cache_dtype, dtype):
    options = AttentionOptions(k_scale=0.04, v_scale=0.25)
    batch = make_batch([17, 30], [1, 1], dtype=dtype, cache_dtype=cache_dtype, options=options)
    check(run(launch_kernels.decode, batch, options), batch, options)


def test_fp8_write_is_rounded_and_saturates():
    options = AttentionOptions(k_scale=0.5, v_scale=2.0)
    backend = TritonBackend(options=options)
    k_cache, v_cache = torch.zeros(2, 1, 4, 1, 16).to(torch.float8_e4m3fn)
    key = torch.full((1, 1, 16), 300.0)  # 300 / 0.5 is past 448, the largest e4m3 value
    backend.write(key, key, k_cache, v_cache, torch.tensor([2]))
    assert k_cache[0, 2].float().eq(448).all()
    assert v_cache[0, 2].float().eq(torch.tensor(150.0).to(torch.float8_e4m3fn).float()).all()


def test_offsets_past_32_bits():
    """Three blocks, 2³⁰ elements apart: the third lies 2³¹ elements from the start."""
    far = 2**30
    storage = sparse_storage(2 * far + 256)
    k_cache = storage.as_strided((3, 1, 2, 32), (far, 64, 32, 1))
    k_cache[:] = torch.randn(3, 1, 2, 32)
    metadata = AttentionMetadata.build([[2, 0, 1]], [3], [1], [2])
    batch = Batch(torch.randn(1, 4, 32), k_cache, k_cache, metadata, [[2, 0, 1]])
    check(run(launch_kernels.decode, batch), batch)
    check(run(launch_kernels.decode, batch, num_splits=2), batch)
    check(run(launch_kernels.prefill, batch), batch)
    new = torch.randn(1, 2, 32)
    TritonBackend().write(new, new, k_cache, k_cache, torch.tensor([2]))
    assert torch.equal(k_cache[2, 0], new[0])
    TritonBackend().copy_blocks(k_cache, k_cache, [(2, 1)])
    assert torch.equal(k_cache[1, 0], new[0])


def test_any_layout():
    batch = make_batch([33, 18], [1, 1], block_size=4)
    for axes in ((0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2)):  # heads before slots, heads first, elements not adjacent
        back = torch.tensor(axes).argsort().tolist()
        caches = [cache.permute(axes).contiguous().permute(back) for cache in (batch.k_cache, batch.v_cache)]
        other = Batch(batch.query, *caches, batch.metadata, batch.tables)
        check(run(launch_kernels.decode, other), other)
    strided = Batch(
        batch.query.transpose(0, 1).contiguous().transpose(0, 1), batch.k_cache, batch.v_cache, batch.metadata, []
    )
    check(run(launch_kernels.decode, strided), strided)


def test_merging_partial_results_by_their_log_sum_exp():
    """Two halves of a context, attended on their own, give the whole: what the returned log-sum-exp is for."""
    batch = make_batch([32], [1], block_size=4)
    parts = []
    for half in (batch.tables[0][:4], batch.tables[0][4:]):
        metadata = AttentionMetadata.build([half], [16], [1], [-1])
        parts.append(run(launch_kernels.decode, Batch(batch.query, batch.k_cache, batch.v_cache, metadata, [half])))
    outputs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
    check(merge_partials(outputs, lses), batch)


def test_an_empty_batch():
    batch = make_batch([3, 4], [0, 0])
    assert batch.attend(TritonBackend()).shape == (0, 4, 32)


def test_number_of_splits_fills_the_device():
    assert choose_num_splits(programs=200, tiles=100, multiprocessors=132) == 1  # full without splits
    assert choose_num_splits(programs=8, tiles=1, multiprocessors=132) == 1  # nothing to share out
    assert choose_num_splits(programs=0, tiles=9, multiprocessors=132) == 1
    splits = choose_num_splits(programs=8, tiles=64, multiprocessors=132)
    assert 0.85 * 132 <= 8 * splits <= 132
    assert choose_num_splits(programs=1, tiles=1000, multiprocessors=132) <= 64


def test_bfloat16_arithmetic_stays_in_float32():
    """Triton's interpreter is wrong by orders of magnitude in bfloat16: no kernel may compute in it."""
    batch = make_batch([130], [1], dtype=torch.bfloat16, head_dim=128)
    error = relative_error(batch.attend(TritonBackend()), batch.truth()[0])
    assert error < 5e-3
