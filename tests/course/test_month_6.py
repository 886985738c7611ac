"""Month 6's pictures, traces, altered kernels and the bug hunt say what is so."""

import numpy as np
import pytest
import torch

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported

pytest.importorskip("triton")

from minipaged.attention.inspect import Report
from minipaged.attention.triton.launch_kernels import choose_num_splits
from minipaged.course import bug_hunt_month_6 as bug_hunt
from minipaged.course import month_6
from minipaged.course.altered_kernels import altered
from minipaged.course.cache_precision import compare, run_with_cache, scale_for
from minipaged.course.errors import CourseError
from minipaged.course.figures_month_6 import draw_roofline, schedule
from minipaged.course.kernel_source import show, what_changed
from minipaged.course.kernels_month_6 import cache, first_steps
from minipaged.course.kernels_month_6.decode import decode, decode_kernel
from minipaged.course.kernels_month_6.one_head import one_head_decode
from minipaged.course.kernels_month_6.split import split_kernel
from minipaged.model import load_model


def test_a_trace_knows_what_each_program_reads():
    batch = month_6.paged_batch([7, 1, 9])
    watched = month_6.trace(decode, batch)
    assert watched.programs == [(s, h, 0) for s in range(3) for h in range(2)]
    reads = watched.reads((2, 1, 0), "k_cache", batch.k_cache.shape)
    want = np.zeros_like(reads)
    for pos in range(9):
        want[batch.metadata.block_tables[2, pos // 4], pos % 4, 1] = 16  # elements of the head
    assert (reads == want).all()
    assert watched.report().clean


def test_bytes_grouped_and_not():
    batch = month_6.paged_batch([30, 17], num_heads=8)
    grouped, apart = (month_6.kv_bytes(attend, batch) for attend in (decode, one_head_decode))
    assert grouped["loaded"] == grouped["least"]
    assert apart["loaded"] == 4 * apart["least"]


def test_the_viewer_shows_every_program_and_its_last_frame_without_a_kernel():
    batch = month_6.paged_batch([7, 1])
    viewer = month_6.program_viewer(decode, batch)
    assert len(viewer.frames) == 4
    assert viewer.first is viewer.frames[-1]
    tables = batch.metadata.block_tables
    assert f"block {int(tables[0, 1])}, KV head 1: loads K of slots [0, 1, 2]" in viewer.frames[1].text


def test_the_viewer_shows_an_unwritten_read():
    batch = month_6.paged_batch([5])
    batch.metadata.seq_lens[0] = 6
    text = month_6.program_viewer(decode, batch).frames[0].text
    assert "loads K of slots [0, 1], of which nobody has written [1]" in text


def test_schedule_and_splits():
    busy = schedule([5, 3, 3, 2], 2)
    assert busy == [[(0, 5, 0), (5, 2, 3)], [(0, 3, 1), (3, 3, 2)]]
    lengths = month_6.split_lengths(2, 32768)
    assert len(lengths) == 16 * choose_num_splits(16, 512, 132)
    assert sum(lengths) == 16 * 512
    assert month_6.split_lengths(1, 100, splits=64) == [1, 1] * 8  # empty splits have no length
    assert "112 programs, 112 of 132 multiprocessors work" in month_6.draw_splits(2, 32768).text
    assert "the rule chooses no splits" in month_6.draw_splits(32, 2048).text


def test_intensity_of_decode_is_the_group():
    """Two operations a multiply-add, two bytes an element: each K and V serves every head of its group once."""
    batch = month_6.paged_batch([200] * 2, num_heads=8, num_kv_heads=2, head_dim=64, block_size=16)
    assert month_6.intensity(decode, batch) == pytest.approx(4, rel=0.03)
    assert "bound by memory" in draw_roofline({"decode": 4.0}, 989, 3.35, "H100").text


def test_sources():
    assert repr(show(first_steps.double_kernel)).startswith("@triton.jit\ndef double_kernel(")
    changes = repr(what_changed(decode_kernel, split_kernel))
    assert "+    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)" in changes
    assert show(decode)._repr_markdown_().startswith("```python\ndef decode(")


def test_altered():
    without = altered(one_head_decode, "v = tl.load(v_ptr + at, mask=mask, other=0.0)", "v = tl.load(v_ptr + at)")
    batch = month_6.paged_batch([5], block_size=8)
    assert month_6.error(one_head_decode, batch) < 1e-6
    assert month_6.small(month_6.error(without, batch)) == "NaN"
    with pytest.raises(CourseError, match="occurs 0 times"):
        altered(one_head_decode, "no such line", "")


@pytest.mark.parametrize("name", bug_hunt.SUSPECTS)
def test_each_suspect_is_found_and_its_original_is_clean(name):
    one = bug_hunt.suspect(name)
    found = repr(bug_hunt.hunt(name))
    assert bug_hunt.judge_clean(name).passed
    assert one.wrong in repr(bug_hunt.show_suspect(name))
    assert one.right in repr(bug_hunt.solution(name))
    expected = {
        "A": "64 of 64 elements are wrong",
        "B": "nobody has written",
        "C": "    v = tl.load(v_ptr + at, mask=(d < D)[None, :], other=0.0)",
        "D": "k_cache[0, 0, 0, 0] was not written",
        "E": f"first: {2**32} bytes before the start of k_cache",  # block 3 · 2³⁰ elements is −2³⁰ in 32 bits
    }
    assert expected[name] in found


def test_an_unknown_suspect_is_named():
    with pytest.raises(CourseError, match="no suspect 'F'; they are A, B, C, D, E"):
        bug_hunt.hunt("F")


def test_where_tokens_land():
    text = month_6.draw_written(cache.write, [5, -1, 14]).text
    assert "token 0" in text
    assert "token 1" not in text


def test_cache_precision():
    model, tokenizer = load_model("tiny")
    ids = tokenizer.encode("Four score and seven years ago our fathers brought forth on this continent")
    truth = run_with_cache(model, ids, torch.float32)
    assert torch.allclose(truth.logits, model.forward_dense(torch.tensor(ids)), atol=1e-3)
    fp8 = torch.float8_e4m3fn
    errors = compare(run_with_cache(model, ids, fp8), truth)
    assert 0.01 < errors["kv"] < 0.05
    assert errors["changed"] == 0
    small = scale_for(truth.k_cache, fp8) / 8
    assert compare(run_with_cache(model, ids, fp8, small, small), truth)["kv"] > 0.3  # large values saturate


def test_what_the_compiler_made_as_tables():
    report = Report(
        "decode", "sm90", 96, 0, 21632, {32: 4, 128: 18}, {"mma.sync.aligned.m16n8k16.row.col.f32": 16}, 0.1
    )
    table = month_6.compiler_table([report, report], "the compiler knows", ["nothing", "alignment"])
    assert [row[0] for row in table.rows] == ["nothing", "alignment"]
    assert table.rows[0][5:] == ["4 of 32 bits, 18 of 128 bits", "16 mma.sync.aligned.m16n8k16"]
    text = ".version 8.7\n\tmul.wide.s32 \t%rd1, %r1, %r2;  // a.py:3\n\tmul.wide.s32 \t%rd2, %r1, %r3;\n"
    table = month_6.ptx_table(text, {"product": "mul.wide.s32", "matrix": "mma.sync", "directive": ".version"})
    assert table.rows[0] == ["product", "2", "`mul.wide.s32 %rd1, %r1, %r2;`"]
    assert [row[1] for row in table.rows[1:]] == ["0", "0"]


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert month_6.gpu_table().startswith("No GPU on this machine")
