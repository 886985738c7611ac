"""Month 6's own kernels: right against float64, clean under the referee, compiled, and fit for the engine."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported

pytest.importorskip("triton")

from minipaged.attention.judge import judge_attend, judge_write
from minipaged.attention.referee import Referee
from minipaged.course.kernels_month_6 import cache, first_steps, online_softmax
from minipaged.course.kernels_month_6.backend import LessonBackend
from minipaged.course.kernels_month_6.compiled import KERNELS, compile_kernels
from minipaged.course.kernels_month_6.decode import decode
from minipaged.course.kernels_month_6.one_head import one_head_decode
from minipaged.course.kernels_month_6.prefill import prefill
from minipaged.course.kernels_month_6.split import split_decode
from minipaged.serving import LLM, SamplingParams
from tests.attention.helpers import make_batch, relative_error

DECODERS = {"one head": one_head_decode, "decode": decode, "split": split_decode}


def run(attend, batch, **extra) -> torch.Tensor:
    return attend(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale, **extra)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 11])
def test_first_steps(n):
    x = torch.randn(n)
    assert torch.equal(first_steps.double(x), 2 * x)
    batch = make_batch([n], [1], block_size=4)
    want = batch.k_cache[batch.tables[0]].flatten(0, 1)[:n, 0]
    assert torch.equal(first_steps.gather(batch.k_cache, batch.metadata.block_tables[0], n), want)


@given(
    n=st.integers(1, 40), tile=st.sampled_from([1, 4, 16]), size=st.sampled_from([1.0, 1e4]), seed=st.integers(0, 99)
)
@settings(max_examples=20, deadline=None)
def test_online_softmax(n, tile, size, seed):
    generator = torch.Generator().manual_seed(seed)
    scores, values = size * torch.randn(n, generator=generator), torch.randn(n, 8, generator=generator)
    truth = torch.softmax(scores.double(), 0) @ values.double()
    assert relative_error(online_softmax.online_softmax(scores, values, tile), truth) < 1e-5


@pytest.mark.parametrize("name", DECODERS)
@given(
    seq_lens=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    heads=st.sampled_from([(4, 4), (4, 2), (8, 2), (4, 1), (7, 1)]),
    head_dim=st.sampled_from([32, 24, 80]),
    block_size=st.sampled_from([1, 3, 4, 16]),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None)
def test_decode(name, seq_lens, heads, head_dim, block_size, seed):
    batch = make_batch(
        seq_lens, [1] * len(seq_lens), num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim,
        block_size=block_size, seed=seed,
    )  # fmt: skip
    assert relative_error(run(DECODERS[name], batch), batch.truth()[0]) < 1e-6


@given(
    lens=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=4).filter(
        lambda lens: any(query for query, _ in lens)
    ),
    heads=st.sampled_from([(4, 4), (8, 2), (7, 1)]),
    block_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_prefill(lens, heads, block_size, seed):
    queries = [query for query, _ in lens]
    batch = make_batch(
        [query + past for query, past in lens], queries, num_heads=heads[0], num_kv_heads=heads[1],
        block_size=block_size, seed=seed,
    )  # fmt: skip
    assert relative_error(run(prefill, batch), batch.truth()[0]) < 1e-6


@pytest.mark.parametrize("splits", [1, 2, 5, 64])
def test_splits_agree_and_may_be_empty(splits):
    batch = make_batch([70, 2], [1] * 2, num_heads=2, num_kv_heads=1, block_size=4)
    assert relative_error(run(split_decode, batch, num_splits=splits), batch.truth()[0]) < 1e-6


@pytest.mark.parametrize("name", DECODERS)
def test_decode_is_clean(name):
    verdict = judge_attend(DECODERS[name])
    assert verdict.passed, verdict.message


def test_prefill_and_write_are_clean():
    verdict = judge_attend(prefill, prefill=True)
    assert verdict.passed, verdict.message
    verdict = judge_write(cache.write)  # its mask is made with a scalar: the referee has to take that as a mask
    assert verdict.passed, verdict.message


def test_copy_blocks_is_clean_and_exact():
    k_cache, v_cache = torch.randn(2, 6, 3, 2, 20)
    want = k_cache.clone(), v_cache.clone()
    for side in want:
        side[[4, 0]] = side[[1, 5]]
    with Referee() as referee:
        cache.copy_blocks(k_cache, v_cache, [(1, 4), (5, 0)])
    assert referee.report().clean
    assert torch.equal(k_cache, want[0])
    assert torch.equal(v_cache, want[1])


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
def test_every_kernel_compiles_without_spills(target):
    for report in compile_kernels(list(KERNELS), [target]):
        assert report.spills == 0, report
        assert bool(report.matrix) == (report.kernel in ("decode", "split", "prefill")), report


def test_the_compiler_refuses_a_small_tile_and_an_unknown_name_is_named():
    with pytest.raises(RuntimeError, match="16"):
        compile_kernels(["decode"], ["sm90"], tile=8)
    with pytest.raises(ValueError, match="'cecode' is unknown"):
        compile_kernels(["cecode"], ["sm90"])


def test_the_engine_generates_the_same_text():
    prompts = ["Four score and seven years ago our fathers brought forth", "The"]
    params = SamplingParams(max_tokens=10, n=2, temperature=0.8, seed=1)
    texts = []
    backend = LessonBackend()
    for how in ({"attention": "reference"}, {"parts": {"attention": backend}}):
        llm = LLM("tiny", num_blocks=64, block_size=4, max_num_batched_tokens=8, **how)
        texts.append([[one.text for one in out.outputs] for out in llm.generate(prompts, params)])
    assert texts[0] == texts[1]
    assert min(backend.launches.values()) > 0, backend.launches


def test_what_the_backend_refuses():
    batch = make_batch([3], [1])
    transposed = batch.k_cache.transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match="the lesson's kernels need equal strides"):
        LessonBackend().attend(batch.query, transposed, transposed, batch.metadata, batch.scale)
    half = batch.k_cache.half()
    with pytest.raises(TypeError, match="float32 only"):
        LessonBackend().attend(batch.query, half, half, batch.metadata, batch.scale)
