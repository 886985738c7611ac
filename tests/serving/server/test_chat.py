"""/v1/chat/completions: messages become the prompt that the model was trained on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.serving import SamplingParams
from minipaged.serving.server.token_bytes import token_bytes
from tests.serving.server.helpers import running, text_of, tiny, tiny_llm

CHAT = "/v1/chat/completions"
QUESTION = {"role": "user", "content": "What is a page table?"}


@pytest.fixture(scope="module")
def server():
    with running(tiny_llm(), model_name="the-tiny-one") as one:
        yield one


def test_the_answer_is_what_the_engine_generates(server) -> None:
    messages = [{"role": "system", "content": "You know operating systems."}, QUESTION]
    prompt = server.llm.tokenizer.apply_chat_template(messages)
    expected = tiny_llm().generate(prompt, SamplingParams(max_tokens=40))[0]
    answer = server.chat(messages=messages, max_tokens=40)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.outputs[0].text, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "the-tiny-one"
    assert answer["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    newer = server.chat(messages=[messages[0] | {"role": "developer"}, QUESTION], max_tokens=40)
    assert newer["choices"][0]["message"] == choice["message"]


def test_text_parts_are_put_together(server) -> None:
    parts = [{"type": "text", "text": "What is a "}, {"type": "text", "text": "page table?"}]
    in_parts, whole = server.chat(messages=[QUESTION | {"content": parts}]), server.chat()
    assert in_parts["choices"] == whole["choices"]


def test_without_a_limit_an_answer_may_be_as_long_as_model_and_pool_allow(server) -> None:
    assert server.chat()["choices"][0]["finish_reason"] == "stop"
    assert server.chat(max_completion_tokens=2)["usage"]["completion_tokens"] == 2
    assert server.chat(max_tokens=3)["usage"]["completion_tokens"] == 3


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(server) -> None:
    whole = server.chat(n=2)["choices"]
    events = server.stream(CHAT, messages=[QUESTION], n=2, stream_options={"include_usage": True})
    for index in range(2):
        pieces = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
        assert [piece["finish_reason"] for piece in pieces[1:]] == [None] * (len(pieces) - 2) + ["stop"]
        assert text_of(events, index) == whole[index]["message"]["content"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert events[-1]["usage"]["completion_tokens"] > 2


def test_log_probabilities(server) -> None:
    entries = server.chat(max_tokens=5, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(entries) == 5
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]  # whole characters, here
        assert [one["logprob"] for one in entry["top_logprobs"]] == sorted(
            (one["logprob"] for one in entry["top_logprobs"]), reverse=True
        )
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy
        assert len(entry["top_logprobs"]) == 2
    alone = server.chat(max_tokens=5, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in alone] == [entry["token"] for entry in entries]
    assert all(entry["top_logprobs"] == [] for entry in alone)
    events = server.stream(CHAT, messages=[QUESTION], max_tokens=5, logprobs=True)
    streamed = [e for event in events for c in event["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


@given(st.text(min_size=1, max_size=20))
def test_the_bytes_of_its_tokens_are_the_text(text) -> None:
    _, tokenizer = tiny()
    pieces = [token_bytes(tokenizer, token) for token in tokenizer.encode(text)]
    assert b"".join(pieces).decode() == text


def test_the_bytes_of_a_special_token() -> None:
    _, tokenizer = tiny()
    assert token_bytes(tokenizer, tokenizer.eos_token_id) == tokenizer.eos_token.encode()


def test_documented_fields_are_accepted_at_their_default(server) -> None:
    """What a client library may send without having been asked to."""
    plain = server.chat(max_tokens=4)["choices"]
    defaults = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "logprobs": False,
        "metadata": {},
        "modalities": ["text"],
        "n": 1,
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "response_format": {"type": "text"},
        "safety_identifier": "s",
        "service_tier": "auto",
        "stop": None,
        "store": False,
        "stream": False,
        "stream_options": None,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1,
        "user": "me",
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "skip_special_tokens": True,
    }
    assert server.chat(max_tokens=4, **defaults)["choices"] == plain
    assert server.complete(max_tokens=4, best_of=1, suffix=None, echo=False, logprobs=None, user="")["choices"]


def test_models(server) -> None:
    listed = server.client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["the-tiny-one"]
    assert server.client.get("/v1/models/the-tiny-one").json() == listed["data"][0]
    assert listed["data"][0]["max_model_len"] == 4096
