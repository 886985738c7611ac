"""Parallel sampling and beam search over fork and free; the other way over the prefix cache."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.helpers import (
    BeamSearchParams,
    HashModel,
    SamplingParams,
    assert_empty,
    make_llm,
    naive_beam_search,
)

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def sampled(llm, **kwargs):
    params = SamplingParams(**({"n": 4, "temperature": 1.2, "seed": 1, "max_tokens": 9, "ignore_eos": True} | kwargs))
    return [o.token_ids for o in llm.generate(PROMPT, params)[0].outputs]


class TestParallelSampling:
    @pytest.mark.parametrize("sharing", ["fork", "prefix_cache"])
    @pytest.mark.parametrize("block_size", [1, 4, 5, 10, 16])
    def test_each_continuation_is_that_of_a_request_alone(self, sharing, block_size):
        llm = make_llm(block_size=block_size)
        together = sampled(llm, sharing=sharing)
        alone = [sampled(make_llm(), n=1, seed=1 + index)[0] for index in range(4)]
        assert together == alone
        assert len(set(map(tuple, together))) > 1
        assert_empty(llm)

    def test_fork_computes_the_prompt_once_and_copies_the_shared_last_block(self):
        llm = make_llm(HashModel())
        sampled(llm)
        # 10 prompt tokens once, then 8 decode steps for each of 4 sequences.
        assert llm.stats.num_scheduled_tokens == 10 + 4 * 8
        assert llm.stats.num_forks == 3
        assert llm.stats.num_copied_blocks == 3  # the fourth writer finds a count of 1 and writes in place
        assert llm.stats.peak_shared_blocks == 2

    def test_a_prompt_that_fills_its_blocks_is_never_copied(self):
        llm = make_llm(block_size=5)
        sampled(llm)
        assert llm.stats.num_copied_blocks == 0
        assert llm.stats.peak_shared_blocks == 2

    def test_memory_saved_is_what_separate_requests_would_use_more(self):
        llm = make_llm()
        sampled(llm)
        shared = sum(step.used_blocks for step in llm.stats.history)
        separate = make_llm(enable_prefix_caching=False)
        for index in range(4):
            separate.engine.add_request(
                PROMPT, SamplingParams(temperature=1.2, seed=1 + index, max_tokens=9, ignore_eos=True)
            )
        while separate.engine.has_unfinished_requests():
            separate.engine.step()
        alone = [step.used_blocks for step in separate.stats.history][1:]
        assert [step.logical_blocks for step in llm.stats.history][1:] == alone
        first = llm.stats.history[0].used_blocks  # before the fork there is one sequence
        assert llm.stats.memory_saved == pytest.approx(1 - shared / (sum(alone) + first))
        assert llm.stats.memory_saved > 0.3

    def test_prefix_cache_shares_full_blocks_only_and_copies_nothing(self):
        llm = make_llm()
        sampled(llm, sharing="prefix_cache")
        # The first computes 10 tokens; the other three hit 8 in two full blocks and compute 2 each.
        assert llm.stats.num_scheduled_tokens == 10 + 3 * 2 + 4 * 8
        assert (llm.stats.num_forks, llm.stats.num_copied_blocks) == (0, 0)
        assert llm.stats.peak_shared_blocks == 2

    def test_preempted_forks_come_back_with_the_same_text(self):
        wanted = sampled(make_llm())
        for preemption in ("recompute", "swap"):
            llm = make_llm(num_blocks=7, watermark=0.0, preemption=preemption)
            assert sampled(llm) == wanted
            assert llm.stats.num_preemptions > 0
            assert_empty(llm)

    def test_first_token_may_end_a_continuation(self):
        llm = make_llm()
        outputs = llm.generate(PROMPT, SamplingParams(n=3, max_tokens=1, temperature=1.0, seed=0))[0].outputs
        assert [len(o.token_ids) for o in outputs] == [1, 1, 1]
        assert_empty(llm)


BEAM = st.builds(
    BeamSearchParams,
    beam_width=st.integers(1, 5),
    max_tokens=st.integers(1, 8),
    length_penalty=st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]),
    early_stopping=st.booleans(),
    ignore_eos=st.booleans(),
)


class TestBeamSearch:
    @given(st.lists(st.integers(1, 12), min_size=1, max_size=9), BEAM, st.integers(1, 5))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_equal_to_a_search_without_sharing_score_for_score(self, prompt, params, block_size):
        llm = make_llm(block_size=block_size, num_blocks=100)
        found = [(o.token_ids, o.score) for o in llm.generate(prompt, params)[0].outputs]
        wanted = naive_beam_search(prompt, params)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
        assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-9)
        assert_empty(llm)

    @pytest.mark.parametrize("preemption", ["recompute", "swap"])
    def test_beams_wait_for_a_preempted_sibling(self, preemption):
        params = BeamSearchParams(beam_width=3, max_tokens=13, ignore_eos=True)
        llm = make_llm(num_blocks=12, watermark=0.0, preemption=preemption, trace=True)
        llm.engine.add_request([2] * 19, SamplingParams(max_tokens=20, ignore_eos=True), "old")
        llm.engine.step()
        llm.engine.add_request([1, 2, 3], params, "beam")
        outputs = {}
        while llm.engine.has_unfinished_requests():
            outputs |= {o.request_id: o for o in llm.engine.step()}
        assert [o.token_ids for o in outputs["beam"].outputs] == [t for t, _ in naive_beam_search([1, 2, 3], params)]
        out = [d for d in llm.engine.trace if d.action in ("preempt", "swap_out")]
        assert len(out) >= 1
        assert {d.request_id.split("/")[0] for d in out} == {"beam"}
        assert_empty(llm)

    def test_greedy_is_a_beam_of_one(self):
        llm = make_llm()
        one = llm.generate(PROMPT, BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True))[0].outputs[0]
        greedy = llm.generate(PROMPT, SamplingParams(max_tokens=6, ignore_eos=True, logprobs=0))[0].outputs[0]
        assert one.token_ids == greedy.token_ids
        assert one.cumulative_logprob == pytest.approx(greedy.cumulative_logprob, abs=1e-4)

    def test_sharing_saves_memory(self):
        llm = make_llm(block_size=2)
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=4, max_tokens=8, ignore_eos=True))
        assert llm.stats.memory_saved > 0.4
        assert llm.stats.num_copied_blocks > 0

    def test_aborted_before_any_hypothesis(self):
        llm = make_llm()
        llm.engine.add_request(PROMPT, BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True), "b", stream=True)
        seen = [llm.engine.step()[0] for _ in range(3)]
        assert [len(o.outputs) for o in seen] == [3, 3, 3]
        assert llm.engine.abort("b")
        assert_empty(llm)
