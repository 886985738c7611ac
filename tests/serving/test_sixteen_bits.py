"""Models in 16 bits: which type the KV cache has, and that it changes nothing but rounding."""

from __future__ import annotations

import pytest
import torch

from minipaged import LLM, SamplingParams
from minipaged.attention import AttentionMetadata, ReferenceBackend, get_backend
from minipaged.attention.launch import cache_dtype
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.model import load_model
from minipaged.serving.llm import default_num_blocks

pytest.importorskip("numba")
SIXTEEN = [torch.bfloat16, torch.float16]
PROMPTS = ["Four score and seven years ago our", "It was the best of times", "The lamp"]


class OwnBackend(ReferenceBackend):
    """A backend of one's own: it gets the cache in the model's type."""

    name = "own"


def cache_of(llm: LLM) -> torch.dtype:
    return llm.engine.runner.storage.k_cache[0].dtype


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_only_the_kernels_of_the_cpu_get_a_wider_cache(dtype: torch.dtype) -> None:
    assert cache_dtype(get_backend("auto"), dtype) is cache_dtype(get_backend("cpu"), dtype) is torch.float32
    for backend in (get_backend("reference"), get_backend(OwnBackend)):
        assert cache_dtype(backend, dtype) is dtype
    for other in (torch.float32, torch.float64):
        assert cache_dtype(get_backend("cpu"), other) is other


def test_the_interpreter_of_triton_keeps_the_model_s_type() -> None:
    pytest.importorskip("triton")
    assert cache_dtype(get_backend("triton"), torch.bfloat16) is torch.bfloat16


@pytest.mark.parametrize(
    ("attention", "wanted"),
    [("auto", torch.float32), ("cpu", torch.float32), ("reference", torch.bfloat16), (OwnBackend, torch.bfloat16)],
)
def test_the_storage_of_an_engine_has_that_type(attention: object, wanted: torch.dtype) -> None:
    llm = LLM("tiny", dtype=torch.bfloat16, num_blocks=8, attention=attention)
    assert (llm.model.dtype, cache_of(llm)) == (torch.bfloat16, wanted)
    assert cache_of(LLM(load_model("tiny", torch.bfloat16), num_blocks=8, attention=attention)) is wanted


def test_the_default_pool_counts_the_bytes_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("tiny", torch.bfloat16)
    block_bytes = 2 * model[0].config.num_layers * 16 * model[0].config.num_kv_heads * model[0].config.head_dim * 4
    monkeypatch.setattr("minipaged.serving.llm.DEFAULT_CACHE_BYTES", 10 * block_bytes)
    llm = LLM(model)
    assert llm.engine.manager.num_usable_blocks == default_num_blocks(model[0].config, 16, torch.float32) == 10
    assert llm.engine.runner.storage.num_bytes == 10 * block_bytes
    assert LLM(model, attention="reference").engine.manager.num_usable_blocks == 20


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_tokens_are_those_of_the_reference_within_rounding(dtype: torch.dtype) -> None:
    model, params = load_model("tiny", dtype), SamplingParams(max_tokens=24, ignore_eos=True)
    steps: dict[str, list[torch.Tensor]] = {}
    tokens = {}
    for attention in ("cpu", "reference"):
        llm = LLM(model, num_blocks=32, attention=attention)
        execute, seen = llm.engine.runner.execute, steps.setdefault(attention, [])
        llm.engine.runner.execute = lambda *args, run=execute, seen=seen: seen.append(run(*args)) or seen[-1]
        tokens[attention] = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
    for row, pair in enumerate(zip(tokens["cpu"], tokens["reference"], strict=True)):
        # Until rounding turns a near tie, both have seen the same text: their logits may differ by rounding alone.
        same = next((i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), len(pair[0]))
        for step in range(min(same + 1, len(pair[0]))):
            ours, reference = (steps[name][step][row] for name in ("cpu", "reference"))
            torch.testing.assert_close(ours, reference, rtol=0.05, atol=0.3 if dtype is torch.bfloat16 else 0.05)
        assert same > 4


@pytest.mark.parametrize("attention", ["cpu", "reference"])
def test_a_wider_cache_is_written_and_read_in_its_own_type(attention: str) -> None:
    """The reference, too, reads a float32 cache of a bfloat16 model; and it gives what float32 would, rounded."""
    model, _ = load_model("tiny", torch.bfloat16)
    config, backend = model.config, get_backend(attention)
    storage = KVCacheStorage(config.num_layers, 4, 8, config.num_kv_heads, config.head_dim)
    ids, where = torch.tensor([5, 9, 2, 7, 11]), torch.arange(5)
    metadata = AttentionMetadata.build([[2]], [5], [5], range(16, 21))
    with torch.inference_mode():
        hidden = model(ids, where, storage, metadata, backend)
        assert hidden.dtype is torch.bfloat16
        torch.testing.assert_close(model.compute_logits(hidden), model.forward_dense(ids), rtol=0.05, atol=0.3)


def test_swap_keeps_the_wider_cache() -> None:
    """Short of blocks: the same texts as with room."""
    model, params = load_model("tiny", torch.bfloat16), SamplingParams(max_tokens=20, ignore_eos=True)
    roomy = LLM(model, num_blocks=64, block_size=4)
    short = LLM(model, num_blocks=16, block_size=4, preemption="swap", check_integrity=True, watermark=0.0)
    texts = [[output.outputs[0].text for output in llm.generate(PROMPTS, params)] for llm in (roomy, short)]
    assert short.stats.num_preemptions > 0
    assert texts[0] == texts[1]
