"""Run a trace through a memory system: iteration-level scheduling, first come first served, the same for all.

A step is one iteration of the engine: every running request gains one token. Nothing happens to memory between two
events (a request ends, a block fills up), so the simulation jumps from event to event and its cost grows with the
number of events, not of tokens. Averages are over all steps in between, exactly.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minipaged.fragmentation.accounting import Average, Parts
from minipaged.fragmentation.systems import Running, System
from minipaged.workloads import Workload


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
    """
    return _Simulation(list(requests), system, max_running, steps_per_second, watch).run()


class _Simulation:
    def __init__(self, requests, system, max_running, steps_per_second, watch) -> None:
        if not steps_per_second > 0:
            raise ValueError(f"steps_per_second is {steps_per_second}; it must be above 0")
        if max_running is not None and max_running < 1:
            raise ValueError(f"max_running is {max_running}; at least 1 request must be allowed to run")
        for number, workload in enumerate(requests):
            if not system.fits_alone(workload):
                raise ValueError(
                    f"request {number} ({workload.prompt_tokens} + {workload.output_tokens} tokens) does not fit into "
                    f"{system.name}'s pool of {system.pool_slots} slots even alone; make the pool larger"
                )
        arrivals = [(int(workload.arrival * steps_per_second), number) for number, workload in enumerate(requests)]
        self.coming = deque(sorted(arrivals))
        self.requests = requests
        self.system = system
        self.max_running = max_running or len(requests)
        self.watch = watch
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []  # oldest first: the newest is the victim
        self.events: list[tuple[int, int, Running]] = []
        self.tickets = itertools.count()
        self.due: dict[int, int] = {}  # request number → ticket of its valid event; a preempted one has none
        self.step = 0
        self.saturated = Average()
        self.finished = self.preemptions = self.computed = self.most_running = 0

    def run(self) -> Result:
        while self.coming or self.waiting or self.running:
            self._handle_events()
            self._admit()
            parts = self.system.parts(self.running, bool(self.waiting))
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
            self.waiting.appendleft(victim)  # it keeps its tokens and computes all of their KV again
            self.preemptions += 1
            if victim is request:
                return
        self._schedule(request)

    def _admit(self) -> None:
        while self.coming and self.coming[0][0] <= self.step:
            number = self.coming.popleft()[1]
            self.waiting.append(Running(self.requests[number], number))
        while self.waiting and len(self.running) < self.max_running and self.system.admit(self.waiting[0]):
            request = self.waiting.popleft()
            self.running.append(request)
            self.computed += request.cached
            self._schedule(request)
        # Re-admitted requests come back in their old order of arrival.
        self.running.sort(key=lambda request: request.number)
        self.most_running = max(self.most_running, len(self.running))

    def _schedule(self, request: Running) -> None:
        """When will this request next need attention: at its end, or when its memory is full?"""
        left = request.workload.total_tokens - request.cached
        self.due[request.number] = next(self.tickets)
        when = self.step + min(left, self.system.room(request))
        heapq.heappush(self.events, (when, self.due[request.number], request))

    def _advance(self, parts: Parts) -> None:
        """Jump to the next event or arrival; every running request gains one token a step."""
        times = [self.events[0][0]] if self.events else []
        if self.coming:
            times.append(self.coming[0][0])
        if not times:
            return
        steps = max(0, min(times) - self.step)
        if self.waiting:
            self.saturated.add(parts, len(self.running), self.system.moving_from, steps)
        for request in self.running:
            request.cached += steps
        self.computed += len(self.running) * steps
        self.step += steps
