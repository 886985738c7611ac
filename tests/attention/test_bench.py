"""The grammar of work items, and that every way of the benchmark computes the same before it is timed."""

import json

import pytest
import torch

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported
from minipaged.attention import bench


def test_work_items():
    assert bench.parse_work("q2k") == [(2048, 2048)]
    assert bench.parse_work("8q1s1k") == [(1, 1024)] * 8
    assert bench.parse_work("2q2k_32q1s1k") == [(2048, 2048)] * 2 + [(1, 1024)] * 32
    assert bench.parse_work("q3s10") == [(3, 10)]


@pytest.mark.parametrize("work", ["", "k2", "2q", "q1s", "q1__q1", "8q1s1m"])
def test_work_items_that_are_not_understood(work):
    with pytest.raises(ValueError, match=r"is not understood: write \[count\]q"):
        bench.parse_work(work)


@pytest.mark.parametrize("work", ["q0", "0q1", "q5s4"])
def test_work_items_that_cannot_be(work):
    with pytest.raises(ValueError, match="count must be at least 1"):
        bench.parse_work(work)


@pytest.mark.parametrize("work", ["3q1s40", "q1s40_2q1s9", "q20", "q3s20_q1s5"])
def test_what_is_compared_is_the_same(work):
    batch = bench._make_batch(bench.parse_work(work), 4, 2, 16, torch.float32, torch.device("cpu"), 4)

    def flat(result) -> torch.Tensor:
        """All results as [tokens, heads, head size]."""
        parts = result if isinstance(result, list) else [result]
        rows = []
        for part in parts:
            if (part.ndim == 4 and part.shape[0] != 2) or (work == "3q1s40" and part.ndim == 4):
                rows.append(part.reshape(-1, 4, 16))
            elif part.ndim == 4:  # [KV heads, group, queries, head size]
                rows.append(part.flatten(0, 1).transpose(0, 1))
            elif part.shape[0] == 2:  # one query: [KV heads, group, head size]
                rows.append(part.reshape(1, 4, 16))
            else:
                rows.append(part)
        return torch.cat(rows)

    device = torch.device("cpu")
    truth = flat(bench._candidate("reference", batch, device)())
    names = ["cpu", "triton", "contiguous", "gather"] + (["padded"] if batch.metadata.is_decode else [])
    for name in names:
        assert torch.allclose(flat(bench._candidate(name, batch, device)()), truth, atol=1e-5), name


def test_rows_and_command_line(capsys):
    (row,) = bench.bench_attention([("2q1s32", 4, 2, 16)], ["cpu"], repeats=3)
    assert row.candidate == "cpu"
    assert row.ms > 0
    assert row.ratio > 0
    assert bench.main(["2q1s32", "--heads", "4/2", "--head-dim", "16", "--repeats", "2", "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["work"] == "2q1s32"
    assert bench.main(["q8", "--repeats", "1"]) == 0
    assert "ratio" in capsys.readouterr().out
    for wrong in (["nonsense"], ["q8", "--heads", "3/2"], ["q8", "--threads", "0"]):
        with pytest.raises(SystemExit):
            bench.main(wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_gpu_table_says_when_there_is_none():
    with pytest.raises(RuntimeError, match="no GPU is present"):
        bench.bench_gpu()
