"""A tiny OpenAI-compatible server in a thread, which behaves or misbehaves as a test asks."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeServer:
    """Answers /v1/models, /v1/completions and /metrics; `misbehave(number, body)` may replace an answer.

    It returns None (behave), an (HTTP status, headers, body) to send, or the number of tokens after which to hang up.
    The probe is request 0. Cached tokens are counted as a server with blocks of 16 tokens would count them.
    """

    misbehave: Callable[[int, dict], Any] = lambda number, body: None
    models: tuple[str, ...] = ("fake",)
    max_model_len: int | None = 4096
    metrics_prefix: str | None = "vllm:"
    usage: bool = True
    api_key: str | None = None
    stop_after: int | None = None  # tokens after which a model "ends", unless ignore_eos
    keep_alive: bool = False  # and streams in chunks, as uvicorn does
    connections: int = 0
    bodies: list[dict] = field(default_factory=list)
    in_flight: int = 0
    peak_in_flight: int = 0
    blocks: set = field(default_factory=set)
    queries: int = 0
    hits: int = 0

    def __enter__(self) -> FakeServer:
        started = threading.Event()
        self.loop = asyncio.new_event_loop()

        async def serve() -> None:
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.stop = asyncio.Event()
            started.set()
            await self.stop.wait()
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(serve()), daemon=True)
        self.thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(10)
        self.loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._answer(reader, writer)
            while self.keep_alive:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"null")
        if self.api_key and headers.get("authorization") != f"bearer {self.api_key}":
            self._write(writer, 401, {"error": {"message": "Incorrect API key provided"}})
        elif (method, path) == ("GET", "/v1/models"):
            cards = [{"id": name, "object": "model", "max_model_len": self.max_model_len} for name in self.models]
            self._write(writer, 200, {"object": "list", "data": cards})
        elif (method, path) == ("GET", "/metrics") and self.metrics_prefix:
            self._write(writer, 200, "".join(self._metrics()))
        elif (method, path) == ("POST", "/v1/completions"):
            await self._completion(writer, body)
        else:
            self._write(writer, 404, {"detail": "Not Found"})
        await writer.drain()

    def _metrics(self) -> Iterator[str]:
        values = {
            "kv_cache_usage_perc": 0.25 if self.in_flight else 0.0,
            "num_requests_running": self.in_flight,
            "num_requests_waiting": 0,
            "prefix_cache_queries_total": self.queries,
            "prefix_cache_hits_total": self.hits,
            "num_preemptions_total": 3,
        }
        yield "# HELP and TYPE lines are ignored\n"
        for name, value in values.items():
            yield f'{self.metrics_prefix}{name}{{engine="0",model_name="fake"}} {value}\n'

    def _write(
        self, writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None
    ) -> None:
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        lines = {"content-length": str(len(raw)), "content-type": "application/json"}
        lines |= {} if self.keep_alive else {"connection": "close"}
        lines |= headers or {}
        writer.write(f"HTTP/1.1 {status} x\r\n".encode())
        writer.write("".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode() + b"\r\n" + raw)

    async def _completion(self, writer: asyncio.StreamWriter, body: dict) -> None:
        number = len(self.bodies)
        self.bodies.append(body)
        answer = self.misbehave(number, body)
        if isinstance(answer, tuple):
            status, headers, content = answer
            self._write(writer, status, content, headers)
            return
        cached = self._look_up(body["prompt"])
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            how = "transfer-encoding: chunked" if self.keep_alive else "connection: close"
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{how}\r\n\r\n".encode())
            self._send(writer, b": a ping\n\n")
            ends = None if body.get("ignore_eos") else self.stop_after
            wanted = min(body["max_tokens"], ends or body["max_tokens"])
            for token in range(wanted):
                if token == answer:
                    raise ConnectionResetError("as the test asks")
                last = {"finish_reason": "length" if wanted == body["max_tokens"] else "stop"}
                choice = {"index": 0, "text": f" {token}\u2028", **(last if token == wanted - 1 else {})}
                self._event(writer, {"choices": [choice]})
                await writer.drain()
                await asyncio.sleep(0.001)
            if self.usage and body["stream_options"]["include_usage"]:
                usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": wanted}
                self._event(
                    writer, {"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}}
                )
            self._send(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n" if self.keep_alive else b"")
        finally:
            self.in_flight -= 1

    def _event(self, writer: asyncio.StreamWriter, chunk: dict) -> None:
        self._send(writer, f"data: {json.dumps(chunk, ensure_ascii=False)}\r\n\r\n".encode())

    def _send(self, writer: asyncio.StreamWriter, raw: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(raw), raw) if self.keep_alive else raw)

    def _look_up(self, prompt: list[int]) -> int:
        full = [tuple(prompt[:end]) for end in range(16, len(prompt), 16)]
        hit = 0
        while hit < len(full) and full[hit] in self.blocks:
            hit += 1
        self.blocks.update(full)
        self.queries += len(prompt)
        self.hits += 16 * hit
        return 16 * hit
