"""The server as a process: a socket, a start-up line, and an orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket

import uvicorn
from fastapi import FastAPI

from minipaged.serving.llm import LLM
from minipaged.serving.sampling import check_int

LAST_WORDS = 5  # seconds that answers get to reach their clients, once nothing runs any more


class Process(uvicorn.Server):
    """At the first signal new requests get 503 and running ones may finish; at the second they are cut off."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=LAST_WORDS
            )
        )
        self.server = app.state.server
        self.ready_lines: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task | None = None

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        for line in self.ready_lines:
            print(line, flush=True)

    def handle_exit(self, sig: int, frame) -> None:
        """Called between two lines of whatever runs: it only leaves a note. (Nothing is raised again at the end.)"""
        if self._loop is None or self.server.draining:
            self.should_exit = True
            return
        self.server.draining = True
        self._loop.call_soon_threadsafe(self._begin_to_drain, signal.Signals(sig).name)

    def _begin_to_drain(self, name: str) -> None:
        self._draining = asyncio.ensure_future(self._drain(name))

    async def _drain(self, name: str) -> None:
        tickets, grace = self.server.engine.tickets, self.server.config.grace_period
        print(f"{name}: {len(tickets)} requests may finish, for {grace:g} s at most; new ones get 503", flush=True)
        deadline = self._loop.time() + grace
        while tickets and self._loop.time() < deadline and not self.should_exit:
            await asyncio.sleep(0.02)
        self.should_exit = True

    async def shutdown(self, sockets=None) -> None:
        self.server.engine.end_tickets()
        await super().shutdown(sockets)


def open_socket(host: str, port: int) -> socket.socket:
    """Raises ValueError, with the way out, when the address cannot be had."""
    check_int("port", port, low=0, high=65535)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"cannot listen on {host} port {port}: {error}; choose another --port (0: any free one), or another --host"
        ) from None
    return sock


def serve(app: FastAPI, sock: socket.socket) -> int:
    """Serve until a signal comes. Returns 0, or 1 when something was left in the pool or the engine broke."""
    host, port = sock.getsockname()[:2]
    process = Process(app)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    model_name = process.server.config.model_name
    process.ready_lines = [cache_line(process.server.llm), f"minipaged serves {model_name!r} on {url}"]
    process.run([sock])
    engine = process.server.engine
    if engine.final_check == "":
        num_blocks = engine.engine.manager.num_usable_blocks
        print(f"stopped; all {num_blocks} blocks are free, and the pool is whole", flush=True)
        return 0
    print(f"stopped, but the pool is not as it should be: {engine.final_check or engine.failure}", flush=True)
    return 1


def cache_line(llm: LLM) -> str:
    """What fits. The words are those that vLLM prints when it starts (vllm/v1/core/kv_cache_utils.py, 0.32)."""
    manager, longest = llm.engine.manager, llm.model.config.max_position_embeddings
    num_tokens = manager.num_usable_blocks * manager.block_size
    a_sequence = -(-(longest - 1) // manager.block_size)  # the last token is never written to the cache
    storage = llm.engine.runner.storage
    num_bytes = sum(cache.numel() * cache.element_size() for cache in (*storage.k_cache, *storage.v_cache))
    device = "GPU" if storage.k_cache[0].is_cuda else storage.k_cache[0].device.type.upper()
    return (
        f"{device} KV cache size: {num_tokens:,} tokens, Maximum concurrency for {longest:,} tokens per request: "
        f"{manager.num_usable_blocks / a_sequence:.2f}x ({manager.num_usable_blocks:,} blocks of {manager.block_size}, "
        f"{num_bytes / 2**20:.1f} MiB)"
    )
