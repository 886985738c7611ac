"""Whatever is wrong with a request: a 4xx in OpenAI's shape that names the field, and nothing has changed."""

from __future__ import annotations

import json

import pytest

from tests.serving.server.helpers import PROMPT, running, tiny_llm

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "Hello"}
SMALLEST = {COMPLETIONS: {"prompt": "x"}, CHAT: {"messages": [USER]}}


@pytest.fixture(scope="module")
def server():
    with running(tiny_llm(num_blocks=64, max_num_seqs=16), max_queue=8, max_body=100_000) as one:
        yield one
        assert one.engine.stats.num_steps == 0  # nothing of all this reached a step
        one.assert_empty()


def refused(server, response, status: int = 400, param: str | None = None) -> str:
    """Checks an error's shape and that nobody got anything. Returns the message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["message"]
    assert not server.engine.has_unfinished_requests()
    assert server.engine.manager.num_free_blocks == server.engine.manager.num_usable_blocks
    return error["message"]


BOTH = [
    ("n", 0, "1"),
    ("n", 129, "128"),
    ("n", 17, "16"),
    ("n", True, "integer"),
    ("n", 1.5, "integer"),
    ("n", "2", "integer"),
    ("max_tokens", 0, "1"),
    ("max_tokens", -1, "1"),
    ("max_tokens", 10**40, "2147483647"),
    ("max_tokens", "16", "integer"),
    ("max_tokens", 4096, "4096"),
    ("max_tokens", 2000, "num_blocks="),
    ("temperature", -0.1, "0"),
    ("temperature", 2.5, "2"),
    ("temperature", "hot", "number"),
    ("temperature", 10**400, "temperature"),
    ("top_p", 0, "0"),
    ("top_p", 1.01, "1"),
    ("top_p", [1], "number"),
    ("top_k", -2, "-1"),
    ("top_k", 1.0, "integer"),
    ("seed", 2**63, "9223372036854775808"),
    ("seed", "x", "integer"),
    ("stop", 3, "string"),
    ("stop", [""], "empty"),
    ("stop", ["a", 1], "strings"),
    ("stop", ["x"] * 17, "16"),
    ("stop_token_ids", [-1], "0"),
    ("stop_token_ids", [1024], "1023"),
    ("stop_token_ids", "a", "token ids"),
    ("stream", 1, "boolean"),
    ("stream", "true", "boolean"),
    ("stream_options", {"include_usage": True}, "stream"),
    ("ignore_eos", "no", "boolean"),
    ("cache_salt", "", "1"),
    ("cache_salt", 5, "string"),
    ("priority", 1, "--scheduling-policy"),
    ("priority", 0.5, "integer"),
    ("model", 5, "string"),
    ("user", 7, "string"),
    ("frequency_penalty", 0.5, "support"),
    ("presence_penalty", True, "support"),
    ("logit_bias", {"50": 10}, "support"),
    ("min_p", 0.1, "support"),
    ("repetition_penalty", 1.1, "support"),
    ("max_token", 5, "max_tokens"),
    ("guided_json", {}, "no field"),
]


@pytest.mark.parametrize(("field", "value", "word"), BOTH)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_wrong_value_is_named(server, path, field, value, word) -> None:
    body = ({"prompt": PROMPT} if path == COMPLETIONS else {"messages": [USER]}) | {field: value}
    message = refused(server, post(server, path, body), param=field)
    assert field in message
    assert word in message


ONLY_COMPLETIONS = [
    ("prompt", None, "string"),
    ("prompt", "", "empty"),
    ("prompt", [], "empty"),
    ("prompt", [[]], "empty"),
    ("prompt", 5, "string"),
    ("prompt", {"a": 1}, "string"),
    ("prompt", [1, "a"], "integer"),
    ("prompt", ["a", 1], "token ids"),
    ("prompt", [True], "token ids"),
    ("prompt", [1.0], "token ids"),
    ("prompt", [-1], "0"),
    ("prompt", [1024], "1023"),
    ("prompt", [10**30], "token id"),
    ("prompt", [1] * 4097, "4096"),
    ("prompt", [1] * 2000, "64"),
    ("prompt", "a\ud800b", "Unicode"),
    ("prompt", ["a"] * 9, "8"),
    ("logprobs", -1, "0"),
    ("logprobs", 21, "20"),
    ("logprobs", True, "integer"),
    ("echo", "yes", "boolean"),
    ("best_of", 3, "support"),
    ("suffix", "end", "support"),
    ("messages", [USER], "no field"),
]


@pytest.mark.parametrize(("field", "value", "word"), ONLY_COMPLETIONS)
def test_a_wrong_value_of_completions_is_named(server, field, value, word) -> None:
    message = refused(server, post(server, COMPLETIONS, {"prompt": PROMPT} | {field: value}), param=field)
    assert word in message


ONLY_CHAT = [
    ({"messages": []}, "messages", "1"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": None}, "messages", "list"),
    ({"messages": ["hi"]}, "messages[0]", "Message"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
    ({"messages": [USER, {"role": "wizard", "content": "x"}]}, "messages[1].role", "wizard"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "tool"),
    ({"messages": [USER | {"content": None}]}, "messages[0].content", "string"),
    ({"messages": [USER | {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content",
     "text only"),
    ({"messages": [USER | {"name": "Ann"}]}, "messages[0].name", "support"),
    ({"messages": [USER | {"mood": "good"}]}, "messages[0].mood", "no field"),
    ({"messages": [USER | {"content": "a\udc00"}]}, "messages[0].content", "Unicode"),
    ({"messages": [USER | {"content": "word " * 5000}]}, "messages", "4096"),
    ({"logprobs": 5}, "logprobs", "boolean"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "1"),
    ({"max_completion_tokens": 5000}, "max_completion_tokens", "4096"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens", "one of them"),
    ({"tools": [{"type": "function"}]}, "tools", "support"),
    ({"tool_choice": "auto"}, "tool_choice", "support"),
    ({"response_format": {"type": "json_object"}}, "response_format", "support"),
    ({"modalities": ["audio"]}, "modalities", "support"),
    ({"audio": {"voice": "x"}}, "audio", "support"),
    ({"service_tier": "flex"}, "service_tier", "support"),
    ({"store": True}, "store", "support"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "support"),
    ({"prompt": "x"}, "prompt", "no field"),
]


@pytest.mark.parametrize(("change", "param", "word"), ONLY_CHAT)
def test_a_wrong_value_of_chat_is_named(server, change, param, word) -> None:
    assert word in refused(server, post(server, CHAT, {"messages": [USER]} | change), param=param)


BODIES = [
    (b"", "JSON"),
    (b"{", "JSON"),
    (b"[]", "array"),
    (b"null", "null"),
    (b'"prompt"', "string"),
    (b"3", "number"),
    (b'{"prompt": "x",}', "JSON"),
    (b'{"prompt": "x"} {}', "JSON"),
    (b'{"prompt": "\xff\xfe"}', "UTF-8"),
    ('{"prompt": "x"}'.encode("utf-16"), "UTF-8"),
    (b'{"prompt": "x", "temperature": NaN}', "NaN"),
    (b'{"prompt": "x", "temperature": -Infinity}', "Infinity"),
    (b'{"prompt": "x", "seed": 1' + b"0" * 5000 + b"}", "JSON"),
    (b"[" * 50_000, "deep"),
    (b'{"a":' * 15_000 + b"1" + b"}" * 15_000, "deep"),
    (b'{"prompt": "a\x00"}', "control character at line 1, column 14"),
]


@pytest.mark.parametrize(("body", "word"), BODIES)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_body_that_is_no_json_object(server, path, body, word) -> None:
    response = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert word in refused(server, response)


def test_a_number_that_is_too_large_for_a_float(server) -> None:
    response = server.client.post(
        COMPLETIONS, content=b'{"prompt": "x", "temperature": 1e999}', headers={"content-type": "application/json"}
    )
    assert "temperature" in refused(server, response, param="temperature")


def test_half_a_character_in_the_name_of_a_field(server) -> None:
    assert "Unicode" in refused(server, post(server, COMPLETIONS, {"prompt": "x", "\ud800": 1}))


@pytest.mark.parametrize("half", ["\ud800", "x\udfff y"])
def test_half_a_character_in_the_text_of_a_field(server, half) -> None:
    texts = [(COMPLETIONS, {"prompt": half}, "prompt"), (COMPLETIONS, {"prompt": ["fine", half]}, "prompt")]
    parts = [{"type": "text", "text": half}]
    texts += [(CHAT, {"messages": [USER, USER | {"content": one}]}, "messages[1].content") for one in (half, parts)]
    for field, value in (("stop", half), ("stop", ["fine", half]), ("cache_salt", half), ("user", half)):
        texts += [(path, body | {field: value}, field) for path, body in SMALLEST.items()]
    for path, body, param in texts:
        assert "Unicode" in refused(server, post(server, path, body), param=param)


def test_the_missing_field_is_named(server) -> None:
    assert "prompt" in refused(server, post(server, COMPLETIONS, {}), param="prompt")
    assert "messages" in refused(server, post(server, CHAT, {}), param="messages")


def test_an_unknown_model(server) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": [USER]})):
        message = refused(server, post(server, path, body | {"model": "gpt-5"}), 404, "model")
        assert "'tiny'" in message
    refused(server, server.client.get("/v1/models/gpt-5"), 404, "model")


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml"])
def test_a_body_that_is_not_sent_as_json(server, content_type) -> None:
    headers = {"content-type": content_type} if content_type else {}
    response = server.client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert "application/json" in refused(server, response, 415)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": 'application/json; charset="UTF-16"'},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_a_body_that_is_packed_or_in_another_alphabet(server, headers) -> None:
    response = server.client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert list(headers.values())[-1].rpartition("=")[2].strip('"').lower() in refused(server, response, 415).lower()


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'])
def test_utf_8_may_be_said(server, content_type) -> None:
    headers = {"content-type": content_type, "content-encoding": "identity"}
    response = server.client.post(COMPLETIONS, content=b'{"prompt": ""}', headers=headers)
    assert "empty" in refused(server, response, param="prompt")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large(server, chunked) -> None:
    body = json.dumps({"prompt": "x" * 200_000}).encode()
    content = (body[i : i + 1000] for i in range(0, len(body), 1000)) if chunked else body
    response = server.client.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})
    assert "--max-body" in refused(server, response, 413)


def test_paths_and_methods_that_are_not_there(server) -> None:
    refused(server, server.client.get("/nowhere"), 404)
    refused(server, server.client.post("/v1/embeddings", json={}), 404)
    refused(server, server.client.post(COMPLETIONS + "/", json={"prompt": "x"}), 404)
    response = server.client.get(COMPLETIONS)
    assert "POST" in refused(server, response, 405)
    assert response.headers["allow"] == "POST"
    refused(server, server.client.delete("/v1/models"), 405)


def test_one_bad_prompt_among_good_ones_is_named(server) -> None:
    message = refused(server, post(server, COMPLETIONS, {"prompt": ["fine", "", "fine"]}), param="prompt[1]")
    assert "empty" in message


def post(server, path: str, body: dict):
    return server.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
