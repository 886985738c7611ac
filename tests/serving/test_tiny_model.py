"""The bundled model: the text does not depend on anything but the prompt and the sampling parameters."""

from __future__ import annotations

import random

import pytest
import torch

from minipaged.model import QUESTION_ADDRESS, QUESTION_RETURN, SYSTEM_PROMPT, load_model
from minipaged.serving import LLM, BeamSearchParams, SamplingParams
from tests.serving.helpers import assert_empty, naive_beam_search

MODEL = load_model("tiny")
GETTYSBURG = "Four score and seven years ago our"
PROMPTS = [GETTYSBURG, SYSTEM_PROMPT + QUESTION_RETURN, SYSTEM_PROMPT + QUESTION_ADDRESS, "A block table"]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


def dense_greedy(token_ids, max_tokens):
    """The truth: the whole sequence anew for each token, no cache."""
    tokens = list(token_ids)
    for _ in range(max_tokens):
        with torch.inference_mode():
            tokens.append(int(MODEL[0].forward_dense(torch.tensor(tokens))[-1].argmax()))
    return tokens[len(token_ids) :]


@pytest.fixture(scope="module")
def wanted():
    return [dense_greedy(MODEL[1].encode(prompt), 12) for prompt in PROMPTS]


def llm(**kwargs) -> LLM:
    return LLM(MODEL, **({"num_blocks": 64, "attention": "reference", "check_integrity": True} | kwargs))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"block_size": 1, "num_blocks": 200},
        {"block_size": 5},
        {"attention": "cpu"},
        {"free_order": random.Random(0).sample(range(64), 64)},
        {"null_block": True},
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 3},
        {"max_num_seqs": 1},
        {"num_blocks": 9, "block_size": 4, "watermark": 0.0},
        {"num_blocks": 9, "block_size": 4, "watermark": 0.0, "preemption": "swap"},
        {"num_blocks": 9, "block_size": 4, "preemption": "swap", "num_cpu_blocks": 0, "num_disk_blocks": 50},
    ],
    ids=str,
)
def test_text_is_the_truths_in_every_setting(arguments, wanted):
    if arguments.get("attention") == "cpu":
        pytest.importorskip("numba")
    engine = llm(**arguments)
    for _ in range(2):  # the second time from the prefix cache
        outputs = engine.generate(PROMPTS, GREEDY)
        assert [output.outputs[0].token_ids for output in outputs] == wanted
    assert_empty(engine)


@pytest.mark.parametrize("block_size", [1, 16])
def test_triton_gives_the_same_text(block_size, wanted):
    """Short, because the CPU interpreter takes milliseconds for each program of the grid."""
    pytest.importorskip("triton")
    engine = llm(attention="triton", block_size=block_size)
    outputs = engine.generate([PROMPTS[0], PROMPTS[3]], SamplingParams(max_tokens=3, ignore_eos=True))
    assert [output.outputs[0].token_ids for output in outputs] == [wanted[0][:3], wanted[3][:3]]
    assert_empty(engine)


def test_64_requests_in_a_pool_that_forces_swapping():
    rng = random.Random(1)
    prompts = [rng.choice(PROMPTS) + rng.choice(["", " and", " the page", " thank you"]) for _ in range(64)]
    params = [SamplingParams(max_tokens=rng.randint(4, 12)) for _ in prompts]
    ample = llm(num_blocks=400, block_size=8, check_integrity=False).generate(prompts, params)
    tight = llm(num_blocks=12, block_size=8, preemption="swap", watermark=0.0)
    outputs = tight.generate(prompts, params)
    assert [o.outputs[0].text for o in outputs] == [o.outputs[0].text for o in ample]
    assert tight.stats.num_swapped_out_blocks > 0
    assert tight.stats.num_swapped_in_blocks == tight.stats.num_swapped_out_blocks
    assert_empty(tight)


def test_logprobs_are_those_of_the_model():
    output = llm().generate(GETTYSBURG, SamplingParams(max_tokens=4, logprobs=3))[0]
    tokens = output.prompt_token_ids + output.outputs[0].token_ids
    with torch.inference_mode():
        truth = MODEL[0].forward_dense(torch.tensor(tokens)).log_softmax(-1)
    for place, found in enumerate(output.outputs[0].logprobs, len(output.prompt_token_ids) - 1):
        for token, value in found.items():
            assert value == pytest.approx(float(truth[place, token]), abs=1e-4)


@pytest.mark.parametrize("penalty", [1.0, 2.0])
def test_beam_search_equals_one_without_cache_and_sharing(penalty):
    params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=penalty)

    def logits_after(tokens):
        with torch.inference_mode():
            return MODEL[0].forward_dense(torch.tensor(tokens))[-1]

    for prompt in (GETTYSBURG, SYSTEM_PROMPT):
        found = llm(block_size=4).generate(prompt, params)[0].outputs
        truth = naive_beam_search(MODEL[1].encode(prompt), params, logits_after, MODEL[0].config.eos_token_id)
        assert [o.token_ids for o in found] == [tokens for tokens, _ in truth]
        assert [o.score for o in found] == pytest.approx([score for _, score in truth], abs=1e-4)


class TestText:
    def test_continues_as_it_should(self):
        output = llm().generate(GETTYSBURG, SamplingParams(max_tokens=3))[0]
        assert output.prompt == GETTYSBURG
        assert output.outputs[0].text == " fathers brought forth"

    def test_stop_string_is_cut_off_also_within_a_token(self):
        for stop, text in ((" forth", " fathers brought"), ("rought", " fathers b"), ("s bro", " father")):
            output = llm().generate(GETTYSBURG, SamplingParams(max_tokens=8, stop=["never", stop]))[0].outputs[0]
            assert (output.text, output.finish_reason, output.stop_reason) == (text, "stop", stop)

    def test_stop_token_is_cut_off(self):
        (brought,) = MODEL[1].encode(" brought")
        output = llm().generate(GETTYSBURG, SamplingParams(max_tokens=8, stop_token_ids=[brought]))[0].outputs[0]
        assert (output.text, output.stop_reason, output.token_ids[-1]) == (" fathers", brought, brought)

    def test_stream_never_shows_what_may_become_a_stop_string(self):
        engine = llm().engine
        engine.add_request(GETTYSBURG, SamplingParams(max_tokens=8, stop=" continent"), stream=True)
        texts = []
        while engine.has_unfinished_requests():
            texts += [output.outputs[0].text for output in engine.step()]
        assert texts[-1] == " fathers brought forth on this"
        assert all(texts[-1].startswith(text) for text in texts)
        assert len(texts) > 3

    def test_streamed_text_is_the_whole_text_also_of_broken_characters(self):
        """High temperature draws single bytes of characters."""
        for seed in range(6):
            params = SamplingParams(max_tokens=12, temperature=3.0, seed=seed, ignore_eos=True)
            whole = llm().generate("中文", params)[0].outputs[0].text
            engine = llm().engine
            engine.add_request("中文", params, stream=True)
            texts = []
            while engine.has_unfinished_requests():
                texts += [output.outputs[0].text for output in engine.step()]
            assert texts[-1] == whole
            assert all(whole.startswith(text) for text in texts)

    def test_default_pool_holds_several_full_sequences(self):
        engine = LLM(MODEL).engine
        assert engine.manager.pool.num_blocks * 16 == 4 * MODEL[0].config.max_position_embeddings
