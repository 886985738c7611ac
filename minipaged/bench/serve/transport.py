"""HTTP/1.1 straight on asyncio's streams, for httpx: a third of the processor time for each small chunk.

A benchmark's client must not be what is measured, and on a small machine it takes its time from the server. General
HTTP clients spend far more on a chunk than a token's event is worth. This one does what a streaming benchmark needs:
no TLS, no proxy, no HTTP/2; connections are kept and used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx

LINE_LIMIT = 2**20  # bytes of a header line; longer ones are an error
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class StraightTransport(httpx.AsyncBaseTransport):
    """What httpx needs to send a request and to read its answer, for http:// addresses."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeout = request.extensions.get("timeout", {})
        body = await request.aread()
        lines = [f"{request.method} {request.url.raw_path.decode('ascii')} HTTP/1.1".encode("ascii")]
        lines += [name + b": " + value for name, value in request.headers.raw]
        connection = await self._connect(request, timeout.get("connect"))
        try:
            with _as_httpx_errors(request):
                async with asyncio.timeout(timeout.get("read")):
                    connection[1].write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
                    await connection[1].drain()
                    status, headers = await _read_head(connection[0])
        except BaseException:
            connection[1].close()
            raise
        stream = _Body(self, request, connection, httpx.Headers(headers), timeout.get("read"))
        return httpx.Response(status, headers=headers, stream=stream, request=request)

    async def _connect(self, request: httpx.Request, seconds: float | None) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection[0].at_eof():  # the server may have closed it meanwhile
                return connection
            connection[1].close()
        try:
            async with asyncio.timeout(seconds):
                host, port = request.url.host, request.url.port or 80
                return await asyncio.open_connection(host, port, limit=LINE_LIMIT)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {seconds:g} s", request=request) from None
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error

    def take_back(self, connection: Connection) -> None:
        """A connection whose answer was read to its end."""
        self._idle.append(connection)

    async def aclose(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status and headers; answers of the kind "100 Continue" are skipped."""
    while True:
        version, status, *_ = (await reader.readuntil(b"\n")).split(None, 2)
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"no HTTP/1 answer but {version[:20]!r}")
        headers = []
        while line := (await reader.readuntil(b"\n")).strip():
            name, _, value = line.partition(b":")
            headers.append((name.strip(), value.strip()))
        if int(status) >= 200:
            return int(status), headers


class _Body(httpx.AsyncByteStream):
    """The answer's body, piece by piece as it comes."""

    def __init__(
        self,
        transport: StraightTransport,
        request: httpx.Request,
        connection: Connection,
        headers: httpx.Headers,
        seconds: float | None,
    ) -> None:
        self._transport, self._request, self._seconds = transport, request, seconds
        self._reader, self._writer = connection
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._left = int(headers["content-length"]) if "content-length" in headers else None
        self._keep = headers.get("connection", "").lower() != "close" and (self._chunked or self._left is not None)
        self._complete = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx_errors(self._request):
            while not self._complete:
                async with asyncio.timeout(self._seconds):
                    piece = await (self._next_chunk() if self._chunked else self._next_piece())
                if piece:
                    yield piece

    async def _next_chunk(self) -> bytes:
        size = int((await self._reader.readuntil(b"\n")).partition(b";")[0], 16)
        if size:
            return (await self._reader.readexactly(size + 2))[:-2]
        while (await self._reader.readuntil(b"\n")).strip():  # trailers
            pass
        self._complete = True
        return b""

    async def _next_piece(self) -> bytes:
        """Up to the length that was announced; without one, the end of the connection is the end of the body."""
        if self._left == 0:
            self._complete = True
            return b""
        piece = await self._reader.read(2**16 if self._left is None else min(self._left, 2**16))
        if self._left is None:
            self._complete = not piece
        elif not piece:
            raise asyncio.IncompleteReadError(b"", self._left)
        else:
            self._left -= len(piece)
        return piece

    async def aclose(self) -> None:
        if self._complete and self._keep:
            self._transport.take_back((self._reader, self._writer))
        else:
            self._writer.close()


@contextmanager
def _as_httpx_errors(request: httpx.Request) -> Iterator[None]:
    """The errors of streams under the names that httpx gives them."""
    try:
        yield
    except TimeoutError:
        raise httpx.ReadTimeout("no byte in time", request=request) from None
    except asyncio.IncompleteReadError:
        words = "the server closed the connection before the answer was complete"
        raise httpx.RemoteProtocolError(words, request=request) from None
    except OSError as error:
        raise httpx.ReadError(str(error) or type(error).__name__, request=request) from error
    except (ValueError, asyncio.LimitOverrunError) as error:
        raise httpx.RemoteProtocolError(f"no proper HTTP: {error}", request=request) from error
