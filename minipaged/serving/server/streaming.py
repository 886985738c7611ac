"""Server-sent events, and what happens when nobody listens any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response

from minipaged.serving.outputs import CompletionOutput, RequestOutput
from minipaged.serving.server.answers import Answer, usage, visible
from minipaged.serving.server.engine_thread import Ticket
from minipaged.serving.server.errors import ApiError

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


async def unless_gone(receive: Callable, work: Coroutine[Any, Any, T]) -> T:
    """Do ``work``. If the client goes away first, cancel it and raise ClientGone."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Callable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events while they come. ``close`` is called at the end, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        self.events, self.close = events, close
        self.status_code, self.background, self.body = 200, None, b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope, receive, send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            pass
        finally:
            self.close()

    async def _send_all(self, send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events_of(ticket: Ticket, answer: Answer, wants_usage: bool) -> AsyncIterator[bytes]:
    """The events of one stream: pieces of text, perhaps the usage, and [DONE]."""
    choices: dict[int, _Choice] = {}
    last: dict[int, RequestOutput] = {}
    extra = {"usage": None} if wants_usage else {}
    try:
        async for changed in ticket.updates():
            pieces = []
            for number, output in changed:
                last[number] = output
                for completion in output.outputs:
                    index = answer.index(number, completion)
                    choice = choices.setdefault(index, _Choice(answer, index, number))
                    pieces += choice.news(completion)
            if pieces:
                yield b"".join(_event(answer.chunk([piece]) | extra) for piece in pieces)
    except ApiError as error:  # the status has been sent: the error comes as an event
        yield _event(error.body()) + DONE
        return
    if wants_usage:
        yield _event(answer.chunk([]) | {"usage": usage([last[number] for number in sorted(last)])})
    yield DONE


class _Choice:
    """How much of one text has been sent."""

    def __init__(self, answer: Answer, index: int, number: int) -> None:
        self.answer, self.index, self.number = answer, index, number
        self.num_chars = self.num_entries = 0
        self.opened = self.finished = False

    def news(self, completion: CompletionOutput) -> list[dict]:
        if self.finished:
            return []
        opening = None if self.opened else self.answer.opening(self.index, self.number)
        pieces = [opening] if opening else []
        self.opened = True
        text = completion.text[self.num_chars :]
        entries = visible(completion, self.num_entries)
        if text or entries or completion.finished:
            pieces.append(self.answer.delta(self.index, text, entries, completion))
            self.num_chars += len(text)
            self.num_entries += len(entries or ())
            self.finished = completion.finished
        return pieces


def _event(data: dict) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
