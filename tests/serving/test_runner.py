"""The worker's own duties: a warm-up that compiles what requests need, and touches nothing of theirs."""

from __future__ import annotations

import pytest
import torch

from minipaged.serving import LLM, SamplingParams
from tests.serving.helpers import assert_empty

PROMPTS = ["Four score and seven years ago our", "The"]


@pytest.mark.parametrize(
    ("attention", "block_size"), [("cpu", 1), ("cpu", 16), ("cpu", 100), ("reference", 16), ("triton", 16)]
)
def test_a_warm_up_changes_nothing(attention, block_size):
    params = SamplingParams(max_tokens=8)
    expected = [one.outputs[0].text for one in LLM("tiny").generate(PROMPTS, params)]
    llm = LLM("tiny", attention=attention, num_blocks=1 + 400 // block_size, block_size=block_size)
    storage = llm.engine.runner.storage
    for cache in (*storage.k_cache, *storage.v_cache):
        cache[1:] = float("nan")  # all blocks but the one that nobody owns
    before = [cache.clone() for cache in (*storage.k_cache, *storage.v_cache)]
    llm.engine.runner.warm_up()
    now = [*storage.k_cache, *storage.v_cache]
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, now, strict=True))
    assert llm.stats.num_steps == 0
    assert_empty(llm)
    assert [one.outputs[0].text for one in llm.generate(PROMPTS, params)] == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_after_a_warm_up_requests_compile_nothing(threads):
    pytest.importorskip("numba")
    from numba.core.dispatcher import Dispatcher

    torch.set_num_threads(threads)
    llm = LLM("tiny", attention="cpu", num_blocks=400)
    llm.engine.runner.warm_up()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dispatcher, "compile", lambda self, signature: pytest.fail(f"{self} is compiled: {signature}"))
        llm.generate(PROMPTS, SamplingParams(max_tokens=4))
        llm.generate([PROMPTS[0]] * 40, SamplingParams(max_tokens=40))
