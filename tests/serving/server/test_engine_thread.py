"""The thread that owns the engine: whatever happens, everybody gets an answer, and the pool is whole."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.serving import SamplingParams
from minipaged.serving.server.engine_thread import EngineThread, Order, Ticket
from minipaged.serving.server.errors import ApiError
from tests.serving.helpers import HashModel, assert_empty, greedy, make_llm

LONG = SamplingParams(max_tokens=200, ignore_eos=True)


def order(name: str, *prompts: list[int], params: SamplingParams | None = None, stream: bool = True) -> Order:
    return Order(name, list(prompts), params or SamplingParams(max_tokens=5, ignore_eos=True), stream=stream)


async def finish(ticket) -> list[list[int]]:
    outputs = {}
    async with asyncio.timeout(30):
        async for changed in ticket.updates():
            outputs.update(changed)
    return [outputs[number].outputs[0].token_ids for number in sorted(outputs)]


def with_thread(llm, work, max_queue: int = 100, **kwargs):
    """Run ``work(thread)`` on an event loop, with an engine thread that is stopped and looked at afterwards."""

    async def run():
        thread = EngineThread(llm.engine, max_queue, **kwargs)
        thread.start()
        try:
            return await asyncio.wait_for(work(thread), 30)
        finally:
            await asyncio.to_thread(thread.stop)
            assert thread.final_check == ""
            assert_empty(llm)

    return asyncio.run(run())


def test_outputs_come_back_to_those_who_ordered_them() -> None:
    async def work(thread):
        tickets = [thread.submit(order("a", [1, 2], [3])), thread.submit(order("b", [4, 5, 6], stream=False))]
        return await asyncio.gather(*map(finish, tickets))

    assert with_thread(make_llm(), work) == [
        [greedy([1, 2], 5, ignore_eos=True), greedy([3], 5, ignore_eos=True)],
        [greedy([4, 5, 6], 5, ignore_eos=True)],
    ]


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    """Two run when the third step fails; a third one comes later and is not concerned."""
    ended = []

    async def work(thread):
        hit = [thread.submit(order("a", [1, 2], params=LONG)), thread.submit(order("b", [3], [4], params=LONG))]
        errors = await asyncio.gather(*map(finish, hit), return_exceptions=True)
        for error in errors:
            assert isinstance(error, ApiError)
            assert error.status == 500
            assert "RuntimeError" in error.message
            assert "the device was lost" not in error.message  # the inside stays inside
        return await finish(thread.submit(order("c", [1, 2])))

    llm = make_llm(HashModel(fail_on={3}))
    assert with_thread(llm, work, on_finished=ended.append) == [greedy([1, 2], 5, ignore_eos=True)]
    assert sorted(output.outputs[0].finish_reason for output in ended) == ["error"] * 3 + ["length"]


def test_a_failed_prompt_takes_the_others_of_its_request_with_it() -> None:
    async def work(thread):
        with pytest.raises(ApiError):
            await finish(thread.submit(order("a", [1], [2], [3], params=LONG)))

    with_thread(make_llm(HashModel(fail_on={2}), max_num_seqs=1), work)


def test_an_engine_that_is_stuck_gives_up_its_requests_and_goes_on() -> None:
    llm = make_llm()
    schedule = llm.engine.scheduler.schedule

    async def work(thread):
        llm.engine.scheduler.schedule = lambda: type(schedule())()  # runs nobody, for ever
        with pytest.raises(ApiError, match="EngineStuckError"):
            await finish(thread.submit(order("a", [1])))
        llm.engine.scheduler.schedule = schedule
        return await finish(thread.submit(order("b", [1])))

    assert with_thread(llm, work) == [greedy([1], 5, ignore_eos=True)]


def test_a_full_queue_refuses_all_prompts_of_a_request_or_none() -> None:
    async def work(thread):
        first = thread.submit(order("a", [1], params=LONG))
        await first.accepted
        with pytest.raises(ApiError) as refused:
            await thread.submit(order("b", *[[2]] * 4)).accepted
        assert refused.value.status == 429
        tokens = await finish(thread.submit(order("c", *[[2]] * 3)))
        thread.close(first)
        return tokens

    assert with_thread(make_llm(max_num_seqs=1), work, max_queue=3) == [greedy([2], 5, ignore_eos=True)] * 3


def test_an_order_that_was_not_checked_is_an_error_of_the_server() -> None:
    async def work(thread):
        with pytest.raises(ApiError) as refused:
            await thread.submit(order("a", [1], [99])).accepted  # no such token
        assert refused.value.status == 500

    with_thread(make_llm(), work)


def test_at_the_end_who_still_waits_is_told() -> None:
    llm = make_llm()

    async def run():
        thread = EngineThread(llm.engine, 10)
        thread.start()
        ticket = thread.submit(order("a", [1], params=SamplingParams(max_tokens=250, ignore_eos=True)))
        await ticket.accepted
        await asyncio.to_thread(thread.stop)
        assert not thread.alive
        with pytest.raises(ApiError) as told:
            await finish(ticket)
        assert told.value.status == 503
        with pytest.raises(ApiError):
            thread.submit(order("b", [1]))

    asyncio.run(run())
    assert_empty(llm)


def test_an_order_that_fails_before_it_is_accepted_ends_its_updates() -> None:
    async def run():
        ticket = Ticket(order("a", [1]))
        ticket.fail(ApiError(500, "broken"))
        with pytest.raises(ApiError, match="broken"):
            await finish(ticket)
        with pytest.raises(ApiError, match="broken"):
            await ticket.accepted

    asyncio.run(run())


def test_a_thread_that_breaks_leaves_nobody_waiting() -> None:
    llm = make_llm()

    async def run():
        thread = EngineThread(llm.engine, 10)
        llm.engine.has_unfinished_requests = lambda: 1 / 0
        thread.start()
        with pytest.raises(ApiError):  # at once, or when it is read
            await finish(thread.submit(order("a", [1])))
        await asyncio.to_thread(thread.stop)
        assert isinstance(thread.failure, ZeroDivisionError)

    asyncio.run(run())


def test_blocks_that_are_lost_are_reported_at_the_end() -> None:
    llm = make_llm()

    async def run():
        thread = EngineThread(llm.engine, 10)
        thread.start()
        llm.engine.manager.pool.get_new_blocks(2)
        await asyncio.to_thread(thread.stop)
        return thread.final_check

    assert "ref_cnt 1, but 0 tables" in asyncio.run(run())


def test_a_slow_reader_gets_larger_pieces_and_holds_no_queue() -> None:
    async def work(thread):
        ticket = thread.submit(order("a", [1], params=SamplingParams(max_tokens=40, ignore_eos=True)))
        await ticket.accepted
        while not ticket.done:
            await asyncio.sleep(0.001)  # reads nothing meanwhile
        return [changed async for changed in ticket.updates()]

    pieces = with_thread(make_llm(), work)
    assert len(pieces) == 1
    assert pieces[0][0][1].outputs[0].token_ids == greedy([1], 40, ignore_eos=True)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=3),  # prompts
            st.integers(1, 12),  # tokens
            st.integers(0, 6),  # updates that are read before the client hangs up; 6: all
            st.booleans(),
        ),
        max_size=8,
    ),
    st.sets(st.integers(1, 12), max_size=2),
)
def test_hanging_up_and_failing_in_any_order_leaves_the_pool_whole(clients, fail_on) -> None:
    """12 blocks of 4 tokens: there is preemption, too."""

    async def client(thread, number, prompts, max_tokens, patience, stream):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        ticket = thread.submit(order(f"c{number}", *prompts, params=params, stream=stream))
        outputs, reads = {}, 0
        try:
            await ticket.accepted
            async for changed in ticket.updates():
                outputs.update(changed)
                reads += 1
                if patience < 6 and reads >= patience:
                    return
            for place, prompt in enumerate(prompts):
                assert outputs[place].outputs[0].token_ids == greedy(prompt, max_tokens, ignore_eos=True)
        except ApiError as error:
            if not fail_on or error.status != 500:
                raise
        finally:
            thread.close(ticket)

    async def work(thread):
        await asyncio.gather(*(client(thread, number, *one) for number, one in enumerate(clients)))

    with_thread(make_llm(HashModel(fail_on=fail_on), num_blocks=12), work)
