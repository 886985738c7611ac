"""A server in a thread, on a real socket: as fast as calls in the process, and clients can really hang up."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import httpx

from minipaged.model import load_model
from minipaged.serving import LLM
from minipaged.serving.server import ServerConfig, serve_in_background

PROMPT = "The operating system"


@cache
def tiny() -> tuple:
    return load_model("tiny")


def tiny_llm(**kwargs) -> LLM:
    return LLM(tiny(), **({"num_blocks": 256, "check_integrity": True} | kwargs))


class Running:
    """A running server and a client of it."""

    def __init__(self, llm: LLM, url: str, app) -> None:
        self.llm, self.engine = llm, llm.engine
        self.url, self.port = url, int(url.rpartition(":")[2])
        self.server = app.state.server
        self.client = httpx.Client(base_url=url, timeout=30)

    def complete(self, expected: int = 200, **body) -> dict:
        return self.post("/v1/completions", {"prompt": PROMPT, "temperature": 0} | body, expected)

    def chat(self, expected: int = 200, **body) -> dict:
        asked = {"messages": [{"role": "user", "content": "What is a page table?"}], "temperature": 0}
        return self.post("/v1/chat/completions", asked | body, expected)

    def post(self, path: str, body: dict, expected: int = 200) -> dict:
        response = self.client.post(path, json=body)
        assert response.status_code == expected, response.text
        return response.json()

    def stream(self, path: str = "/v1/completions", **body) -> list[dict]:
        """All events of a stream but [DONE], which must be the last."""
        asked = {"temperature": 0, "stream": True} | ({"prompt": PROMPT} if path == "/v1/completions" else {}) | body
        with self.client.stream("POST", path, json=asked) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            raw = b"".join(response.iter_bytes())
        events = raw.decode().split("\n\n")  # raises where a character is broken
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def metric(self, name: str, labels: str = "") -> float:
        text = self.client.get("/metrics").text
        return sum(map(float, re.findall(rf"^minipaged:{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", text, re.MULTILINE)))

    def assert_empty(self) -> None:
        """Soon nobody runs, and every block is free."""
        wait_until(lambda: not self.engine.has_unfinished_requests())
        manager = self.engine.manager
        wait_until(lambda: manager.num_free_blocks == manager.num_usable_blocks)


@contextmanager
def running(llm: LLM | None = None, **config) -> Iterator[Running]:
    """When it ends, the pool must be whole and empty: ``serve_in_background`` raises otherwise."""
    llm = llm or tiny_llm()
    with serve_in_background(llm, ServerConfig(**config)) as (url, app):
        server = Running(llm, url, app)
        with server.client:
            yield server


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Long enough for a busy machine; it returns at once when the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def text_of(events: list[dict], index: int = 0) -> str:
    """The text of one choice, put together from a stream of completions or of chat."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
