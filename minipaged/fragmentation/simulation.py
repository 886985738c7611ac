"""Run a trace through a memory system: iteration-level scheduling, first come first served, the same for all.

A step is one iteration of the engine: every running request gains one token. Nothing happens to memory between two
events (a request ends, a block fills up), so the simulation jumps from event to event and its cost grows with the
number of events, not of tokens. Averages are over all steps in between, exactly.
"""

import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minipaged.fragmentation.accounting import Average, Parts
from minipaged.fragmentation.systems import Running, System
from minipaged.os_paging.errors import require_whole
from minipaged.workloads import Workload, checked


@dataclass(frozen=True)
class Result:
    """What one run showed. `shares` are time averages in percent over the saturated steps (somebody waits)."""

    system: str
    pool_slots: int
    shares: dict[str, float]
    mean_running: float
    most_running: int
    saturated_steps: int
    steps: int
    finished: int
    preemptions: int
    computed_tokens: int  # prompt tokens, recomputed ones, and generated tokens

    @property
    def requests_per_step(self) -> float:
        """Finished requests per step of the engine."""
        return self.finished / self.steps if self.steps else 0.0


def simulate(
    requests: Iterable[Workload],
    system: System,
    max_running: int | None = None,
    steps_per_second: float = 1.0,
    watch: Callable[[int, list[Running], Parts], None] | None = None,
) -> Result:
    """Serve all requests and account for every slot at every step.

    `max_running` limits the batch. Arrivals (seconds) become steps by `steps_per_second`. `watch` is called after
    every event with (step, running requests, parts). A request that can never fit raises ValueError before the start.

    Memory stays flat beside the trace itself: a request takes none before it runs.
    """
    return _Simulation(checked(requests), system, max_running, steps_per_second, watch).run()


def _check_fit(number: int, workload: Workload, system: System) -> None:
    try:
        fits = system.fits_alone(workload)
    except ValueError as error:
        raise ValueError(f"request {number}: {error}") from None
    if not fits:
        raise ValueError(
            f"request {number} ({workload.prompt_tokens} + {workload.output_tokens} tokens) does not fit into "
            f"{system.name}'s pool of {system.pool_slots} slots even alone; make the pool larger"
        )


class _Simulation:
    def __init__(self, requests, system, max_running, steps_per_second, watch) -> None:
        if not 0 < steps_per_second < float("inf"):
            raise ValueError(f"steps_per_second is {steps_per_second}; it must be above 0, and finite")
        if max_running is not None:
            require_whole("max_running", max_running, 1, None, "at least 1 request must be allowed to run")
        if system.parts([], False).free != system.pool_slots:
            raise ValueError(f"{system.name}'s pool is in use by another run; make a new system for each")
        for number, workload in enumerate(requests):
            _check_fit(number, workload, system)
            if workload.arrival * steps_per_second > sys.float_info.max:
                raise ValueError(f"request {number}: arrival is {workload.arrival}, too late for a step's number")
        self.requests = sorted(requests, key=lambda workload: workload.arrival)  # numbered in the order of arrival
        self.admitted = 0  # so many of them have run once
        self.steps_per_second = steps_per_second
        self.system = system
        self.max_running = max_running or len(requests)
        self.watch = watch
        self.preempted: deque[Running] = deque()
        self.running: list[Running] = []  # oldest first: the newest is the victim
        self.events: list[tuple[int, int, Running]] = []
        self.tickets = itertools.count()
        self.due: dict[int, int] = {}  # request number → ticket of its valid event; a preempted one has none
        self.step = 0
        self.saturated = Average()
        self.finished = self.preemptions = self.computed = self.most_running = 0

    def run(self) -> Result:
        while self.running or self.preempted or self.admitted < len(self.requests):
            self._handle_events()
            self._admit()
            parts = self.system.parts(self.running, self._somebody_waits())
            if self.watch is not None:
                self.watch(self.step, self.running, parts)
            self._advance(parts)
        return Result(
            self.system.name,
            self.system.pool_slots,
            self.saturated.shares,
            self.saturated.running,
            self.most_running,
            self.saturated.steps,
            self.step,
            self.finished,
            self.preemptions,
            self.computed,
        )

    def _handle_events(self) -> None:
        """Requests that are done leave first; then those whose block is full ask for more, the oldest first."""
        due = []
        while self.events and self.events[0][0] <= self.step:
            _, ticket, request = heapq.heappop(self.events)
            if self.due.get(request.number) == ticket:
                due.append(request)
        for request in due:
            if request.cached == request.workload.total_tokens:
                self.system.release(request)
                self.running.remove(request)
                del self.due[request.number]
                self.finished += 1
        for request in sorted(due, key=lambda request: request.number):
            if request.number in self.due:
                self._grow(request)

    def _grow(self, request: Running) -> None:
        while not self.system.grow(request):
            victim = self.running.pop()
            self.system.release(victim)
            del self.due[victim.number]
            self.preempted.appendleft(victim)  # it keeps its tokens and computes all of their KV again
            self.preemptions += 1
            if victim is request:
                return
        self._schedule(request)

    def _admit(self) -> None:
        while self._somebody_waits() and len(self.running) < self.max_running:
            request = self._first_in_queue()
            if not self.system.admit(request):
                if not self.running:
                    raise ValueError(
                        f"{self.system.name} refuses request {request.number} ({request.workload.prompt_tokens} + "
                        f"{request.workload.output_tokens} tokens) although nothing runs and all "
                        f"{self.system.pool_slots} slots are free; does its allocator join the holes that are freed?"
                    )
                break
            if self.preempted:
                self.preempted.popleft()
            else:
                self.admitted += 1
            self.running.append(request)
            self.computed += request.cached
            self._schedule(request)
        # Preempted requests come back in their old order of arrival.
        self.running.sort(key=lambda request: request.number)
        self.most_running = max(self.most_running, len(self.running))

    def _next_arrival(self) -> int | None:
        """The step at which the next request arrives or has arrived; None when all have been admitted once."""
        if self.admitted == len(self.requests):
            return None
        return int(self.requests[self.admitted].arrival * self.steps_per_second)

    def _somebody_waits(self) -> bool:
        arrival = self._next_arrival()
        return bool(self.preempted) or (arrival is not None and arrival <= self.step)

    def _first_in_queue(self) -> Running:
        """Preempted requests come first: they arrived earlier than all that have never run."""
        if self.preempted:
            return self.preempted[0]
        return Running(self.requests[self.admitted], self.admitted)

    def _schedule(self, request: Running) -> None:
        """When will this request next need attention: at its end, or when its memory is full?"""
        left = request.workload.total_tokens - request.cached
        self.due[request.number] = next(self.tickets)
        when = self.step + min(left, self.system.room(request))
        heapq.heappush(self.events, (when, self.due[request.number], request))

    def _advance(self, parts: Parts) -> None:
        """Jump to the next event or arrival; every running request gains one token a step."""
        times = [self.events[0][0]] if self.events else []
        arrival, waits = self._next_arrival(), self._somebody_waits()
        if arrival is not None and not waits:  # behind somebody who waits, an arrival changes nothing
            times.append(arrival)
        if not times:
            return
        steps = min(times) - self.step
        if waits:
            self.saturated.add(parts, len(self.running), self.system.moving_from, steps)
        for request in self.running:
            request.cached += steps
        self.computed += len(self.running) * steps
        self.step += steps
