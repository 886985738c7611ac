"""Who runs, who waits, who gives back blocks, and why."""

from __future__ import annotations

import random

import pytest

from minipaged.serving import SchedulerConfig
from minipaged.serving.baselines import RequestLevelScheduler, StaticBatchScheduler
from minipaged.serving.scheduler import OutOfBlocksError
from tests.serving.helpers import BeamSearchParams, SamplingParams, assert_empty, greedy, make_llm, tokens_of


def run(llm, prompts, max_tokens, **kwargs):
    """Add all, then step to the end. Returns, for each step, {request id: tokens}; and the finishing order."""
    lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        params = SamplingParams(max_tokens=length, ignore_eos=True)
        llm.engine.add_request(prompt, params, f"r{number}", **kwargs)
    return run_to_end(llm)


def run_to_end(llm, limit=500):
    steps, finished = [], []
    schedule = llm.engine.scheduler.schedule

    def watched():
        output = schedule()
        steps.append(dict(output.num_scheduled_tokens))
        return output

    llm.engine.scheduler.schedule = watched
    for _ in range(limit):
        finished += [output.request_id for output in llm.engine.step() if output.finished]
        if not llm.engine.has_unfinished_requests():
            return steps, finished
    raise AssertionError(f"not finished after {limit} steps")


def test_decodes_come_first_and_the_prompt_gets_the_rest_of_the_budget():
    llm = make_llm(max_num_batched_tokens=8)
    for number in range(3):
        llm.engine.add_request([1], SamplingParams(max_tokens=9, ignore_eos=True), f"d{number}")
    llm.engine.step()
    llm.engine.add_request(list(range(1, 13)), SamplingParams(max_tokens=1, ignore_eos=True), "long")
    steps, _ = run_to_end(llm)
    assert [step.get("long") for step in steps[:4]] == [5, 5, 2, None]
    assert all(step[f"d{number}"] == 1 for step in steps[:3] for number in range(3))


def test_no_step_exceeds_the_budget_and_no_batch_the_seats():
    llm = make_llm(max_num_batched_tokens=7, max_num_seqs=3)
    steps, _ = run(llm, [[1 + i] * (3 + i) for i in range(8)], 6)
    assert max(sum(step.values()) for step in steps) <= 7
    assert max(len(step) for step in steps) <= 3


def test_without_chunked_prefill_a_prompt_waits_for_a_budget_that_holds_it_whole():
    llm = make_llm(max_num_batched_tokens=10, enable_chunked_prefill=False)
    steps, _ = run(llm, [[1] * 6, [2] * 6], 3)
    assert steps[0] == {"r0": 6}
    assert steps[1] == {"r0": 1, "r1": 6}


def test_first_come_first_served_also_with_a_small_late_request():
    """r1 does not fit beside r0. r2 would, but nobody overtakes."""
    llm = make_llm(num_blocks=6, watermark=0.0, trace=True)
    _, finished = run(llm, [[1] * 12, [2] * 16, [3]], 4)
    assert finished == ["r0", "r1", "r2"]
    waits = {(d.request_id, d.reason) for d in llm.engine.trace if d.action == "wait"}
    assert ("r2", "behind r1") in waits
    assert ("r1", "it needs 4 blocks, and 3 are free") in waits


def test_the_victim_is_the_newest_and_loses_all_its_blocks():
    llm = make_llm(num_blocks=6, watermark=0.0, trace=True)
    prompts = [[1] * 7, [2] * 7, [3] * 7]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=10, ignore_eos=True))
    assert tokens_of(outputs) == [greedy(p, 10, ignore_eos=True) for p in prompts]
    preempted = [d for d in llm.engine.trace if d.action == "preempt"]
    assert preempted[0].request_id == "r2"
    assert preempted[0].reason == "r0 needs a block and is older"
    assert "r0" not in {d.request_id for d in preempted}
    assert outputs[2].num_preemptions > 0
    assert_empty(llm)


def test_preempted_request_keeps_its_tokens_and_its_place():
    """It comes back before anything that arrived later."""
    llm = make_llm(num_blocks=6, watermark=0.0)
    _, finished = run(llm, [[1] * 7, [2] * 7, [3] * 7, [4] * 7], 8)
    assert finished == ["r0", "r1", "r2", "r3"]


def test_priority_goes_before_arrival():
    llm = make_llm(max_num_seqs=1, policy="priority")
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    for request_id, priority in (("low", 5), ("high", -1), ("middle", 0)):
        llm.engine.add_request([1], params, request_id, priority=priority)
    _, finished = run_to_end(llm)
    assert finished == ["high", "middle", "low"]


def test_priority_decides_the_victim():
    """The late request is more important, so the early one gives back its blocks."""
    llm = make_llm(num_blocks=6, watermark=0.0, policy="priority")
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    llm.engine.add_request([1] * 7, params, "early", priority=1)
    llm.engine.step()
    llm.engine.add_request([2] * 7, params, "late", priority=0)
    _, finished = run_to_end(llm)
    assert finished == ["late", "early"]
    assert llm.stats.num_preemptions > 0


def test_watermark_leaves_blocks_free_at_admission_but_never_stops_an_idle_engine():
    llm = make_llm(num_blocks=10, watermark=0.5, trace=True)
    steps, _ = run(llm, [[1] * 24, [2] * 12], 4)
    assert steps[0] == {"r0": 24}
    first = next(d.reason for d in llm.engine.trace if d.request_id == "r1")
    assert first == "it would leave 1 blocks free, fewer than the watermark of 5"
    alone = make_llm(num_blocks=10, watermark=1.0)
    assert tokens_of(alone.generate([[1] * 24], SamplingParams(max_tokens=4, ignore_eos=True))) == [
        greedy([1] * 24, 4, ignore_eos=True)
    ]


def test_the_only_running_request_never_preempts_itself():
    llm = make_llm(num_blocks=5, watermark=0.0)
    llm.generate([[1] * 5], SamplingParams(max_tokens=16, ignore_eos=True))
    assert llm.stats.num_preemptions == 0
    assert llm.stats.peak_usage == 1.0


def test_lost_blocks_end_in_a_message_and_not_in_a_loop():
    llm = make_llm(num_blocks=5, check_integrity=False)
    llm.engine.manager.pool.get_new_blocks(2)  # nobody will ever give these back
    with pytest.raises(OutOfBlocksError, match=r"r0 runs alone .* 0 of 5 blocks are free"):
        llm.generate([[1] * 5], SamplingParams(max_tokens=16, ignore_eos=True))
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.manager.num_free_blocks == 3


def test_a_request_that_lost_blocks_keep_out_for_ever_is_reported():
    llm = make_llm(num_blocks=5, check_integrity=False)
    llm.engine.manager.pool.get_new_blocks(4)
    with pytest.raises(RuntimeError, match=r"ran nobody in 3 steps.*r0 \(6 tokens\).*1 of 5 blocks are free"):
        llm.generate([[1] * 6], SamplingParams(max_tokens=4))
    assert not llm.engine.has_unfinished_requests()


def test_trace_tells_each_step_of_a_request():
    llm = make_llm(trace=True, max_num_batched_tokens=4)
    llm.generate([[1, 2, 3, 4, 5, 6]], SamplingParams(max_tokens=2, ignore_eos=True))
    story = [(d.step, d.action, d.num_tokens) for d in llm.engine.trace]
    assert story == [(1, "admit", 4), (2, "run", 2), (3, "run", 1), (3, "finish", 8)]


def test_trace_tells_who_runs_and_gets_no_token():
    llm = make_llm(trace=True, max_num_batched_tokens=2)
    for number in range(4):
        llm.engine.add_request([1 + number], SamplingParams(max_tokens=3, ignore_eos=True), f"r{number}")
    llm.engine.step()
    llm.engine.scheduler.config = SchedulerConfig(max_num_batched_tokens=1, trace=True)
    before = len(llm.engine.trace)
    llm.engine.step()
    assert [(d.action, d.request_id, d.reason) for d in llm.engine.trace[before:]] == [
        ("run", "r0", "running"),
        ("idle", "r1", "older ones have spent the token budget"),
        ("wait", "r2", "the token budget is spent"),
        ("wait", "r3", "behind r2"),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_trace_names_everybody_in_every_step(seed):
    """Whoever has not ended ran, was idle, waited or had to leave; no step forgets anybody."""
    rng = random.Random(seed)
    llm = make_llm(trace=True, num_blocks=9, max_num_batched_tokens=5, preemption=rng.choice(["recompute", "swap"]))
    for number in range(6):
        prompt = [rng.randint(1, 3) for _ in range(rng.randint(1, 9))]
        params = SamplingParams(max_tokens=rng.randint(1, 16), ignore_eos=True)
        if rng.random() < 0.3:
            prompt, params = prompt[:2], BeamSearchParams(beam_width=2, max_tokens=6, ignore_eos=True)
        llm.engine.add_request(prompt, params, f"r{number}")
    scheduler, trace = llm.engine.scheduler, llm.engine.trace
    while llm.engine.has_unfinished_requests():
        there = {request.request_id for request in scheduler.running + scheduler.waiting}
        before = len(trace)
        llm.engine.step()
        decisions = [d for d in trace[before:] if d.action != "finish"]
        assert {d.request_id for d in decisions} == there
        assert len(decisions) == len(there)
        assert all(d.reason for d in decisions)


def test_a_group_takes_its_seats_when_it_enters():
    """n = 3 needs three seats: so it waits until the two running ones have left."""
    llm = make_llm(max_num_seqs=4)
    for number in range(2):
        llm.engine.add_request([1 + number], SamplingParams(max_tokens=5, ignore_eos=True), f"r{number}")
    llm.engine.add_request([5], SamplingParams(n=3, max_tokens=3, ignore_eos=True), "group")
    steps, _ = run_to_end(llm)
    assert "group/0" in steps[5]
    assert not any("group/0" in step for step in steps[:5])
    assert max(map(len, steps)) <= 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; allowed is at least 1"),
        ({"max_num_batched_tokens": -5}, "max_num_batched_tokens is -5"),
        ({"policy": "lottery"}, "policy is 'lottery'; choose"),
        ({"preemption": "never"}, "preemption is 'never'; choose"),
        ({"watermark": 1.5}, "watermark is 1.5; allowed is 0.0 … 1.0"),
    ],
)
def test_config_refuses(wrong, message):
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**wrong)


class TestBaselines:
    """The exercise: lengths 2, 8, 3, width 2."""

    def steps(self, scheduler):
        parts = {"scheduler": scheduler} if scheduler else None
        llm = make_llm(max_num_seqs=2, parts=parts, trace=True)
        steps, finished = run(llm, [[1], [2], [3]], [2, 8, 3])
        assert_empty(llm)
        return len(steps), finished, llm

    def test_iteration_level(self):
        assert self.steps(None)[:2] == (8, ["r0", "r2", "r1"])

    def test_request_level(self):
        assert self.steps(RequestLevelScheduler)[:2] == (11, ["r0", "r1", "r2"])

    def test_static(self):
        steps, finished, llm = self.steps(StaticBatchScheduler)
        assert (steps, finished) == (11, ["r0", "r1", "r2"])
        held = [d.step for d in llm.engine.trace if d.action == "hold"]
        assert held == [3, 4, 5, 6, 7, 8]  # r0 has ended after step 2 and keeps its seat until r1 has

    def test_static_batches_are_as_small_as_their_longest_possible_text(self):
        llm = make_llm(num_blocks=6, parts={"scheduler": StaticBatchScheduler}, watermark=0.0)
        steps, _ = run(llm, [[1], [2], [3]], 12)  # each may need 3 of the 6 blocks
        assert max(map(len, steps)) == 2
        assert llm.stats.num_preemptions == 0

    @pytest.mark.parametrize("scheduler", [RequestLevelScheduler, StaticBatchScheduler])
    def test_same_text_also_with_forks_beams_and_aborts(self, scheduler):
        llm = make_llm(parts={"scheduler": scheduler}, num_blocks=20)
        prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [7]]
        outputs = llm.generate(prompts, SamplingParams(n=2, max_tokens=9))
        assert [[c.token_ids for c in o.outputs] for o in outputs] == [[greedy(p, 9)] * 2 for p in prompts]
        llm.generate(prompts, BeamSearchParams(beam_width=2, max_tokens=5))
        for number, prompt in enumerate(prompts):
            llm.engine.add_request(prompt, SamplingParams(max_tokens=9), f"x{number}")
        llm.engine.step()
        for number in range(3):
            llm.engine.abort(f"x{number}")
        assert_empty(llm)
