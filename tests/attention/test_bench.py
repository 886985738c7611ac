"""The grammar of work items, and that every way of the benchmark computes the same before it is timed."""

import itertools
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported
from minipaged.attention import AttentionMetadata, bench, paged_attention
from minipaged.attention import bench_gpu_peers as peers
from minipaged.bench import attention as bench_command


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


def test_rows_and_command_line(capsys, tmp_path):
    (row,) = bench.bench_attention([("2q1s32", 4, 2, 16)], ["cpu"], repeats=3)
    assert row.candidate == "cpu"
    assert row.ms > 0
    assert row.ratio > 0
    assert bench_command.main(["2q1s32", "--heads", "4/2", "--head-dim", "16", "--repeats", "2",
                               "--json", str(tmp_path / "a.json")]) == 0  # fmt: skip
    assert capsys.readouterr().out.splitlines()[1].startswith("2q1s32")
    written = json.loads((tmp_path / "a.json").read_text())
    assert (written["rows"][0]["work"], written["settings"]["repeats"]) == ("2q1s32", 2)
    assert written["machine"]["torch"]
    assert bench_command.main(["q8", "--repeats", "1"]) == 0
    assert "ratio" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "'nonsense' of 'nonsense' is not understood"),
        (["q8", "--heads", "3/2"], "--heads is '3/2', but must be"),
        (["q8", "--heads", "8"], "--heads is '8', but must be"),
        (["q8", "--heads", "8/0"], "--heads is '8/0', but must be"),
        (["q8", "--threads", "0"], "--threads is 0, but must be at least 1"),
        (["q8", "--head-dim", "-2"], "--head-dim is -2, but must be at least 1"),
    ],
)
def test_arguments_that_cannot_be(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench_command.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_gpu_table_says_when_there_is_none(capsys):
    with pytest.raises(RuntimeError, match="torch finds no GPU"):
        bench.bench_gpu()
    for arguments in ([], ["q8"]):
        with pytest.raises(SystemExit):
            bench_command.main([*arguments, "--device", "cuda"])
        assert "torch finds no GPU on this machine: use --device cpu" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_peers_that_are_not_installed_and_one_that_is():
    """FlexAttention is torch's own, and its paged cache runs on a CPU too, not compiled."""
    rows = peers.bench_peers([("3q1s150", 4, 2, 16)], 1, device="cpu", dtype=torch.float32)
    by_name = {row["peer"]: row for row in rows}
    flex = by_name.pop("flex-attention paged")
    assert flex["error"] < 1e-5
    assert flex["ms"] > 0
    for row in by_name.values():
        assert row["ms"] is None
        assert row["reason"]


def test_a_peer_that_computes_something_else_gets_no_time():
    wrong = {"wrong": lambda batch: lambda: torch.zeros_like(batch.query)}
    (row,) = peers.bench_peers([("2q1s8", 4, 2, 16)], 1, "cpu", torch.float32, wrong)
    assert row["ms"] is None
    assert row["reason"] == "ValueError: its result is off by 1.0 of the largest value"


def attended(query, k, v, tables, lengths, starts, scale):
    news = (starts[1:] - starts[:-1]).tolist()
    metadata = AttentionMetadata.build(tables, lengths.tolist(), news, [-1] * len(query))
    return paged_attention(query, k, v, metadata, scale)[0]


def flash_attn_2():
    """The signature of flash-attn 2.8 (flash_attn/flash_attn_interface.py)."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        assert causal
        assert k.shape[1] % 256 == 0  # csrc/flash_attn/flash_api.cpp
        assert cu_seqlens_k.dtype == block_table.dtype == torch.int32
        assert (max_seqlen_q, max_seqlen_k) == (int((cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max()), int(lengths.max()))
        return attended(q, k, v, block_table.tolist(), lengths, cu_seqlens_q, softmax_scale)

    return SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


def flashinfer_0_6():
    """The signatures of flashinfer/prefill.py, BatchPrefillWithPagedKVCacheWrapper."""

    class Wrapper:
        def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False):
            assert kv_layout == "NHD"

        def plan(
            self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
            head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
            pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1,
            logits_soft_cap=None, rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None,
        ):  # fmt: skip
            assert causal
            ends = paged_kv_indptr.tolist()
            self.tables = [paged_kv_indices[a:b].tolist() for a, b in itertools.pairwise(ends)]
            self.lengths = (paged_kv_indptr[1:] - paged_kv_indptr[:-1] - 1) * page_size + paged_kv_last_page_len
            self.starts, self.scale = qo_indptr, sm_scale

        def run(self, q, paged_kv_cache):
            return attended(q, *paged_kv_cache, self.tables, self.lengths, self.starts, self.scale)

    return SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)


def vllm_0_32():
    """The signature of vllm/v1/attention/ops/triton_unified_attention.py."""

    def unified_attention(
        q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
        block_table, softcap, q_descale, k_descale, v_descale, seq_threshold_3D=None, num_par_softmax_segments=None,
        softmax_segm_output=None, softmax_segm_max=None, softmax_segm_expsum=None,
    ):  # fmt: skip
        assert causal
        assert softmax_segm_output.shape == (seq_threshold_3D, q.shape[1], num_par_softmax_segments, 32)
        assert softmax_segm_max.shape == softmax_segm_expsum.shape == softmax_segm_output.shape[:3]
        out.copy_(attended(q, k, v, block_table.tolist(), seqused_k, cu_seqlens_q, softmax_scale))

    return SimpleNamespace(unified_attention=unified_attention)


@pytest.mark.parametrize("work", ["3q1s300", "q20_q3s40_2q1s17"])
@pytest.mark.parametrize(
    ("peer", "module", "stand_in"),
    [
        ("flash-attn", "flash_attn", flash_attn_2),
        ("flashinfer", "flashinfer", flashinfer_0_6),
        ("vllm unified", "vllm.v1.attention.ops.triton_unified_attention", vllm_0_32),
    ],
)
def test_peers_are_called_as_their_sources_say(work, peer, module, stand_in, monkeypatch):
    """Without a GPU none of them runs: a stand-in has the signature, and attends to what it was given."""
    for n in range(1, module.count(".") + 1):
        monkeypatch.setitem(sys.modules, module.rsplit(".", n)[0], ModuleType("package"))
    monkeypatch.setitem(sys.modules, module, stand_in())
    chosen = {peer: peers.PEERS[peer]}
    (row,) = peers.bench_peers([(work, 4, 2, 24)], 1, "cpu", torch.float32, chosen)
    assert "reason" not in row
    assert row["error"] < 1e-5
