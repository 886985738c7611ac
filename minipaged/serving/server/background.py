"""A server in a thread of this process: for tests, and for serving an engine with parts of one's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import NamedTuple

import uvicorn
from fastapi import FastAPI

from minipaged.serving.llm import LLM
from minipaged.serving.server.app import create_app
from minipaged.serving.server.limits import ServerConfig
from minipaged.serving.server.process import LAST_WORDS, open_socket


class BackgroundServer(NamedTuple):
    """``url`` has no slash at its end; ``app.state.server`` has the engine's thread and the counts."""

    url: str
    app: FastAPI


@contextmanager
def serve_in_background(
    llm: LLM, config: ServerConfig | None = None, host: str = "127.0.0.1", port: int = 0
) -> Iterator[BackgroundServer]:
    """Serve ``llm`` while the block runs, for instance one with a scheduler of your own.

    Until the block ends the engine belongs to the server: do not call ``llm.generate``. What still runs then is
    ended. Raises ValueError when the address cannot be had, and RuntimeError at the end if the pool is not whole.
    """
    app = create_app(llm, config)
    sock = open_socket(host, port)
    settings = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=LAST_WORDS
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, args=([sock],), name="server", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start; what it printed says why")
            sleep(0.005)
        yield BackgroundServer(f"http://{host}:{sock.getsockname()[1]}", app)
    finally:
        engine = app.state.server.engine
        engine.end_tickets()
        server.should_exit = True
        thread.join()
    if engine.final_check != "":
        raise RuntimeError(f"the server has stopped, but not in order: {engine.final_check or engine.failure}")
