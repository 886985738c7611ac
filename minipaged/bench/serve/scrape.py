"""A server's own counts, read from `/metrics` before, during and after a run."""

from __future__ import annotations

import asyncio

import httpx

from minipaged.bench.serve.client import Clock
from minipaged.scraping import MetricsSample, parse_metrics

BEFORE = -1.0  # the time of the sample before the run


class Scraper:
    """Samples `/metrics` before, during and after a run. A server without it is none the worse."""

    def __init__(self, http: httpx.AsyncClient, clock: Clock, interval: float) -> None:
        self.http, self.clock, self.interval = http, clock, interval
        self.samples: list[MetricsSample] = []

    async def sample(self, time: float | None = None) -> bool:
        """One look, now or noted under another time; False when the server has no metrics that we know."""
        try:
            response = await self.http.get("/metrics")
        except httpx.HTTPError:
            return False
        if response.status_code != 200:
            return False
        sample = parse_metrics(response.text, self.clock() if time is None else time)
        known = sample != MetricsSample(sample.time)
        if known:
            self.samples.append(sample)
        return known

    async def keep_sampling(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.interval)
            await self.sample()
