"""The client's own HTTP: every way to end a body, and every way in which an answer can be broken."""

import asyncio

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.bench.serve.client import sse_events
from minipaged.bench.serve.transport import StraightTransport


def fetch(*writes: bytes, close: bool = True, read_timeout: float = 5.0) -> tuple[httpx.Response, bytes]:
    """Send a request to a server that answers with these bytes, in as many pieces."""
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in writes:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if not close:
            await asyncio.sleep(5)
        writer.close()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        timeout = httpx.Timeout(5.0, read=read_timeout)
        async with httpx.AsyncClient(transport=StraightTransport(), timeout=timeout) as http:
            response = await http.get(f"http://127.0.0.1:{port}/a%20path?q=1", headers={"x": "y"})
        server.close()
        return response

    response = asyncio.run(main())
    return response, asked[0]


def test_what_is_sent():
    response, sent = fetch(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Two: 1\r\nX-Two: 2\r\n\r\nok")
    assert (response.status_code, response.text) == (200, "ok")
    assert response.headers.get_list("x-two") == ["1", "2"]
    assert sent.startswith(b"GET /a%20path?q=1 HTTP/1.1\r\n")
    assert b"Host: 127.0.0.1:" in sent
    assert b"x: y\r\n" in sent


@pytest.mark.parametrize(
    "rest",
    [
        b"Transfer-Encoding: chunked\r\n\r\n3;note=1\r\nabc\r\nA\r\ndefghijklm\r\n0\r\nTrailer: 1\r\n\r\n",
        b"Content-Length: 13\r\n\r\nabcdefghijklm",
        b"\r\nabcdefghijklm",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bodies(rest, size):
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + rest
    response, _ = fetch(*(raw[i : i + size] for i in range(0, len(raw), size)))
    assert response.content == b"abcdefghijklm"


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        (b"", httpx.RemoteProtocolError, "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", httpx.RemoteProtocolError, "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", httpx.RemoteProtocolError, "closed the"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", httpx.RemoteProtocolError, "no proper HTTP"),
        (b"SSH-2.0-OpenSSH 9\r\n\r\n", httpx.RemoteProtocolError, "no HTTP/1 answer"),
        (b"nonsense\r\n\r\n", httpx.RemoteProtocolError, "no proper HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**21, httpx.RemoteProtocolError, "no proper HTTP"),
    ],
)
def test_broken_answers(raw, error, words):
    with pytest.raises(error, match=words):
        fetch(raw)


def test_a_silent_server_times_out():
    for raw in (b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"):
        with pytest.raises(httpx.ReadTimeout):
            fetch(raw, close=False, read_timeout=0.1)


data = st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), min_size=1, max_size=20)


@settings(max_examples=60)
@given(st.lists(data, min_size=1, max_size=6), st.integers(1, 9), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_events_survive_any_cut(events, size, end, last_blank_line):
    """Cut anywhere, even inside a character; U+2028 and its like end no line."""
    raw = f": a comment{end}{end}" + "".join(f"data: {event}{end}{end}" for event in events)
    raw = raw.encode() if last_blank_line else raw.encode().removesuffix(end.encode())

    async def pieces():
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    async def collect():
        return [event async for event in sse_events(pieces())]

    assert asyncio.run(collect()) == events
