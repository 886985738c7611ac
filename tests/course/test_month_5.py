"""Month 5's helpers: schedules are what the real scheduler did, faults are caught, pictures say what they show."""

import httpx
import pytest

from minipaged.course.figures_month_5 import KINDS, draw_messages, draw_padding, draw_request_times, draw_schedules
from minipaged.course.figures_month_5_dashboard import draw_dashboard
from minipaged.course.month_5 import Order, follow_step, serve_orders
from minipaged.course.month_5_dashboard import engine_source, example_samples, server_source
from minipaged.course.month_5_faults import (
    AskerWinsScheduler,
    LazyScheduler,
    LeakyPool,
    abort_at_random,
    without_the_door,
)
from minipaged.course.month_5_server import LessonServer
from minipaged.course.month_5_times import idle_share, swap_or_recompute_ms
from minipaged.course.widgets_month_5 import Dashboard, schedule_stepper
from minipaged.serving import LLM, EngineStuckError, OutOfBlocksError, SamplingParams, Scheduler
from minipaged.serving.baselines import RequestLevelScheduler, StaticBatchScheduler

SHOP = [Order("A", 3), Order("B", 9), Order("C", 2), Order("D", 4), Order("E", 6), Order("F", 1)]
GUESTS = [Order("A", 10, 6), Order("B", 14, 6), Order("C", 12, 6), Order("D", 6, 6)]


@pytest.fixture(scope="module")
def crowded():
    return serve_orders(GUESTS, num_blocks=10, longest=20)


@pytest.mark.parametrize(
    ("scheduler", "steps", "ends"),
    [
        (StaticBatchScheduler, 19, [3, 9, 11, 13, 19, 14]),
        (RequestLevelScheduler, 15, [3, 9, 2, 13, 15, 10]),
        (Scheduler, 9, [3, 9, 2, 6, 9, 7]),
    ],
)
def test_the_burger_shop(scheduler, steps, ends):
    shop = serve_orders(SHOP, scheduler, seats=3, num_blocks=8, longest=12)
    assert (shop.num_steps, [shop.last_token[order.name] for order in SHOP]) == (steps, ends)
    assert shop.count("prefill", "decode") == sum(order.steps for order in SHOP)  # one token a step, under every rule


def test_the_newest_are_preempted_and_every_token_is_counted(crowded):
    kinds = {name: [cell.kind for cell in row.values()] for name, row in crowded.rows.items()}
    assert "preempted" not in kinds["A"] + kinds["B"]
    assert (crowded.rows["D"][4].kind, crowded.rows["C"][8].kind) == ("preempted", "preempted")
    assert crowded.computed_tokens == crowded.llm.stats.num_scheduled_tokens
    assert crowded.repeated_tokens == 12 + 8
    assert serve_orders(GUESTS, num_blocks=10, longest=20, preemption="swap").repeated_tokens == 0


def test_a_chunk_takes_what_the_others_leave_of_the_budget():
    orders = [*(Order(name, 9, 3) for name in "ABCD"), Order("E", 4, 30, arrival=2)]
    run = serve_orders(orders, budget=16)
    assert [cell.num_tokens for cell in run.rows["E"].values() if cell.kind == "prefill"] == [12, 12, 6]
    tokens = [sum(row[step].num_tokens for row in run.rows.values() if step in row) for step in range(1, 10)]
    assert max(tokens) == 16


def test_the_picture_says_what_each_request_does_in_each_step(crowded):
    figure = draw_schedules([crowded], "Crowded", numbers=True, pool=True)
    assert "D: step 1 prefill (6 tokens); steps 2–3 decode: one token; step 4 gives back all its blocks" in figure.text
    assert "step 11 computes again what it had before (13 tokens)" in figure.text
    assert "blocks in use, of 10: 8 8 8 9" in figure.text
    early = draw_schedules([crowded], upto=2)
    assert "gives back" not in early.text
    assert early.height == draw_schedules([crowded], upto=17).height
    assert {cell.kind for row in crowded.rows.values() for cell in row.values()} <= KINDS.keys()


def test_the_stepper_says_what_was_decided_and_shows_the_last_step_without_a_kernel(crowded):
    stepper = schedule_stepper(crowded, "Crowded")
    assert len(stepper.frames) == crowded.num_steps + 1
    assert stepper.first is stepper.frames[-1]
    assert stepper.captions[4] == "D must go (C needs a block and is older)"
    assert stepper.captions[1].startswith("A enters with 6 tokens")


def test_a_followed_step_is_a_real_step():
    def engine():
        llm = LLM("tiny", num_blocks=16, block_size=4, attention="reference", free_order=[7, 1, 3, 5, 2])
        llm.engine.add_request("Four score and seven years ago our fathers", SamplingParams(max_tokens=3), "A")
        llm.engine.step()
        llm.engine.step()
        llm.engine.add_request("Four score and seven people live here", SamplingParams(max_tokens=3), "B")
        return llm

    llm, plain = engine(), engine()
    step, _ = follow_step(llm), plain.engine.step()
    words = [message.words for message in step.messages]
    assert "4 tokens hit, in blocks [7]" in words
    assert "free(A): blocks [7, 1, 3]" in words
    assert [row[2:] for row in step.batch][:2] == [[9, 13], [4, 20]]
    assert llm.stats.num_scheduled_tokens == plain.stats.num_scheduled_tokens
    for engine_ in (llm.engine, plain.engine):  # nobody listens any more, and both go on alike
        engine_.step()
    assert len(step.messages) == len(words)
    assert [r.token_ids for r in llm.engine.scheduler.running] == [r.token_ids for r in plain.engine.scheduler.running]
    assert f"{len(words)}. ModelRunner (worker) → Scheduler" in draw_messages(step.messages).text


def test_a_request_that_never_fits_goes_round_for_ever_without_the_door():
    run = without_the_door(Order("A", 20, 10), num_blocks=4, budget=4, max_steps=60)
    assert (run.num_steps, run.last_token["A"]) == (60, 9)
    assert run.count("preempted") == 11
    gave_back = [step for step, cell in run.rows["A"].items() if cell.kind == "preempted"]
    assert all(run.used_blocks[step - 1] == 0 for step in gave_back)  # nobody else is there
    with pytest.raises(ValueError, match="but the pool has 4"):
        serve_orders([Order("A", 20, 10)], num_blocks=4, budget=4)


def test_who_asks_wins_computes_most_tokens_again():
    two = [Order(name, 16, 8) for name in "AB"]
    runs = [serve_orders(two, rule, num_blocks=8, budget=8, longest=16) for rule in (AskerWinsScheduler, Scheduler)]
    assert [run.repeated_tokens for run in runs] == [122, 35]
    idle = [cell for cell in runs[0].rows["B"].values() if cell.kind == "idle"]
    assert len(idle) == 2


def test_the_broken_parts_are_caught():
    with pytest.raises(EngineStuckError, match="LazyScheduler ran nobody"):
        LLM("tiny", num_blocks=8, parts={"scheduler": LazyScheduler}).generate("Four score")
    leaking = LLM("tiny", num_blocks=8, block_size=4, enable_prefix_caching=False, parts={"block_pool": LeakyPool})
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    for _ in range(4):
        leaking.generate([1] * 12, params)  # a leak is not noticed where it happens
    with pytest.raises(OutOfBlocksError, match="0 of 8 blocks are free"):
        leaking.generate([1] * 12, params)


@pytest.mark.parametrize("seed", range(4))
def test_aborts_leave_nothing_behind(seed):
    counts = abort_at_random(seed=seed)
    assert counts.pop("blocks in use at the end") == 0
    assert sum(counts.values()) == 40
    assert counts["running"] > 0 < counts["waiting"]


def test_estimates():
    assert idle_share(1)[1] < 1 < 99 < idle_share(200)[1] <= 100
    costs = swap_or_recompute_ms([1, 16, 64])
    assert len(set(costs["recompute"])) == 1
    assert costs["swap: out and in"][0] > 5 * costs["recompute"][0] > costs["swap: out and in"][2]


def test_padding_is_what_the_rectangle_has_beside_the_tokens():
    text = draw_padding({"A": 2, "B": 6, "C": 9}, title="Three prompts").text
    lines = ["Three prompts", "A: 2 tokens, 7 padding", "B: 6 tokens, 3 padding", "C: 9 tokens, 0 padding"]
    assert text.splitlines() == lines
    assert draw_padding({"one": 200, "two": 3}).text.endswith("two: 3 tokens, 197 padding")


def test_the_life_of_a_request():
    text = draw_request_times(0.0, 0.1, [0.3, 0.4, 0.5, 0.9, 1.0]).text
    assert "TTFT 0.3 s" in text
    assert "4 gaps (ITL each), 0.7 s: TPOT 0.175 s" in text


def test_the_dashboard_shows_an_example_until_somebody_watches():
    samples = example_samples(6)
    assert (samples[-1].running, samples[-1].waiting, samples[-1].usage) == (0, 0, 0)
    assert samples[-1].prefix_hits > 0
    llm = LLM("tiny", num_blocks=16)
    board = Dashboard(engine_source(llm), samples)
    assert board.figure is board.first
    assert "KV usage: begins at 0" in board.first.text
    llm.engine.add_request("Four score", SamplingParams(max_tokens=4))
    llm.engine.step()
    board.tick()
    assert "running: begins at 1" in board.figure.text
    assert board.image.value == board.figure.png != board.first.png
    assert board.message.value.startswith("running 1, waiting 0")
    with pytest.raises(ValueError, match="no samples"):
        draw_dashboard([])


def test_a_dashboard_says_when_it_cannot_look():
    def gone(time):
        raise httpx.ConnectError("nobody is there")

    board = Dashboard(gone, example_samples(2), seconds=0)
    board.button.value = True
    board._watch()
    assert "nobody is there" in board.message.value
    assert board.button.value is False


def test_a_lesson_server_from_start_to_stop():
    server = LessonServer("--num-blocks", "64", "--attention", "reference")
    try:
        assert "1,024 tokens" in server.lines[0]
        answer = server.ask("Four score", max_tokens=4)
        assert answer["usage"]["completion_tokens"] == 4
        assert "".join(e["choices"][0]["text"] for e in server.stream("Four score", 4)) == answer["choices"][0]["text"]
        assert server.ask("Four score", max_tokens=-1)["error"]["param"] == "max_tokens"
        events = server.stream("Once upon a time", max_tokens=900, ignore_eos=True)
        next(events)
        with server.watched(0.01) as samples:
            events.close()
            server.wait_until_idle()
        assert (samples[-1].running, samples[-1].usage) == (0, 0)
        assert server.metrics()["kv_cache_usage_perc"] == 0
        assert server.metrics()["request_success_total (length)"] == 2
        look = server_source(server.url)
        assert (look(3.0).time, look(3.0).running) == (3.0, 0)
        assert all(sample.usage is not None for sample in samples)
    finally:
        last_words = server.stop()
    assert last_words == "stopped; all 64 blocks are free, and the pool is whole"
    assert server.process.poll() == 0


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(RuntimeError, match="num_blocks is -1"):
        LessonServer("--num-blocks", "-1").url  # noqa: B018
