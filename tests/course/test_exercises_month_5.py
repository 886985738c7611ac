"""The numbers of Month 5's exercises, worked out once more; and the watch over a learner's scheduler."""

import sys
import time

import pytest

from minipaged.course.checks.month_5 import swap_seconds_of
from minipaged.course.expect import Expect, Unmet
from minipaged.course.line_limit import Endless, line_limit
from minipaged.course.plug_in_month_5 import chunks_of, make_engine, serve_texts, steps_of
from minipaged.course.swap_costs import OPT_13B
from minipaged.course.watched_scheduler import A, B, serve
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.serving import Scheduler
from minipaged.serving.baselines import RequestLevelScheduler, StaticBatchScheduler


def test_the_worked_numbers_are_those_of_the_real_scheduler():
    lengths = [2, 8, 3]
    kinds = (RequestLevelScheduler, StaticBatchScheduler, Scheduler)
    assert [steps_of(kind, lengths, 2) for kind in kinds] == [11, 11, 8]
    assert chunks_of(12, 3, 8) == [5, 5, 2]
    assert sum(10 - n for n in (3, 5, 10)) == 12


def test_the_second_turn_of_the_chat_hits_what_the_first_one_generated():
    manager = KVCacheManager(8, 4)
    first = CacheRequest("first", list(range(9)))
    for token in (40, 41, 42, 43):
        manager.allocate_slots(first, first.num_tokens - first.num_computed_tokens)
        first.num_computed_tokens = first.num_tokens
        first.append_token(token)
    manager.free(first)
    second = CacheRequest("second", [*first.token_ids, *range(50, 55)])
    assert (manager.usage, second.num_tokens, manager.get_computed_blocks(second)[1]) == (0.0, 18, 12)


def test_the_cost_model_has_the_shape_of_the_papers_figure_19():
    again = 1024 / OPT_13B.prefill_per_second
    ratio = {size: swap_seconds_of(1024, size, OPT_13B) / again for size in (1, 8, 16, 32, 64)}
    assert ratio[1] > 5
    assert ratio[8] > 1
    assert all(0.4 < ratio[size] <= 1 for size in (16, 32, 64))  # comparable from 16 to 64


def test_the_pools_of_the_exercises_are_small_enough_to_preempt():
    for num_blocks in (9, 11):
        engine = make_engine(KVCacheManager(num_blocks, 4, enable_caching=False))
        serve_texts(engine)
        assert engine.stats.num_preemptions > 0


@pytest.mark.parametrize("jobs", [A, B])
def test_the_courses_own_scheduler_keeps_the_rules(jobs):
    preempted, running = [], []

    class Counting(Scheduler):
        def schedule(self):
            output = super().schedule()
            preempted.extend(output.preempted)
            running.append(len(self.running))
            return output

    serve(Counting, Expect(), "a workload", jobs)
    assert len(preempted) > 3 if jobs is B else max(running) > 1


def learners(code: str, name: str):
    namespace = {}
    exec(compile(code, "<answer>", "exec"), namespace)
    return namespace[name]


def test_an_endless_loop_is_broken_off_and_tracing_is_as_before():
    forever = learners("def forever():\n    while True:\n        pass\n", "forever")
    body = "    while True:\n        try:\n            pass\n        except Exception:\n            pass\n"
    swallow = learners("def swallow():\n" + body, "swallow")
    before = sys.gettrace()
    for function in (forever, swallow):
        with pytest.raises(Endless), line_limit(1000):
            function()
    assert sys.gettrace() is before


def test_a_scheduler_that_loops_for_ever_is_a_message():
    code = """
from minipaged.serving import Scheduler
class Loops(Scheduler):
    def schedule(self):
        while self.waiting:
            pass
"""
    with pytest.raises(Unmet, match="Every decision comes to an end"):
        serve(learners(code, "Loops"), Expect(), "workload A", A)


@pytest.mark.parametrize("loop", ["while True: pass", "while True:\n    pass", "for _ in iter(int, 1): pass"])
def test_a_loop_that_never_ends_is_broken_off_wherever_its_body_stands(loop: str) -> None:
    code = compile(loop, "my cell", "exec")
    with pytest.raises(Endless), line_limit(1000, seconds=0.5):
        exec(code, {})


def test_the_alarm_is_off_after_the_block() -> None:
    with line_limit(1000, seconds=0.05):
        pass
    time.sleep(0.1)
