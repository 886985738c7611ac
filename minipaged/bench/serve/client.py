"""One streaming request to an OpenAI-compatible server, and the record of it: what came when, or what went wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from minipaged.bench.serve.plan import PlannedRequest

Clock = Callable[[], float]
"""Seconds since the run began."""


class ServerProblem(RuntimeError):
    """The run cannot begin: no server, a wrong model, a missing key. The message says what to do."""


@dataclass
class RequestRecord:
    """What happened to one request. Times in seconds since the run began.

    The definitions are those of `vllm bench serve` (vllm/benchmarks/serve.py and lib/endpoint_request_func.py):
    a time for every chunk that carries a choice, and the last of them ends the request.
    """

    index: int
    prompt_tokens: int
    asked_tokens: int
    arrival: float
    sent: float = 0.0  # later than `arrival` where the client waited (for --max-concurrency, or the turn before)
    chunk_times: list[float] = field(default_factory=list)
    output_tokens: int = 0
    counted_by: str = "chunks"  # or "usage", when the server tells it
    cached_tokens: int | None = None  # prompt tokens whose KV was there already, if the server tells
    finish_reason: str | None = None
    retries: int = 0
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float:
        """Time to first token: from sending to the first chunk."""
        return self.chunk_times[0] - self.sent

    @property
    def e2el(self) -> float:
        """End-to-end latency: from sending to the last chunk."""
        return self.chunk_times[-1] - self.sent

    @property
    def itls(self) -> list[float]:
        """Inter-token latencies: the times between chunks (a server may put several tokens into one)."""
        return [later - earlier for earlier, later in zip(self.chunk_times, self.chunk_times[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: (E2EL − TTFT) / (n − 1); None for a single token."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def short(self) -> bool:
        """Completed with fewer tokens than asked for."""
        return self.ok and self.output_tokens < self.asked_tokens


async def sse_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event. Lines end with LF or CRLF only: JSON may contain Unicode's other ones."""
    buffer, data = b"", []
    async for piece in pieces:
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                data.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data).decode("utf-8", "replace")
                data = []
    tail = buffer.removesuffix(b"\r")
    if tail.startswith(b"data:"):  # a last event without its blank line
        data.append(tail.removeprefix(b"data:").removeprefix(b" "))
    if data:
        yield b"\n".join(data).decode("utf-8", "replace")


def error_message(status: int, body: bytes, headers: httpx.Headers) -> str:
    """Status and the server's own words, in the error shapes of OpenAI, older vLLM and FastAPI."""
    words: Any = body.decode("utf-8", "replace").strip()
    try:
        found = json.loads(words)
        if isinstance(found, dict):
            inner = found.get("error", found)
            words = inner.get("message", found.get("detail", words)) if isinstance(inner, dict) else inner
    except ValueError:
        pass
    wait = f" (retry after {headers['retry-after']} s)" if "retry-after" in headers else ""
    return f"HTTP {status}{wait}: {' '.join(str(words).split())[:300] or 'no message'}"


class CompletionsClient:
    """Sends planned requests to `/v1/completions`."""

    def __init__(self, http: httpx.AsyncClient, model: str, ignore_eos: bool, retries: int = 0) -> None:
        self.http, self.model, self.ignore_eos, self.retries = http, model, ignore_eos, retries

    def body(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {**body, "ignore_eos": True} if self.ignore_eos else body

    async def send(self, request: PlannedRequest, clock: Clock) -> RequestRecord:
        """Send, read to the end, and record. Never raises for what a server or the network does."""
        record = RequestRecord(request.index, len(request.prompt), request.max_tokens, request.arrival, sent=clock())
        body = self.body(request.prompt, request.max_tokens)
        while True:
            try:
                again_after = await self._attempt(record, body, clock)
            except httpx.ConnectError as error:
                record.error = f"no connection: {error or type(error).__name__}"
            except httpx.TimeoutException as error:
                record.error = f"time-out ({type(error).__name__}) {_after(record)}"
            except httpx.HTTPError as error:
                record.error = f"the connection broke {_after(record)}: {error or type(error).__name__}"
            else:
                if again_after is not None:  # the wait is part of this request's TTFT: the user waits, too
                    record.retries += 1
                    record.error = None
                    await asyncio.sleep(again_after)
                    continue
            return record

    async def _attempt(self, record: RequestRecord, body: dict[str, Any], clock: Clock) -> float | None:
        """One POST. Returns the seconds after which to try again, if the server refused and a retry is left."""
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                record.error = error_message(response.status_code, await response.aread(), response.headers)
                refused = response.status_code in (429, 503) and record.retries < self.retries
                return _seconds(response.headers.get("retry-after")) if refused else None
            if "text/event-stream" not in response.headers.get("content-type", ""):
                kind = response.headers.get("content-type", "no content type")
                record.error = f"the answer is no event stream but {kind}: does the server stream completions?"
                return None
            done = False
            async for data in sse_events(response.aiter_bytes()):  # to its end, so that the connection can be kept
                if done or data.strip() == "[DONE]":
                    done = True
                elif not _read_chunk(record, data, clock()):
                    return None
        if record.counted_by == "chunks":
            record.output_tokens = len(record.chunk_times)
        if not done:
            record.error = f"the stream ended early, {_after(record)}, without [DONE]"
        elif not record.chunk_times:
            record.error = "the stream ended without a token"
        return None


def _read_chunk(record: RequestRecord, data: str, now: float) -> bool:
    """Take one chunk into the record; False when it ends the request with an error."""
    try:
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError
    except ValueError:
        record.error = f"a chunk is no JSON object, {_after(record)}: {data[:100]!r}"
        return False
    if chunk.get("error"):
        inner = chunk["error"]
        words = inner.get("message", inner) if isinstance(inner, dict) else inner
        record.error = f"the server reported an error {_after(record)}: {words}"
        return False
    try:
        if choices := chunk.get("choices"):
            record.chunk_times.append(now)
            record.finish_reason = choices[0].get("finish_reason") or record.finish_reason
        if usage := chunk.get("usage"):
            record.output_tokens, record.counted_by = int(usage["completion_tokens"]), "usage"
            record.prompt_tokens = int(usage["prompt_tokens"])
            record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        record.error = f"a chunk has not the form of a completion, {_after(record)}: {data[:100]!r}"
        return False
    return True


def _after(record: RequestRecord) -> str:
    return f"after {len(record.chunk_times)} chunks"


def _seconds(retry_after: str | None, default: float = 1.0, most: float = 60.0) -> float:
    """The header's seconds (a date or nonsense counts as the default), never above `most`."""
    try:
        return min(most, max(0.0, float(retry_after or default)))
    except ValueError:
        return default
