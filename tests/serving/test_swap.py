"""Swap: all blocks of a sequence go to a lower tier and come back under other ids, with the same content."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kv_cache import IntegrityError
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.kv_cache.swap import SwapSpace
from tests.serving.helpers import ContentOfTheCache, SamplingParams, assert_empty, greedy, make_llm, tokens_of


def storage_with_content(num_blocks=6, dtype=torch.float32) -> KVCacheStorage:
    storage = KVCacheStorage(2, num_blocks, 4, 1, 2, dtype=dtype)
    for layer in range(2):
        storage.k_cache[layer].copy_(torch.randn(storage.k_cache[layer].shape))
        storage.v_cache[layer].copy_(torch.randn(storage.v_cache[layer].shape))
    return storage


def content(storage, block_id):
    return torch.stack([cache[block_id].clone() for cache in (*storage.k_cache, *storage.v_cache)])


class TestSwapSpace:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_out_and_in_over_both_tiers(self, dtype):
        storage = storage_with_content(dtype=dtype)
        space = SwapSpace(storage, num_cpu_blocks=2, num_disk_blocks=2)
        wanted = [content(storage, block_id) for block_id in (4, 0, 2)]
        slots = space.reserve("a", 3)
        assert slots == [0, 1, 2]  # two in host memory, one in the file
        space.write_out(list(zip((4, 0, 2), slots, strict=True)))
        for cache in (*storage.k_cache, *storage.v_cache):
            cache.fill_(float("nan"))
        space.read_in(list(zip(slots, (1, 5, 3), strict=True)))
        for block_id, expected in zip((1, 5, 3), wanted, strict=True):
            assert torch.equal(content(storage, block_id), expected)
        assert content(storage, 0).isnan().all()
        space.close()

    def test_all_or_nothing(self):
        space = SwapSpace(storage_with_content(), num_cpu_blocks=3, num_disk_blocks=1)
        assert space.reserve("a", 3) == [0, 1, 2]
        assert space.reserve("b", 2) is None
        assert space.num_free_blocks == 1
        assert space.reserve("b", 1) == [3]
        space.release("a")
        space.release("unknown")
        assert space.slots("a") == []
        assert space.reserve("c", 2) == [0, 1]  # host memory before the file again
        space.check_integrity()
        with pytest.raises(ValueError, match="'c' already has blocks in the swap space"):
            space.reserve("c", 1)
        space.close()

    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=40))
    @settings(deadline=None, derandomize=True)
    def test_every_slot_has_one_owner(self, actions):
        space = SwapSpace(storage_with_content(), num_cpu_blocks=8)
        held = {}
        for name, count in actions:
            if name in held:
                space.release(str(name))
                del held[name]
            else:
                slots = space.reserve(str(name), count)
                free = 8 - sum(map(len, held.values()))
                assert (slots is None) == (count > free)
                if slots is not None:
                    held[name] = slots
            space.check_integrity()
            assert all(space.slots(str(name)) == slots for name, slots in held.items())

    def test_integrity_names_the_slot(self):
        space = SwapSpace(storage_with_content(), num_cpu_blocks=3)
        space._free.append(1)
        with pytest.raises(IntegrityError, match="swap slot 1"):
            space.check_integrity()

    def test_file_has_the_size_of_its_limit_and_goes_with_its_owner(self, tmp_path):
        space = SwapSpace(storage_with_content(), 0, num_disk_blocks=5, folder=tmp_path)
        (file,) = tmp_path.iterdir()
        assert file == space.file
        assert file.stat().st_size == 5 * space.block_bytes == 5 * 2 * 2 * 4 * 1 * 2 * 4
        del space
        gc.collect()
        assert list(tmp_path.iterdir()) == []

    def test_file_is_deleted_when_python_exits(self, tmp_path):
        code = (
            "import sys; from minipaged.kv_cache.storage import KVCacheStorage as K; "
            "from minipaged.kv_cache.swap import SwapSpace; from pathlib import Path; "
            "s = SwapSpace(K(1, 2, 4, 1, 2), 0, 3, sys.argv[1]); print(len(list(Path(sys.argv[1]).iterdir())))"
        )
        result = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
        )
        assert result.stdout.strip() == "1"
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("sizes", [(-1, 0), (1.5, 0), (True, 0), (0, -2)])
    def test_refuses(self, sizes):
        with pytest.raises(ValueError, match=r"num_(cpu|disk)_blocks is"):
            SwapSpace(storage_with_content(), *sizes)


PROMPTS = [[1 + i % 4, 2, 3, 4, 5 + i % 7, 6, 7] for i in range(8)]
LONG = SamplingParams(max_tokens=14, ignore_eos=True)
WANTED = [greedy(prompt, 14, ignore_eos=True) for prompt in PROMPTS]


class TestPreemptionBySwap:
    @pytest.mark.parametrize("caching", [True, False])
    @pytest.mark.parametrize("tiers", [(40, 0), (0, 40), (5, 40)])
    def test_same_text(self, caching, tiers):
        cpu, disk = tiers
        llm = make_llm(
            num_blocks=9,
            watermark=0.0,
            preemption="swap",
            num_cpu_blocks=cpu,
            num_disk_blocks=disk,
            enable_prefix_caching=caching,
        )
        assert tokens_of(llm.generate(PROMPTS, LONG)) == WANTED
        assert llm.stats.num_swapped_in_blocks == llm.stats.num_swapped_out_blocks > 0
        assert llm.stats.num_swap_fallbacks == 0
        assert_empty(llm)
        # Nothing stale is left in the prefix cache either.
        assert tokens_of(llm.generate(PROMPTS, LONG)) == WANTED

    def test_nothing_is_computed_twice(self):
        llm = make_llm(num_blocks=9, watermark=0.0, preemption="swap")
        llm.generate(PROMPTS, LONG)
        computed = llm.engine.runner.model.num_tokens + llm.stats.prefix_hit_tokens
        assert computed == sum(len(prompt) + 13 for prompt in PROMPTS)
        again = make_llm(num_blocks=9, watermark=0.0, preemption="recompute", enable_prefix_caching=False)
        again.generate(PROMPTS, LONG)
        assert again.engine.runner.model.num_tokens > computed

    def test_full_tiers_fall_back_to_recompute_and_say_so(self):
        llm = make_llm(num_blocks=9, watermark=0.0, preemption="swap", num_cpu_blocks=2)
        assert tokens_of(llm.generate(PROMPTS, LONG)) == WANTED
        assert llm.stats.num_swap_fallbacks > 0
        assert any("no room: computed again" in line for line in llm.stats.lines())
        assert_empty(llm)

    def test_new_ids_and_a_trace(self):
        llm = make_llm(num_blocks=8, watermark=0.0, preemption="swap", trace=True, enable_prefix_caching=False)
        tables = {}
        schedule, block_ids = llm.engine.scheduler.schedule, llm.engine.manager.block_ids

        def watched():
            output = schedule()
            for request in output.swapped_in:
                tables[request.request_id] = (tables[request.request_id], block_ids(request.request_id))
            for request in output.scheduled:
                if request not in output.swapped_in:
                    tables[request.request_id] = block_ids(request.request_id)
            return output

        llm.engine.scheduler.schedule = watched
        for prompt in PROMPTS[:3]:
            llm.engine.add_request(prompt, LONG)
        while llm.engine.has_unfinished_requests():
            llm.engine.step()
            moved = [pair for pair in tables.values() if isinstance(pair, tuple)]
            if moved:
                break
        before, after = moved[0]
        assert before != after[: len(before)]
        actions = [d.action for d in llm.engine.trace]
        assert actions.index("swap_out") < actions.index("swap_in")

    def test_abort_while_swapped_out(self):
        llm = make_llm(num_blocks=9, watermark=0.0, preemption="swap")
        ids = [llm.engine.add_request(prompt, LONG) for prompt in PROMPTS]
        space = llm.engine.runner.swap_space
        while space.num_free_blocks == space.num_blocks:
            llm.engine.step()
        for request_id in ids:
            llm.engine.abort(request_id)
        assert_empty(llm)

    @pytest.mark.parametrize("where", ["read_in", "schedule"])
    def test_a_return_that_fails_leaves_no_stale_hash(self, where):
        """A returning sequence's blocks are named again before their content is back."""
        llm = make_llm(num_blocks=9, watermark=0.0, preemption="swap")
        scheduler, space, content = llm.engine.scheduler, llm.engine.runner.swap_space, ContentOfTheCache(llm)

        def lost(*args):
            raise OSError("the disk was lost")

        if where == "read_in":
            space.read_in = lost
        else:
            swap_in = scheduler._swap_in
            scheduler._swap_in = lambda request, output: (swap_in(request, output), lost())
        with pytest.raises(OSError, match="the disk was lost"):
            llm.generate(PROMPTS, LONG)
        assert_empty(llm)
        content.check()
