"""The referee and the judge: clean kernels come out clean, each seeded bug is found and its line named."""

from pathlib import Path

import pytest
import torch

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported

pytest.importorskip("triton")

import triton
import triton.language as tl

from minipaged.attention.judge import fenced, judge_attend, judge_write
from minipaged.attention.referee import Referee
from minipaged.attention.triton import launch_kernels
from tests.attention import seeded_kernels
from tests.attention.helpers import make_batch, relative_error

EXPECTED = {
    "int32 overflow": ("outside every tensor", "64 bits|2³⁰"),
    "0 times NaN": ("nobody has written", "value = tl.load"),
    "query head as KV head": ("", "query heads|KV head|full block"),
    "wrong split merge": ("elements are wrong", ""),
    "slot off by one": ("k_cache", ""),
}


def watched(batch) -> Referee:
    referee = Referee()
    for name in ("query", "k_cache", "v_cache"):
        tensor = getattr(batch, name)
        written = ~tensor.isnan().all(-1).all(-1) if tensor.ndim == 4 else True
        referee.watch(name, tensor, written)
    for name in ("block_tables", "seq_lens", "query_start_loc"):
        referee.watch(name, getattr(batch.metadata, name))
    return referee


def least_bytes(batch) -> int:
    """Each K and V of each context once, queries in, outputs out, tables and lengths once."""
    num_tokens, num_heads, head_dim = batch.query.shape
    _, block_size, num_kv_heads, _ = batch.k_cache.shape
    context = batch.metadata.seq_lens.tolist()
    kv = 2 * sum(context) * num_kv_heads * head_dim * batch.k_cache.element_size()
    out = num_tokens * num_heads * (2 * head_dim + 1) * 4  # queries, outputs, log-sum-exp
    return kv + out + 4 * (len(context) + sum(-(-n // block_size) for n in context))


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("block_size", [1, 16])
def test_decode_moves_the_least_possible(head_dim, block_size):
    batch = make_batch([200, 150, 17, 1], [1] * 4, num_heads=8, head_dim=head_dim, block_size=block_size)
    referee = watched(batch)
    with referee:
        out, _ = launch_kernels.decode(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale)
    report = referee.report()
    assert relative_error(out, batch.truth()[0]) < 1e-6
    assert report.clean, str(report)
    assert report.bytes_moved <= 1.02 * least_bytes(batch)


@pytest.mark.parametrize("splits", [1, 3])
def test_the_package_s_decode_is_clean(splits):
    def candidate(*arguments):
        return launch_kernels.decode(*arguments, num_splits=splits)[0]

    verdict = judge_attend(candidate)
    assert verdict.passed, verdict.message


def test_the_package_s_prefill_and_write_are_clean():
    verdict = judge_attend(lambda *arguments: launch_kernels.prefill(*arguments)[0], prefill=True)
    assert verdict.passed, verdict.message
    verdict = judge_write(launch_kernels.write)
    assert verdict.passed, verdict.message


def test_the_seeded_kernels_without_a_bug_are_clean():
    assert judge_attend(seeded_kernels.attend).passed
    assert judge_write(seeded_kernels.write).passed


@pytest.mark.parametrize("name", seeded_kernels.BUGS)
def test_each_seeded_bug_is_found(name, tmp_path):
    function, right, wrong = seeded_kernels.BUGS[name]
    source = Path(seeded_kernels.__file__).read_text().split("# name: (function")[0]
    assert source.count(right) == 1
    file = tmp_path / "learner.py"
    file.write_text(source.replace(right, wrong))
    verdict = (judge_attend if function == "attend" else judge_write)(f"{file}:{function}")
    assert not verdict.passed
    phrase, any_of = EXPECTED[name]
    assert phrase in verdict.message
    assert any(part in verdict.message for part in any_of.split("|")), verdict.message


def test_a_finding_names_line_program_and_place():
    batch = make_batch([5], [1], block_size=4)
    batch.metadata.seq_lens[0] = 6  # one more than was written
    referee = watched(batch)
    with referee:
        launch_kernels.decode(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale)
    finding = referee.report().findings[0]
    block = batch.tables[0][1]
    assert finding.rule == "unwritten"
    assert finding.file.endswith("softmax.py")
    assert f"(block {block}, slot 1" in finding.where
    assert f"block {block:>4} |r!..|" in finding.picture
    assert "k = tl.load(" in str(finding)


def test_double_writes_are_found():
    key, value = torch.randn(2, 2, 2, 16)
    k_cache, v_cache = torch.zeros(2, 3, 4, 2, 16)
    referee = Referee()
    with referee:
        seeded_kernels.write(key, value, k_cache, v_cache, torch.tensor([5, 5]))
    rules = [finding.rule for finding in referee.report().findings]
    assert rules == ["twice", "twice"]


@triton.jit
def atomic_kernel(total, counter, n, BLOCK: tl.constexpr, FAR: tl.constexpr):
    tl.atomic_add(total + tl.program_id(0) // 2, 1.0)
    tl.atomic_add(total + FAR + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)
    tl.atomic_cas(counter + FAR, 0, 5)


@pytest.mark.parametrize(("far", "rules"), [(0, []), (2**20, ["outside", "outside"])])
def test_atomic_operations_are_watched(far, rules):
    total, counter = fenced(torch.zeros(4)), fenced(torch.zeros(1, dtype=torch.int32))
    with (referee := Referee()):
        atomic_kernel[(3,)](total, counter, 2, BLOCK=4, FAR=far)
    report = referee.report()
    assert [(finding.rule, finding.kind) for finding in report.findings] == [(rule, "atomic") for rule in rules]
    assert total.tolist() == ([2.0, 1.0, 0.0, 0.0] if far else [5.0, 4.0, 0.0, 0.0])
    assert counter.tolist() == [0 if far else 5]
    assert report.loaded["total"] == report.stored["total"] == 4 * (3 if far else 3 + 6)


def test_an_atomic_operation_reads_what_it_changes():
    total = torch.full((4,), 1.0)
    referee = Referee()
    referee.watch("total", total, written=False)
    with referee:
        atomic_kernel[(1,)](total, torch.zeros(1, dtype=torch.int32), 2, BLOCK=4, FAR=0)
    assert {finding.rule for finding in referee.report().findings} == {"unwritten"}


@triton.jit
def descriptor_kernel(out, x, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[n, BLOCK], strides=[BLOCK, 1], block_shape=[4, BLOCK])
    target = tl.make_tensor_descriptor(out, shape=[n, BLOCK], strides=[BLOCK, 1], block_shape=[4, BLOCK])
    target.store([tl.program_id(0) * 4, 0], source.load([tl.program_id(0) * 4, 0]))


@pytest.mark.parametrize(("rows", "rules"), [(6, []), (8, ["unwritten", "outside"])])
def test_descriptors_are_watched(rows, rules):
    """With 8 rows said to be there, but 6 of them written, and an output of 6."""
    x, out = fenced(torch.randn(8, 16)), fenced(torch.zeros(6, 16))
    written = torch.arange(8) < 6
    referee = Referee()
    referee.watch("x", x, written)
    referee.watch("out", out, written=False)
    with referee:
        descriptor_kernel[(2,)](out, x, rows, BLOCK=16)
    assert [finding.rule for finding in referee.report().findings] == rules
    assert torch.equal(out, x[:6])


def test_a_crash_an_endless_loop_and_an_exception_become_messages():
    def endless(*_):
        while True:
            pass

    def crash(*_):
        import ctypes

        ctypes.string_at(8)

    assert "no result after 0.5 s" in judge_attend(endless, timeout=0.5).message
    assert "segmentation fault" in judge_attend(crash).message
    assert "ZeroDivisionError" in judge_attend(lambda *_: 1 / 0).message
    assert "is NoneType, but a tensor" in judge_attend(lambda *_: None).message


def test_a_candidate_that_changes_its_inputs():
    def cheat(query, k_cache, v_cache, metadata, scale):
        v_cache.zero_()
        return torch.zeros_like(query)

    message = judge_attend(cheat).message
    assert "v_cache is an input, but it was changed" in message
    assert "elements are wrong" in message


def test_what_the_judge_and_the_referee_cannot_use():
    with pytest.raises(TypeError, match="candidate is a int"):
        judge_write(5)
    with pytest.raises(ValueError, match="timeout is 0"):
        judge_attend(seeded_kernels.attend, timeout=0)
    with pytest.raises(TypeError, match="x is a list"):
        Referee().watch("x", [1])
    with pytest.raises(ValueError, match=r"written is \[5\], but x is \[3, 2\]"):
        Referee().watch("x", torch.zeros(3, 2), torch.zeros(5, dtype=torch.bool))


def test_a_place_that_names_no_function():
    assert "file.py:function" in judge_attend("somewhere").message
    assert "no file" in judge_attend("nowhere.py:attend").message


@triton.jit
def copy_kernel(out, x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < BLOCK)


def copied(x, n, out=None, **how_to_watch_out):
    out = torch.zeros(8) if out is None else out
    with (referee := Referee()):
        referee.watch("x", x, read_only=True)
        referee.watch("out", out, **how_to_watch_out)
        copy_kernel[(1,)](out, x, n, BLOCK=8)
    return out, referee.report()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_a_lane_whose_load_is_masked_out_is_poison(dtype):
    out, report = copied(torch.ones(8, dtype=dtype), 5, torch.zeros(8, dtype=dtype))
    assert report.clean
    assert out[:5].eq(1).all()
    assert (out[5:].isnan() if dtype.is_floating_point else out[5:] == 0x55555555).all()


@triton.jit
def reach_kernel(out, x, at):
    tl.store(out, tl.load(x + at))


@pytest.mark.parametrize(
    ("at", "where"),
    [
        (8, "behind x [2, 4]"),
        (10, "8 bytes behind the end of x [2, 4]"),
        (-3, "12 bytes before the start of x [2, 4]"),
        (5, "a gap inside x [2, 4], strides [8, 1]"),
    ],
)
def test_where_an_address_outside_lies(at, where):
    """Beside the tensor in its own memory; distances to other memory would differ from run to run."""
    x = fenced(torch.ones(2, 8))[:, :4] if "gap" in where else fenced(torch.ones(2, 4))
    with (referee := Referee()):
        referee.watch("x", x)
        reach_kernel[(1,)](torch.zeros(1), x, at)
    assert [finding.where for finding in referee.report().findings] == [where]


def test_memory_of_no_tensor_is_named_so():
    _, report = copied(torch.ones(8), 8, torch.zeros(4))
    assert [finding.where for finding in report.findings] == ["in the memory of no tensor"]


def test_a_store_into_an_input_is_found():
    _, report = copied(torch.ones(8), 8, read_only=True)
    assert [finding.rule for finding in report.findings] == ["input"]
    assert "writes into an input (8 elements)" in str(report)


def test_an_input_that_is_expanded():
    _, report = copied(torch.ones(1, 1).expand(1, 8), 1, written=False)
    assert report.clean
    assert report.loaded["x"] == 4


@pytest.mark.parametrize("named", [True, False])
def test_k_and_v_between_each_other(named):
    """A pool [num_blocks, 2, …]: K of a block, then its V."""
    pool = torch.full((6, 2, 4, 2, 16), float("nan"))
    k_cache, v_cache = pool.unbind(1)
    key, value = torch.randn(2, 3, 2, 16)
    with (referee := Referee()):
        if named:
            referee.watch("k_cache", k_cache, written=False)
            referee.watch("v_cache", v_cache, written=False)
        launch_kernels.write(key, value, k_cache, v_cache, torch.tensor([5, 23, 8]))
    report = referee.report()
    assert report.clean, str(report)
    names = ("k_cache", "v_cache") if named else ("k", "v")
    assert [report.stored[name] for name in names] == [4 * 3 * 2 * 16] * 2
    assert torch.equal(v_cache[5, 3], value[1])


def test_only_a_cache_is_told_in_blocks_and_slots():
    parts = torch.zeros(8).view(2, 2, 2, 1)
    with (referee := Referee()):
        referee.watch("parts", parts, written=False)
        referee.watch("k_cache", torch.zeros(2, 2, 2, 1), written=False)
    assert referee._tensors[0].describe((0, 1, 0, 0)) == "parts[0, 1, 0, 0]"
    assert "slot 1" in referee._tensors[1].describe((0, 1, 0, 0))
    assert referee._tensors[0].picture((0, 1, 0, 0)) == ""


def test_a_write_is_judged_by_what_is_written():
    def nowhere(*_):
        pass

    def everywhere(key, value, k_cache, v_cache, slots):
        seeded_kernels.write(key, value, k_cache, v_cache, slots)
        k_cache[0, 1], v_cache[0, 1] = 0.0, 0.0

    def into_the_key(key, value, k_cache, v_cache, slots):
        key.zero_()

    assert "k_cache[0, 0, 0, 0] was not written, but must be" in judge_write(nowhere).message
    assert "k_cache[0, 1, 0, 0] is 0.0000, but must not be written" in judge_write(everywhere).message
    assert "key is an input, but it was changed" in judge_write(into_the_key).message
