"""Who is let in, and how many."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import httpx
import pytest

from minipaged.serving.server import ServerConfig, create_app, limits
from tests.serving.helpers import make_llm
from tests.serving.server.helpers import PROMPT, running, tiny_llm, wait_until


def test_the_key_is_asked_for_under_v1_only() -> None:
    with running(api_key="right-key") as server:
        get, post = server.client.get, server.client.post
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "right-key"},
                        {"Authorization": "Basic right-key"}, {"Authorization": "Bearer right-key2"},
                        {"Authorization": b"Bearer \xff\xfe"}):
            for response in (get("/v1/models", headers=headers), post("/v1/completions", headers=headers, json={})):
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert "right-key" not in response.text
        for headers in ({"Authorization": "Bearer right-key"}, {"authorization": "bearer  right-key"}):
            assert get("/v1/models", headers=headers).status_code == 200
        assert get("/health").status_code == get("/metrics").status_code == 200


def test_a_full_queue_answers_429_and_takes_requests_again_later() -> None:
    with running(tiny_llm(max_num_seqs=1), max_queue=2) as server:
        long = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=long) as response:
            pieces = response.iter_bytes()  # (kept: when this iterator goes, httpx hangs up)
            next(pieces)  # it runs: the only seat is taken
            waiting = [threading.Thread(target=server.complete, kwargs={"max_tokens": 2}) for _ in range(2)]
            for thread in waiting:
                thread.start()
            wait_until(lambda: len(server.engine.scheduler.waiting) == 2)
            refused = server.client.post("/v1/completions", json={"prompt": PROMPT})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
            assert server.metric("num_requests_waiting") == 2
        # The long one's client has hung up: now the others run.
        for thread in waiting:
            thread.join()
        assert server.complete(max_tokens=2)["usage"]["completion_tokens"] == 2
        server.assert_empty()


def test_while_it_drains_new_requests_get_503_and_running_ones_finish() -> None:
    with running() as server:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(server.complete(max_tokens=300, ignore_eos=True)))
        asking.start()
        wait_until(server.engine.has_unfinished_requests)
        server.server.draining = True
        with httpx.Client(base_url=server.url) as other:
            refused = other.post("/v1/completions", json={"prompt": PROMPT})
            assert refused.status_code == other.get("/health").status_code == 503
            assert refused.json()["error"]["type"] == "server_error"
            assert "retry-after" in refused.headers
            assert other.get("/metrics").status_code == 200
        asking.join()
        assert answers[0]["usage"]["completion_tokens"] == 300


def test_a_body_that_never_ends_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.1)
    with running() as server, socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        head = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 100")
        sock.sendall("\r\n".join(head).encode() + b'\r\n\r\n{"prompt"')
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"error"' in answer


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_queue": 0},
        {"max_queue": "9"},
        {"max_body": -1},
        {"grace_period": float("nan")},
        {"grace_period": -1},
        {"model_name": ""},
        {"model_name": "a\nb"},
        {"api_key": ""},
        {"api_key": "schlüssel"},
        {"api_key": "key "},
    ],
)
def test_limits_that_are_none(wrong) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        ServerConfig(**wrong)


def test_a_model_without_a_tokenizer_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        create_app(make_llm())


def test_a_priority_goes_first_where_the_policy_is_priority() -> None:
    with running(tiny_llm(max_num_seqs=1, policy="priority")) as server:
        order: list[str] = []
        done = server.server.engine.on_finished
        server.server.engine.on_finished = lambda output: (order.append(output.prompt_token_ids[0]), done(output))
        ids = SimpleNamespace(long=[11] * 3, late=[12] * 3, urgent=[13] * 3)
        threads = [
            threading.Thread(target=server.complete, kwargs={"prompt": prompt, "ignore_eos": True} | more)
            for prompt, more in (
                (ids.long, {"max_tokens": 400, "priority": -5}),
                (ids.late, {"max_tokens": 1}),
                (ids.urgent, {"max_tokens": 1, "priority": -1}),
            )
        ]
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda count=number: server.engine._num_requests > count)
        for thread in threads:
            thread.join()
        assert order == [11, 13, 12]
