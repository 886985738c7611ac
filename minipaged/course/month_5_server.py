"""A real server for a lesson: started as a process of its own, spoken to over HTTP, stopped again (Month 5)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from time import monotonic, perf_counter, sleep

import httpx

from minipaged.scraping import MetricsSample, parse_metrics

READY = " serves "
START_SECONDS = 100


class LessonServer:
    """`minipaged serve` on 127.0.0.1 and a free port.

    The constructor does not wait: several servers may start side by side. Whoever asks for `lines` (what it has
    printed) or `url`, or sends something, waits until it is ready. It ends with `stop()`, at the latest when
    Python ends. Raises RuntimeError, with what it printed, when it never becomes ready.
    """

    def __init__(self, *arguments: str, model: str = "tiny") -> None:
        command = [sys.executable, "-m", "minipaged", "serve", model, "--host", "127.0.0.1", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(self._end)
        self._printed: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._printed.append(line.rstrip())
            if READY in line:
                self._ready.set()
        self._ready.set()  # it has ended: nobody needs to wait any longer

    @property
    def lines(self) -> list[str]:
        in_time = self._ready.wait(START_SECONDS)
        if not in_time or not any(READY in line for line in self._printed):
            self._end()
            raise RuntimeError("the server did not start; it said: " + (" | ".join(self._printed) or "nothing"))
        return self._printed

    @property
    def url(self) -> str:
        return next(line for line in self.lines if READY in line).split()[-1]

    @functools.cached_property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def ask(self, prompt: str | list[int], max_tokens: int = 12, **more) -> dict:
        """One completion; the body of the answer, also when it is an error's."""
        body = {"prompt": prompt, "max_tokens": max_tokens, **more}
        return self.http.post("/v1/completions", json=body).json()

    def stream(self, prompt: str, max_tokens: int = 12, **more) -> Iterator[dict]:
        """The same as events, each when it comes. Whoever stops reading early hangs up."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, **more}
        with self.http.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def metrics(self) -> dict[str, float]:
        """What /metrics says now: {name without "minipaged:" and labels: value}, in order; no histogram buckets."""
        found: dict[str, float] = {}
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith("minipaged:") and "_bucket" not in line:
                name, value = line.removeprefix("minipaged:").rsplit(" ", 1)
                reason = name.partition('finished_reason="')[2].partition('"')[0]
                found[name.partition("{")[0] + (f" ({reason})" if reason else "")] = float(value)
        return found

    def wait_until_idle(self, seconds: float = 20) -> None:
        """Until nobody runs or waits: an abort takes effect between two steps."""
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            now = self.metrics()
            if now["num_requests_running"] == now["num_requests_waiting"] == 0:
                return
            sleep(0.02)
        raise TimeoutError(f"requests are still there after {seconds:g} s")

    @contextlib.contextmanager
    def watched(self, seconds: float = 0.1) -> Iterator[list[MetricsSample]]:
        """Look at /metrics all the time while the block runs; the samples are in the list afterwards."""
        samples: list[MetricsSample] = []
        done, started = threading.Event(), perf_counter()

        def look() -> None:
            with httpx.Client(base_url=self.url, timeout=60, trust_env=False) as http:
                ended = False
                while not ended:
                    ended = done.wait(seconds)  # a last look behind the block: how it ended
                    samples.append(parse_metrics(http.get("/metrics").text, perf_counter() - started))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield samples
        finally:
            done.set()
            watcher.join()

    def stop(self) -> str:
        """Ask it to end, as Ctrl-C does; returns its last words."""
        self.http.close()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self._reader.join()
        atexit.unregister(self._end)
        return self.lines[-1]

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
