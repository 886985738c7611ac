"""/v1/completions: the text is the engine's own, whole or in pieces."""

from __future__ import annotations

import math
import threading

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minipaged.serving import SamplingParams
from tests.serving.server.helpers import PROMPT, running, text_of, tiny_llm, wait_until


@pytest.fixture(scope="module")
def server():
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def llm():
    return tiny_llm()


def test_the_text_is_what_the_engine_generates(server, llm) -> None:
    prompts = [PROMPT, "A page table", "The"]
    expected = llm.generate(prompts, SamplingParams(max_tokens=20))
    answer = server.complete(prompt=prompts, max_tokens=20)
    assert [choice["text"] for choice in answer["choices"]] == [output.outputs[0].text for output in expected]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"


def test_all_shapes_of_a_prompt_mean_the_same(server, llm) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    shapes = (PROMPT, [PROMPT], ids, [ids])
    texts = [[choice["text"] for choice in server.complete(prompt=prompt)["choices"]] for prompt in shapes]
    assert texts == [texts[0]] * 4
    both = server.complete(prompt=[PROMPT, ids])["choices"]
    assert [choice["text"] for choice in both] == texts[0] * 2


def test_usage_counts_a_prompt_once_and_says_what_was_cached(server, llm) -> None:
    prompt = [5, 6, 7, 8] * 12
    first, second = (server.complete(prompt=prompt, n=3, max_tokens=4, ignore_eos=True)["usage"] for _ in range(2))
    assert first == {
        "prompt_tokens": 48,
        "completion_tokens": 12,
        "total_tokens": 60,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    # All but the last block: its last token must be computed, because its logits are needed.
    assert second["prompt_tokens_details"]["cached_tokens"] == 32
    salted = server.complete(prompt=prompt, max_tokens=4, cache_salt="somebody else")["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_stream_says_its_usage_at_the_end_if_asked(server) -> None:
    events = server.stream(max_tokens=5, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert all("usage" not in event for event in server.stream(max_tokens=5))


def test_the_default_is_16_tokens_and_a_temperature_of_1(server, llm) -> None:
    answer = server.post("/v1/completions", {"prompt": PROMPT, "seed": 3, "ignore_eos": True})
    expected = llm.generate(PROMPT, SamplingParams(temperature=1.0, seed=3, ignore_eos=True))[0].outputs[0]
    assert answer["choices"][0]["text"] == expected.text
    assert answer["usage"]["completion_tokens"] == 16


def test_the_end_of_a_text_has_its_reason(server) -> None:
    assert server.complete(max_tokens=3)["choices"][0]["finish_reason"] == "length"
    stopped = server.complete(max_tokens=60, stop=["pages"])["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", "pages")
    assert stopped["text"] == " divides memory into "
    by_token = server.complete(max_tokens=60, stop_token_ids=[server.llm.tokenizer.encode(".")[0]])["choices"][0]
    assert (by_token["finish_reason"], by_token["text"]) == ("stop", " divides memory into pages")


def test_echo_repeats_the_prompt(server, llm) -> None:
    text = server.complete(max_tokens=4)["choices"][0]["text"]
    ids = llm.tokenizer.encode(PROMPT)
    for prompt in (PROMPT, ids):
        assert server.complete(prompt=prompt, max_tokens=4, echo=True)["choices"][0]["text"] == PROMPT + text
        assert text_of(server.stream(prompt=prompt, max_tokens=4, echo=True)) == PROMPT + text


def test_log_probabilities(server, llm) -> None:
    expected = llm.generate(PROMPT, SamplingParams(max_tokens=6, logprobs=3))[0].outputs[0]
    choice = server.complete(max_tokens=6, logprobs=3)["choices"][0]
    found = choice["logprobs"]
    assert found["tokens"] == [llm.tokenizer.decode([token]) for token in expected.token_ids]
    chosen = [top[token] for top, token in zip(expected.logprobs, expected.token_ids, strict=True)]
    assert found["token_logprobs"] == pytest.approx(chosen, abs=1e-4)
    assert all(len(top) == 3 for top in found["top_logprobs"])  # greedy: the chosen one is among the best
    assert all(value <= 0 and math.isfinite(value) for top in found["top_logprobs"] for value in top.values())
    for place, token in zip(found["text_offset"], found["tokens"], strict=True):
        assert choice["text"][place:].startswith(token)


def test_the_log_probabilities_of_a_stream_are_those_of_the_whole(server) -> None:
    for extra in ({}, {"stop": ["pages"]}, {"temperature": 1.5, "seed": 4, "ignore_eos": True}):
        asked = {"max_tokens": 40, "logprobs": 1} | extra
        whole = server.complete(**asked)["choices"][0]["logprobs"]
        pieces = [c["logprobs"] for e in server.stream(**asked) for c in e["choices"] if c["logprobs"]]
        for name in ("tokens", "text_offset"):
            assert [one for piece in pieces for one in piece[name]] == whole[name]
        joined = [one for piece in pieces for one in piece["token_logprobs"]]
        assert joined == pytest.approx(whole["token_logprobs"], abs=1e-4)


def test_log_probabilities_do_not_tell_the_stop_string(server) -> None:
    choice = server.complete(max_tokens=60, stop=["pages"], logprobs=0)["choices"][0]
    assert choice["text"] == " divides memory into "
    assert "".join(choice["logprobs"]["tokens"]) == " divides memory into"  # the next token was " pages"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 3),
    stop=st.lists(st.sampled_from([".", " the", "e", "page", "\ufffd", "中", "s\n"]), max_size=3),
    max_tokens=st.integers(1, 24),
)
def test_pieces_put_together_are_the_whole_text(server, seed, n, stop, max_tokens) -> None:
    """At a high temperature the model writes broken characters and all kinds of beginnings of stop strings."""
    asked = {"seed": seed, "n": n, "stop": stop, "max_tokens": max_tokens, "temperature": 2.0, "ignore_eos": True}
    whole = server.complete(**asked)["choices"]
    events = server.stream(**asked)
    for index, choice in enumerate(whole):
        assert text_of(events, index) == choice["text"]
        assert not any(one in choice["text"] for one in stop)
        ends = [c["finish_reason"] for e in events for c in e["choices"] if c["index"] == index and c["finish_reason"]]
        assert ends == [choice["finish_reason"]]


def test_a_stream_never_shows_a_part_of_a_character(server, llm) -> None:
    text = "内存分页😀"
    ids = llm.tokenizer.encode(text)
    assert len(ids) > len(text)  # several tokens a character
    events = server.stream(prompt=ids, echo=True, max_tokens=1)
    assert text_of(events).startswith(text)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_blocks(server, stream) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": stream, "n": 2}
    finished = server.engine.stats.num_finished_requests
    with httpx.Client(base_url=server.url, timeout=30) as client:
        if stream:
            with client.stream("POST", "/v1/completions", json=body) as response:
                pieces = response.iter_bytes()  # (kept: when this iterator goes, httpx hangs up)
                next(pieces)
                assert server.metric("num_requests_running") == 2
        else:

            def ask() -> None:
                with pytest.raises(httpx.HTTPError):
                    client.post("/v1/completions", json=body, timeout=0.5)

            asking = threading.Thread(target=ask)
            asking.start()
            wait_until(lambda: server.engine.has_unfinished_requests())
            asking.join()
    server.assert_empty()
    assert server.engine.stats.num_finished_requests == finished + 1
    assert server.metric("kv_cache_free_blocks") == 256
    assert server.metric("kv_cache_usage_perc") == 0
