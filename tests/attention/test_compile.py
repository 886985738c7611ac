"""Every kernel compiles for real GPUs: no spills, 128-bit loads of K and V, matrix instructions. No GPU is needed."""

import json

import pytest

pytest.importorskip("triton")

from minipaged.attention.inspect import KERNELS, TARGETS, Shape, format_table, inspect_jobs, inspect_kernels, main

ATTENTION = ("decode", "split", "prefill")
OTHERS = {
    "GQA 7:1, head size 80": Shape(head_dim=80, group=7, num_kv_heads=1),
    "MHA, head size 256": Shape(head_dim=256, group=1, dtype="fp16", cache_dtype="fp16"),
    "float32": Shape(dtype="fp32", cache_dtype="fp32"),
    "all options, blocks of 1": Shape(head_dim=96, block_size=1, window=True, soft_cap=True, alibi=True, sinks=True),
}

WIDE = Shape(group=64, num_kv_heads=1, window=True, soft_cap=True, alibi=True, sinks=True)  # MQA: 64 rows a program


@pytest.fixture(scope="module")
def all_reports():
    """All kernels for all targets, and one target each for the other shapes: in one process, which starts once."""
    jobs = [(kernel, target, Shape()) for kernel in KERNELS for target in TARGETS]
    jobs += [(k, t, s) for t, s in zip(TARGETS, OTHERS.values(), strict=True) for k in ("decode", "prefill")]
    jobs += [(kernel, target, WIDE) for kernel in ("decode", "split") for target in ("sm80", "sm100")]
    return inspect_jobs(jobs)


@pytest.fixture
def reports(all_reports):
    return all_reports[: len(KERNELS) * len(TARGETS)]


@pytest.fixture
def other_reports(all_reports):
    return all_reports[len(KERNELS) * len(TARGETS) :]


@pytest.mark.parametrize("target", TARGETS)
def test_no_spills_and_wide_loads(reports, target):
    here = [report for report in reports if report.target == target]
    assert [report.kernel for report in here] == list(KERNELS)
    for report in here:
        assert report.spills == 0, format_table(here)
        # Tables, lengths and slots are 32 or 64 bits, everything else 128: a narrower load of K or V would be 16.
        assert set(report.loads) <= {32, 64, 128}, format_table(here)
        assert report.loads[128] >= 2
        if report.kernel in ATTENTION:
            assert report.matrix, format_table(here)


def test_other_shapes_and_types(other_reports):
    for report in other_reports:
        assert report.spills == 0, format_table([report])
        assert report.loads[128] >= 2, format_table([report])


def test_command_line(capsys):
    assert main(["merge", "--target", "sm90", "--text", "ptx", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["kernel"] == "merge"
    assert report["registers"] > 0
    assert ".target sm_90" in report["text"]


def test_unknown_names_and_kernels_that_do_not_compile():
    with pytest.raises(ValueError, match=r"target 'sm42' is unknown: choose from sm80"):
        inspect_kernels(["decode"], ["sm42"])
    with pytest.raises(RuntimeError, match="fp8e4nv not supported"):
        inspect_kernels(["decode"], ["sm80"], Shape(cache_dtype="fp8e4nv"))
    for odd in ({"head_dim": 0}, {"head_dim": 2.5}, {"group": 65}, {"block_size": 0}, {"num_kv_heads": 0}):
        ((name, value),) = odd.items()
        with pytest.raises(ValueError, match=f"{name} is {value}, but it must be a whole number between 1 and"):
            Shape(**odd)
    with pytest.raises(ValueError, match="cache_dtype 'int3' is unknown: choose from bf16"):
        Shape(cache_dtype="int3")
    with pytest.raises(SystemExit):
        main(["decode", "--head-dim", "0"])
