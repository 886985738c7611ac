"""The engine: what it refuses, what it returns, and that it leaves nothing behind."""

from __future__ import annotations

import pytest

from minipaged.attention import ReferenceBackend
from minipaged.serving import LLM
from tests.serving.helpers import (
    EOS,
    VOCAB,
    BeamSearchParams,
    HashModel,
    SamplingParams,
    assert_empty,
    greedy,
    make_llm,
    tokens_of,
)

PROMPT = [1, 2, 3, 4, 5, 6, 7]


class TestBadInput:
    """Each is refused before anything has changed."""

    @pytest.mark.parametrize(
        ("prompt", "params", "error", "message"),
        [
            ([], {}, ValueError, "the prompt is empty"),
            ([1, VOCAB], {}, ValueError, "token id 13 at place 1 of the prompt is outside the vocabulary of 13"),
            ([-1], {}, ValueError, "token id -1 at place 0"),
            ([1, "2"], {}, TypeError, "token 1 of the prompt is '2'"),
            ([True], {}, TypeError, "token 0 of the prompt is True"),
            (3.5, {}, TypeError, "the prompt is a float"),
            (None, {}, TypeError, "the prompt is a NoneType"),
            ("text", {}, TypeError, "has no tokenizer"),
            (
                [1] * 7,
                {"max_tokens": 35},
                ValueError,
                r"prompt \(7 tokens\) \+ max_tokens \(35\) = 42 tokens need 11 blocks of 4 tokens, but the pool "
                r"has 10; shorten the prompt, or set max_tokens to at most 34, or give the pool num_blocks=11",
            ),
            ([1] * 50, {"max_tokens": 1}, ValueError, "need 13 blocks .* the pool has 10; shorten the prompt, or give"),
            ([1] * 30, {"max_tokens": 60}, ValueError, r"the model's length is 80; .*max_tokens to at most 11"),
            ([1] * 90, {"max_tokens": None}, ValueError, "the model's length is 80"),
            ([1], {"stop": "x"}, ValueError, "stop strings need a tokenizer"),
            ([1], {"stop_token_ids": [VOCAB]}, ValueError, "stop_token_ids holds 13"),
            ([1], {"n": 9}, ValueError, "n is 9, but max_num_seqs is 8"),
        ],
    )
    def test_request(self, prompt, params, error, message):
        llm = make_llm(HashModel(max_position_embeddings=80), num_blocks=10, max_num_seqs=8)
        before = llm.engine.manager.num_free_blocks
        with pytest.raises(error, match=message):
            llm.engine.add_request(prompt, SamplingParams(**params))
        assert not llm.engine.has_unfinished_requests()
        assert llm.engine.manager.num_free_blocks == before
        assert tokens_of(llm.generate([PROMPT], SamplingParams(max_tokens=4))) == [greedy(PROMPT, 4)]

    def test_beams_must_fit_together(self):
        llm = make_llm(num_blocks=10)
        params = BeamSearchParams(beam_width=4, max_tokens=8)
        message = r"need 3 blocks of 4 tokens for each of 4 beams, which run together \(12 in all\), .* pool has 10"
        with pytest.raises(ValueError, match=message):
            llm.generate([PROMPT[:3]], params)
        llm.generate([PROMPT[:1]], params)
        with pytest.raises(ValueError, match="beam_width is 4, but max_num_seqs is 3"):
            make_llm(max_num_seqs=3).generate([[1]], params)

    def test_params_and_ids(self):
        llm = make_llm()
        with pytest.raises(TypeError, match="params is a dict"):
            llm.engine.add_request([1], {"max_tokens": 3})
        llm.engine.add_request([1], request_id="a")
        with pytest.raises(ValueError, match="request_id 'a' must be a string that no unfinished request has"):
            llm.engine.add_request([1], request_id="a")
        with pytest.raises(ValueError, match="request_id 7 must be a string"):
            llm.engine.add_request([1], request_id=7)
        with pytest.raises(ValueError, match='priority is 1, but the policy is "fcfs"'):
            llm.engine.add_request([1], priority=1)
        llm.engine.abort("a")
        assert_empty(llm)

    def test_one_bad_prompt_stops_the_whole_call_before_it_starts(self):
        llm = make_llm()
        with pytest.raises(ValueError, match="the prompt is empty") as caught:
            llm.generate([[1], [2], []])
        assert caught.value.__notes__ == ["(prompt 2 of 3)"]
        assert llm.stats.num_steps == 0
        assert_empty(llm)

    def test_number_of_params(self):
        with pytest.raises(ValueError, match="3 params for 2 prompts"):
            make_llm().generate([[1], [2]], [SamplingParams()] * 3)

    @pytest.mark.parametrize("prompts", [5, {1: 2}, None])
    def test_prompts_of_a_wrong_kind(self, prompts):
        with pytest.raises(TypeError, match="prompts is a"):
            make_llm().generate(prompts)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"block_size": 0}, ValueError, "block_size is 0; a block holds at least 1 token"),
            ({"block_size": -4}, ValueError, "block_size is -4"),
            ({"block_size": 4.0}, TypeError, "block_size is 4.0"),
            ({"num_blocks": 0}, ValueError, "num_blocks is 0; a pool needs at least 1"),
            ({"num_blocks": -1}, ValueError, "num_blocks is -1"),
            ({"num_blocks": "8"}, TypeError, "num_blocks is '8'"),
            ({"num_blocks": 1, "null_block": True}, ValueError, r"needs at least 2 \(one is the null block\)"),
            ({"attention": "flash"}, ValueError, "attention backend 'flash' is unknown: choose one of"),
            ({"attention": object()}, TypeError, "object is no attention backend"),
            ({"preemption": "abort"}, ValueError, "preemption is 'abort'"),
            ({"num_cpu_blocks": 4}, ValueError, "num_cpu_blocks is 4, but preemption is 'recompute'"),
            ({"num_disk_blocks": 4}, ValueError, "num_disk_blocks is 4, but preemption is 'recompute'"),
            ({"swap_folder": "nowhere", "preemption": "swap"}, ValueError, "swap_folder is 'nowhere'; give a folder"),
            ({"free_order": 5}, TypeError, "free_order is 5; give a list of block ids"),
            ({"blok_size": 8}, TypeError, "LLM has no argument 'blok_size'"),
            ({"enable_prefix_caching": "yes"}, TypeError, "enable_prefix_caching is 'yes'"),
            ({"seed": None}, TypeError, "seed is None"),
            ({"device": "toaster"}, ValueError, "device is 'toaster'; give"),
            ({"preemption": "swap", "num_cpu_blocks": -1}, ValueError, "num_cpu_blocks is -1"),
        ],
    )
    def test_engine_arguments(self, arguments, error, message):
        with pytest.raises(error, match=message):
            make_llm(**arguments)

    def test_a_block_size_that_the_backend_refuses(self):
        class Picky(ReferenceBackend):
            block_sizes = (16, 32)

        with pytest.raises(ValueError, match=r"block_size is 4, but the attention backend .* reads \(16, 32\)"):
            make_llm(attention=Picky())
        make_llm(attention=Picky(), block_size=32)

    def test_a_missing_model(self):
        with pytest.raises(ValueError, match="there is no checkpoint folder 'nowhere'"):
            LLM("nowhere")


class TestGenerate:
    def test_a_pool_that_is_just_enough(self):
        """The last token is never written: 7 + 10 tokens take 16 slots, 4 blocks of 4."""
        llm = make_llm(num_blocks=4)
        assert tokens_of(llm.generate([PROMPT], SamplingParams(max_tokens=10, ignore_eos=True))) == [
            greedy(PROMPT, 10, ignore_eos=True)
        ]
        assert llm.stats.peak_usage == 1.0
        assert_empty(llm)

    def test_single_prompt_forms(self):
        llm = make_llm()
        assert tokens_of(llm.generate(PROMPT)) == tokens_of(llm.generate([PROMPT])) == [greedy(PROMPT, 16)]
        assert llm.generate([]) == []

    def test_outputs_keep_the_order_of_the_prompts(self):
        llm = make_llm(max_num_seqs=2)
        prompts = [[1 + i % 5] * (1 + i) for i in range(9)]
        params = [SamplingParams(max_tokens=9 - i) for i in range(9)]
        outputs = llm.generate(prompts, params)
        assert [o.prompt_token_ids for o in outputs] == prompts
        assert tokens_of(outputs) == [greedy(p, 9 - i) for i, p in enumerate(prompts)]

    def test_finish_reasons(self):
        llm = make_llm()
        prompt = next([i, j] for i in range(1, VOCAB) for j in range(1, VOCAB) if greedy([i, j], 30)[-1] == EOS)
        stopped = llm.generate([prompt], SamplingParams(max_tokens=30))[0].outputs[0]
        assert (stopped.finish_reason, stopped.stop_reason, stopped.token_ids[-1]) == ("stop", None, EOS)
        on = llm.generate([prompt], SamplingParams(max_tokens=30, ignore_eos=True))[0].outputs[0]
        assert (on.finish_reason, len(on.token_ids)) == ("length", 30)
        assert on.token_ids[: len(stopped.token_ids)] == stopped.token_ids
        second = on.token_ids[1]
        at_token = llm.generate([prompt], SamplingParams(stop_token_ids=[second], ignore_eos=True))[0].outputs[0]
        assert at_token.finish_reason == "stop"
        assert at_token.stop_reason == second

    def test_max_tokens_none_means_as_many_as_fit(self):
        llm = make_llm(HashModel(max_position_embeddings=30), num_blocks=4)
        output = llm.generate([PROMPT], SamplingParams(max_tokens=None, ignore_eos=True))[0].outputs[0]
        assert len(output.token_ids) == 4 * 4 + 1 - 7
        llm = make_llm(HashModel(max_position_embeddings=30))
        output = llm.generate([PROMPT], SamplingParams(max_tokens=None, ignore_eos=True))[0].outputs[0]
        assert len(output.token_ids) == 30 - 7

    def test_cached_tokens(self):
        llm = make_llm()
        first, second = (llm.generate([PROMPT])[0] for _ in range(2))
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 4)
        assert llm.stats.prefix_query_tokens == 14
        assert llm.stats.prefix_hit_tokens == 4
        salted = llm.generate([PROMPT], cache_salt="tenant")[0]
        assert salted.num_cached_tokens == 0

    def test_two_equal_prompts_in_one_step_share_what_the_first_one_computes(self):
        llm = make_llm()
        outputs = llm.generate([PROMPT, PROMPT], SamplingParams(max_tokens=3))
        assert [o.num_cached_tokens for o in outputs] == [0, 4]
        assert tokens_of(outputs) == [greedy(PROMPT, 3)] * 2

    def test_retries_do_not_inflate_the_hits(self):
        llm = make_llm(num_blocks=6, watermark=0.0)
        prompts = [[1] * 7, [2] * 7, [3] * 7]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=10, ignore_eos=True))
        assert llm.stats.num_preemptions > 0
        assert llm.stats.prefix_query_tokens == 21
        assert llm.stats.prefix_hit_tokens == 0
        assert [o.num_cached_tokens for o in outputs] == [0, 0, 0]

    def test_seed_gives_the_same_tokens_in_any_company(self):
        params = SamplingParams(temperature=1.0, seed=7, max_tokens=10)
        alone = make_llm().generate([PROMPT], params)
        crowd = make_llm(num_blocks=9, watermark=0.0, max_num_batched_tokens=6).generate(
            [[9] * 6, PROMPT, [8] * 5], [SamplingParams(temperature=1.0, max_tokens=12), params, SamplingParams()]
        )
        assert tokens_of(crowd)[1] == tokens_of(alone)[0]

    def test_without_a_seed_requests_differ_but_an_engine_repeats_itself(self):
        params = SamplingParams(temperature=1.5, max_tokens=10, ignore_eos=True)
        runs = [tokens_of(make_llm(seed=3).generate([PROMPT, PROMPT], params)) for _ in range(2)]
        assert runs[0] == runs[1]
        assert runs[0][0] != runs[0][1]

    def test_logprobs(self):
        output = make_llm().generate([PROMPT], SamplingParams(max_tokens=4, logprobs=2, ignore_eos=True))[0].outputs[0]
        assert len(output.logprobs) == 4
        for token, found in zip(output.token_ids, output.logprobs, strict=True):
            assert next(iter(found)) == token
            assert len(found) == 2  # greedy: the chosen token is the best one
        total = sum(found[token] for token, found in zip(output.token_ids, output.logprobs, strict=True))
        assert output.cumulative_logprob == pytest.approx(total)

    def test_streaming_reports_every_token_and_the_end(self):
        llm = make_llm()
        llm.engine.add_request(PROMPT, SamplingParams(max_tokens=5, ignore_eos=True), stream=True)
        seen = []
        while llm.engine.has_unfinished_requests():
            seen += [(len(o.outputs[0].token_ids), o.finished) for o in llm.engine.step()]
        assert seen == [(1, False), (2, False), (3, False), (4, False), (5, True)]

    def test_progress_bar(self, capsys):
        make_llm().generate([PROMPT] * 3, progress=True)
        assert "Requests" in capsys.readouterr().err

    def test_times(self):
        times = make_llm().generate([PROMPT], SamplingParams(max_tokens=5, ignore_eos=True))[0].times
        assert times.arrival <= times.first_scheduled <= times.tokens[0] <= times.finished
        assert len(times.tokens) == 5
        assert times.ttft > 0
        assert times.tpot == pytest.approx((times.tokens[-1] - times.tokens[0]) / 4)


class TestAbort:
    @pytest.mark.parametrize("steps", [0, 1, 3, 6])
    def test_at_any_moment(self, steps):
        llm = make_llm(num_blocks=6, max_num_batched_tokens=4, watermark=0.0, preemption="swap")
        params = SamplingParams(max_tokens=9, ignore_eos=True, n=2)
        for number in range(3):
            llm.engine.add_request([1 + number] * 7, params, f"r{number}")
        llm.engine.add_request([5] * 3, BeamSearchParams(beam_width=2, max_tokens=4), "beam")
        for _ in range(steps):
            llm.engine.step()
        for request_id in ("r1", "beam", "r0", "r2"):
            assert llm.engine.abort(request_id)
            llm.engine.check_integrity()
        assert not llm.engine.abort("r1")
        assert not llm.engine.abort("unknown")
        assert_empty(llm)
        assert tokens_of(llm.generate([PROMPT])) == [greedy(PROMPT, 16)]

    def test_an_interrupted_call_leaves_nothing(self, monkeypatch):
        llm = make_llm()
        step, count = llm.engine.step, iter(range(100))

        def interrupted():
            if next(count) == 3:
                raise KeyboardInterrupt
            return step()

        monkeypatch.setattr(llm.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([PROMPT, [1]])
        assert_empty(llm)


class TestFailure:
    """Blocks are hashed before the model has run. If it fails, nobody may find them."""

    @pytest.mark.parametrize("call", [1, 2, 4, 7])
    def test_same_prompt_after_a_failed_step(self, call):
        llm = make_llm(HashModel(fail_on={call}))
        with pytest.raises(RuntimeError, match="the device was lost"):
            llm.generate([PROMPT, PROMPT], SamplingParams(max_tokens=12, ignore_eos=True))
        assert_empty(llm)
        again = llm.generate([PROMPT], SamplingParams(max_tokens=12, ignore_eos=True))
        assert tokens_of(again) == [greedy(PROMPT, 12, ignore_eos=True)]

    def test_only_the_requests_of_the_step_fail(self):
        llm = make_llm(HashModel(fail_on={2}), max_num_seqs=1)
        llm.engine.add_request(PROMPT, SamplingParams(max_tokens=4), "first")
        llm.engine.add_request([1], SamplingParams(max_tokens=4), "second")
        llm.engine.step()
        with pytest.raises(RuntimeError, match="the device was lost"):
            llm.engine.step()
        (failed,) = llm.engine.take_failed()
        assert (failed.request_id, failed.outputs[0].finish_reason) == ("first", "error")
        assert llm.engine.take_failed() == []
        outputs = []
        while llm.engine.has_unfinished_requests():
            outputs += llm.engine.step()
        assert tokens_of(outputs) == [greedy([1], 4)]
        assert_empty(llm)

    def test_a_scheduler_that_raises_half_way(self):
        llm = make_llm()
        allocate, count = llm.engine.manager.allocate_slots, iter(range(100))

        def breaks(*args, **kwargs):
            if next(count) == 1:
                raise RuntimeError("no luck")
            return allocate(*args, **kwargs)

        llm.engine.manager.allocate_slots = breaks
        with pytest.raises(RuntimeError, match="no luck"):
            llm.generate([PROMPT, PROMPT])
        assert_empty(llm)
        assert tokens_of(llm.generate([PROMPT])) == [greedy(PROMPT, 16)]

    def test_a_fork_that_failed_in_the_same_step(self):
        """The step after the fork copies a block. It breaks off: the copy's target must not stay in use."""
        llm = make_llm(HashModel(fail_on={2}))
        with pytest.raises(RuntimeError, match="the device was lost"):
            llm.generate([PROMPT], SamplingParams(n=3, max_tokens=5, ignore_eos=True))
        assert_empty(llm)
        outputs = llm.generate([PROMPT], SamplingParams(n=3, max_tokens=5, ignore_eos=True))[0].outputs
        assert [o.token_ids for o in outputs] == [greedy(PROMPT, 5, ignore_eos=True)] * 3


    def test_a_copy_that_was_planned_and_never_done(self, monkeypatch):
        """The step after the fork breaks off before the copies: the source must not be held for ever."""
        llm = make_llm()
        prepare, count = llm.engine.runner.prepare, iter(range(100))

        def breaks(output):
            if next(count) == 1:
                raise RuntimeError("no memory")
            return prepare(output)

        monkeypatch.setattr(llm.engine.runner, "prepare", breaks)
        with pytest.raises(RuntimeError, match="no memory"):
            llm.generate([PROMPT], SamplingParams(n=3, max_tokens=5, ignore_eos=True))
        assert_empty(llm)


def test_stats_count():
    llm = make_llm()
    llm.generate([PROMPT, [9]], SamplingParams(max_tokens=4, ignore_eos=True))
    stats = llm.stats
    assert stats.num_steps == 4
    assert stats.num_scheduled_tokens == 7 + 1 + 2 * 3
    assert stats.num_generated_tokens == 8
    assert stats.num_finished_requests == 2
    assert len(stats.history) == 4
    assert 0 < stats.overhead < 1
    assert stats.peak_usage == pytest.approx(4 / 64)
    assert any(line.startswith("memory saved") for line in stats.lines())
    stats.reset()
    assert (stats.num_steps, stats.num_blocks, len(stats.history)) == (0, 64, 0)
