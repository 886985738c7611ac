"""The run itself: look at the server, send every request at its time, sample `/metrics`, sum up."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, TypeVar

from minipaged.bench.serve.client import Clock, CompletionsClient, RequestRecord
from minipaged.bench.serve.metrics import Slo, Summary, summarise
from minipaged.bench.serve.plan import TOKEN_IDS, Plan, PlannedRequest, make_plan
from minipaged.bench.serve.report import table
from minipaged.bench.serve.scrape import BEFORE, Scraper
from minipaged.bench.serve.server import Server, check_lengths, clean_base_url, look_at, open_client
from minipaged.os_paging.errors import require_whole
from minipaged.scraping import MetricsSample
from minipaged.workloads import Workload

if TYPE_CHECKING:
    from minipaged.course.canvas import Figure

T = TypeVar("T")


@dataclass(frozen=True)
class ServeResult:
    """A finished run. Printed, it is the table."""

    plan: Plan
    server: Server
    summary: Summary
    records: list[RequestRecord]
    samples: list[MetricsSample]
    settings: dict[str, Any]
    slo: Slo

    def __repr__(self) -> str:
        return table(self)

    def picture(self) -> Figure:
        """The run over time: every request as a line, tokens a second, KV usage where the server reports it."""
        from minipaged.bench.serve.picture import draw_run  # matplotlib only when a picture is drawn

        return draw_run(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: settings, server, summary, each request, each sample of the metrics."""
        return {
            "benchmark": "serve",
            "settings": {"workload": self.plan.name, **self.settings},
            "server": asdict(self.server),
            "slo": asdict(self.slo),
            "summary": asdict(self.summary),
            "requests": [asdict(record) for record in self.records],
            "metrics": [asdict(sample) for sample in self.samples],
        }

    def save(self, path: str | Path) -> None:
        """Write `as_dict` and this machine's description as JSON."""
        from minipaged.bench.command import machine

        Path(path).write_text(json.dumps({**self.as_dict(), "client_machine": machine()}, indent=1) + "\n")


def run_workload(
    base_url: str,
    workload: str | Path | Sequence[Workload],
    *,
    rate: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    scale: float = 1.0,
    unique: bool = False,
    model: str | None = None,
    api_key: str | None = None,
    max_concurrency: int | None = None,
    ignore_eos: bool | None = None,
    retries: int = 0,
    slo: Slo | None = None,
    token_ids: Sequence[int] = TOKEN_IDS,
    timeout: float = 600.0,
    metrics_interval: float = 0.1,
    progress: bool = False,
) -> ServeResult:
    """Send a workload to an OpenAI-compatible server and measure what comes back; see `make_plan` for the workload.

    model: default, the first that the server lists. max_concurrency: requests in flight at most. ignore_eos: None
    means where the server accepts it. retries: how often a request that is refused with 429 or 503 is sent again, after
    the time that the server names (the wait counts). timeout: seconds without a byte after which a request fails.
    metrics_interval: seconds between looks at `/metrics`; 0 never looks.
    Raises ValueError for bad arguments and ServerProblem when the run cannot begin. A request that fails later is
    counted and named in the result. Works inside a notebook, too.
    """
    if max_concurrency is not None:
        require_whole("max_concurrency", max_concurrency, 1, None, "at least 1 request is in flight; None: no limit")
    require_whole("retries", retries, 0, None, "0 counts a refused request as failed")
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout:g} seconds; it must be above 0, and finite")
    if not 0 <= metrics_interval < math.inf:
        raise ValueError(f"metrics_interval is {metrics_interval:g} seconds; it must be above 0, or 0 for never")
    base_url = clean_base_url(base_url)
    plan = make_plan(workload, requests, rate, seed, scale, unique, token_ids)
    slo = slo or Slo()
    settings = {
        "rate": None if rate is None else str(rate),  # JSON has no infinity
        "requests": len(plan.requests),
        "seed": seed,
        "scale": scale,
        "unique": unique,
        "max_concurrency": max_concurrency,
        "retries": retries,
        "timeout": timeout,
        "metrics_interval": metrics_interval,
    }

    async def measure() -> ServeResult:
        async with open_client(base_url, api_key, timeout) as http:
            server = await look_at(http, base_url, model, ignore_eos)
            check_lengths(plan, server)
            client = CompletionsClient(http, server.model, server.ignore_eos, retries)
            with _progress_bar(len(plan.requests), progress) as bar:
                busy = thread_time()
                records, duration, samples = await _measure(
                    client, plan.requests, max_concurrency, metrics_interval, lambda _: bar.update()
                )
                busy = thread_time() - busy
        summary = summarise(records, duration, samples, slo, busy)
        return ServeResult(plan, server, summary, records, samples, settings, slo)

    return _run(measure())


async def _measure(
    client: CompletionsClient,
    requests: Sequence[PlannedRequest],
    max_concurrency: int | None,
    metrics_interval: float,
    on_done: Callable[[RequestRecord], object],
) -> tuple[list[RequestRecord], float, list[MetricsSample]]:
    """Records, the seconds from the start to the end of the last request, and the samples of `/metrics`."""
    scraper = Scraper(client.http, lambda: perf_counter() - zero, metrics_interval)
    watched = metrics_interval > 0 and await scraper.sample(BEFORE)
    zero = perf_counter()
    sampling = asyncio.create_task(scraper.keep_sampling()) if watched else None
    try:
        records = await send_all(client, requests, scraper.clock, max_concurrency, on_done)
        duration = scraper.clock()
    finally:
        if sampling:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
    if watched:
        await scraper.sample()  # and after
    return records, duration, scraper.samples


async def send_all(
    client: CompletionsClient,
    requests: Sequence[PlannedRequest],
    clock: Clock,
    max_concurrency: int | None = None,
    on_done: Callable[[RequestRecord], object] = lambda record: None,
) -> list[RequestRecord]:
    """Each request at its arrival, after the one that it follows, and when one of the places in flight is free."""
    places = asyncio.Semaphore(max_concurrency or len(requests))
    ended = {request.index: asyncio.Event() for request in requests}

    async def one(request: PlannedRequest) -> RequestRecord:
        await asyncio.sleep(max(0.0, request.arrival - clock()))
        if request.follows is not None:
            await ended[request.follows].wait()
        async with places:
            record = await client.send(request, clock)
        ended[request.index].set()
        on_done(record)
        return record

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(request)) for request in requests]
    return [task.result() for task in tasks]


def _progress_bar(total: int, wanted: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="request", file=sys.stderr, disable=not wanted, leave=False)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end. In a notebook an event loop is running already, and the work gets a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []

    async def cancellable() -> T:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await coroutine

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, cancellable())
        try:
            return future.result()
        except KeyboardInterrupt:  # the notebook's stop button reaches the thread, too
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
            raise
