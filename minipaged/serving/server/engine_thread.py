"""One thread owns the engine. The server's event loop sends it orders and gets outputs back.

Nothing else touches the engine, so the engine needs no locks. Orders are functions in a queue; outputs go back in one
call a step, because waking up the event loop for each of 200 clients would cost more than the news themselves.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from minipaged.serving.engine import LLMEngine
from minipaged.serving.outputs import RequestOutput
from minipaged.serving.sampling import SamplingParams
from minipaged.serving.server.errors import ApiError

logger = logging.getLogger("minipaged.server")
RETRY_AFTER = {"Retry-After": "1"}


@dataclass(frozen=True)
class Order:
    """What one API request asks of the engine: several prompts, one set of parameters."""

    request_id: str
    prompts: list[list[int]]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    stream: bool = False

    @property
    def ids(self) -> list[str]:
        """The engine's ids, one a prompt."""
        return [f"{self.request_id}-{number}" for number in range(len(self.prompts))]


class Ticket:
    """The event loop's end of an order: await ``accepted``, then read ``updates``.

    An output holds all text so far. So the newest one makes all older ones superfluous, and a client that reads
    slowly gets larger pieces, where a queue would grow.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self._numbers = {request_id: number for number, request_id in enumerate(order.ids)}
        self._unfinished = set(order.ids)
        self._newest: dict[str, RequestOutput] = {}
        self._error: ApiError | None = None
        self._news = asyncio.Event()

    @property
    def done(self) -> bool:
        return self._error is not None or not self._unfinished

    def accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)

    def put(self, output: RequestOutput) -> None:
        self._newest[output.request_id] = output
        if output.finished:
            self._unfinished.discard(output.request_id)
        self._news.set()

    def fail(self, error: ApiError) -> None:
        if self.done:
            return
        self._error = error
        self._news.set()  # for whoever reads the updates without having asked whether the order was accepted
        if not self.accepted.done():
            self.accepted.set_exception(error)
            self.accepted.exception()  # whoever awaits it still sees it; if nobody does, nothing is logged

    async def updates(self) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
        """(number of the prompt, its newest output) for those that changed, until all are finished.

        Raises the ApiError that ended the order early.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            newest, self._newest = self._newest, {}
            if newest:
                yield [(self._numbers[request_id], output) for request_id, output in newest.items()]
            if self._error is not None:
                raise self._error
            if not self._unfinished and not self._newest:
                return


class EngineThread:
    """Runs the engine for as long as there is work, and sleeps when there is none.

    ``on_finished(output)`` is called, on the engine's thread, for each prompt that ended by itself or by an error, and
    ``on_aborted()`` for each that was given up.
    """

    def __init__(
        self,
        engine: LLMEngine,
        max_queue: int,
        on_finished: Callable[[RequestOutput], None] = lambda output: None,
        on_aborted: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine, self.max_queue = engine, max_queue
        self.on_finished, self.on_aborted = on_finished, on_aborted
        self.tickets: set[Ticket] = set()  # the event loop's: the open ones
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._owners: dict[str, Ticket] = {}  # the engine thread's: {request id: who gets its outputs}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: BaseException | None = None  # why the thread ended, if it should not have
        self.final_check: str | None = None  # what was wrong with the pool at the end; "": nothing

    # On the event loop

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self.failure is None and not self._stopping

    def submit(self, order: Order) -> Ticket:
        """Hand an order over. Raises 503 when there is nobody to take it."""
        stopped = ApiError(503, "the engine has stopped; see the server's log, and start it again")
        if not self.alive:
            raise stopped
        ticket = Ticket(order)
        self.tickets.add(ticket)
        self._inbox.put(partial(self._add, ticket))
        if not self.alive:  # it ended in this moment, and may have looked into its inbox for the last time before
            ticket.fail(stopped)
        return ticket

    def close(self, ticket: Ticket) -> None:
        """Nobody reads this ticket any more. What still runs for it is aborted, and its blocks are freed."""
        self.tickets.discard(ticket)
        if not ticket.done:
            self._inbox.put(partial(self._abort, ticket))

    def end_tickets(self) -> None:
        """Tell everybody who still waits that the server ends. From any thread."""
        error = ApiError(503, "the server is shutting down; the request was ended", headers=RETRY_AFTER)
        for ticket in list(self.tickets):
            _call_on(ticket.loop, [partial(ticket.fail, error)])

    def stop(self) -> None:
        """Abort all, prove that the pool is whole and empty, end the thread. Waits for it."""
        self._inbox.put(self._stop)
        self._thread.join()

    # On the engine's thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_orders()
                if self.engine.has_unfinished_requests():
                    self._step()
        except BaseException as error:  # a fault of this file; nobody must wait for ever because of it
            logger.exception("the engine's thread has ended")
            self.failure = error
            self._tell_all(ApiError(500, "the engine has stopped; see the server's log", code="engine_error"))

    def _take_orders(self) -> None:
        """Take what has come in. Without work, wait for some."""
        if not self.engine.has_unfinished_requests():
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _add(self, ticket: Ticket) -> None:
        order, waiting = ticket.order, len(self.engine.scheduler.waiting)
        if waiting + len(order.prompts) > self.max_queue:
            return self._post([partial(ticket.fail, _queue_full(waiting, len(order.prompts), self.max_queue))], ticket)
        added: list[str] = []
        try:
            for request_id, prompt in zip(order.ids, order.prompts, strict=True):
                self.engine.add_request(
                    prompt,
                    order.params,
                    request_id,
                    priority=order.priority,
                    cache_salt=order.cache_salt,
                    stream=order.stream,
                )
                added.append(request_id)
        except Exception as error:  # it was checked before, so this is the server's fault
            logger.exception("a request that was checked could not be added")
            for request_id in added:
                self.engine.abort(request_id)
            return self._post([partial(ticket.fail, _engine_error(error))], ticket)
        self._owners.update(dict.fromkeys(added, ticket))
        return self._post([ticket.accept], ticket)

    def _abort(self, ticket: Ticket) -> None:
        for request_id in ticket.order.ids:
            if self._owners.pop(request_id, None) is not None and self.engine.abort(request_id):
                self.on_aborted()

    def _step(self) -> None:
        try:
            outputs = self.engine.step()
        except Exception as error:
            logger.exception("a step failed; the requests in it are ended, the others go on")
            return self._fail_step(error)
        calls: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        for output in outputs:
            ticket = self._owners.get(output.request_id)
            if output.finished:
                self._owners.pop(output.request_id, None)
                self.on_finished(output)
            if ticket is not None:
                calls.setdefault(ticket.loop, []).append(partial(ticket.put, output))
        for loop, news in calls.items():
            _call_on(loop, news)
        return None

    def _fail_step(self, error: Exception) -> None:
        """Tell those whose requests were in the step. If there were none, the engine is stuck: it ends all."""
        failed = self.engine.take_failed()
        for output in failed:
            self.on_finished(output)
        hit = {self._owners[output.request_id] for output in failed if output.request_id in self._owners}
        for ticket in hit if failed else set(self._owners.values()):
            self._abort(ticket)  # the other prompts of the same API request
            self._post([partial(ticket.fail, _engine_error(error))], ticket)

    def _tell_all(self, error: ApiError) -> None:
        for ticket in set(self._owners.values()):
            self._post([partial(ticket.fail, error)], ticket)
        while not self._inbox.empty():
            order = self._inbox.get()
            if getattr(order, "func", None) == self._add:
                self._post([partial(order.args[0].fail, error)], order.args[0])

    def _stop(self) -> None:
        self._stopping = True
        self._tell_all(ApiError(503, "the server is shutting down; ask another one", headers=RETRY_AFTER))
        for ticket in set(self._owners.values()):
            self._abort(ticket)
        self.final_check = _what_is_left(self.engine)

    @staticmethod
    def _post(calls: Iterable[Callable[[], None]], ticket: Ticket) -> None:
        _call_on(ticket.loop, calls)


def _call_on(loop: asyncio.AbstractEventLoop, calls: Iterable[Callable[[], None]]) -> None:
    def run() -> None:
        for call in calls:
            call()

    try:
        loop.call_soon_threadsafe(run)
    except RuntimeError:  # the loop is closed: there is nobody left to tell
        logger.debug("outputs for a loop that is closed")


def _what_is_left(engine: LLMEngine) -> str:
    """Proves the pool's rules with nobody in it. Returns what is wrong; "" if nothing is."""
    try:
        engine.check_integrity()
    except Exception as error:
        return str(error)
    lost = engine.manager.num_usable_blocks - engine.manager.num_free_blocks
    return f"{lost} of {engine.manager.num_usable_blocks} blocks are still in use, by nobody" if lost else ""


def _queue_full(waiting: int, more: int, limit: int) -> ApiError:
    return ApiError(
        429,
        f"{waiting} prompts wait already, and {more} more would exceed the queue's {limit}; try again in a moment",
        code="queue_full",
        headers=RETRY_AFTER,
    )


def _engine_error(error: Exception) -> ApiError:
    return ApiError(
        500,
        f"the engine failed while it computed this request ({type(error).__name__}; the server's log has the details). "
        "The request is ended and holds nothing any more; it may be sent again",
        code="engine_error",
    )
