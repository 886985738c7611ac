"""What Month 2's lessons and exercises stand on: the bug hunt finds its bugs, Figure 9 comes out, swap restores."""

import contextlib
import io

import pytest
import torch

from minipaged.course import plug_in_month_2 as plug_in
from minipaged.course.driver import Driver
from minipaged.course.errors import CourseError
from minipaged.course.faulty_tables import BUGS, Worker, faulty_line, hunt, listing, scenario
from minipaged.course.month_2 import Figure9, block_size_price, copies_after_fork, move_blocks, swap_out_and_in
from minipaged.kv_cache import CacheRequest, IntegrityError, KVCacheManager
from minipaged.kv_cache.swap import SwapSpace
from minipaged.model import load_model
from minipaged.serving import LLMEngine


def test_the_scenario_has_no_bug_of_its_own():
    assert len(scenario(Worker())) == 8


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_is_found_and_its_line_is_in_the_listing(bug):
    with pytest.raises(IntegrityError) as found:
        scenario(BUGS[bug][0]())
    assert "at the move" in found.value.__notes__[0]
    line = faulty_line(bug)
    assert [n for n, text in enumerate(listing(bug), start=1) if BUGS[bug][2] in text] == [line]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        hunt(bug)
    assert f"{line:2}  {listing(bug)[line - 1]}" in out.getvalue()
    assert str(found.value) in out.getvalue()


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_a_fork_copies_a_partly_filled_block_for_each_sample_but_the_last(samples, size):
    for tokens in range(1, 3 * size + 2):
        assert copies_after_fork(tokens, samples, size) == (samples - 1 if tokens % size else 0)


def test_moved_blocks_are_found_by_the_tables_that_follow():
    driver = Driver(load_model("tiny")[0], KVCacheManager(num_blocks=5, block_size=2, free_order=[4, 2, 1]))
    driver.step(CacheRequest("long", [1, 2, 3]), CacheRequest("short", [4]))
    before = [cache.clone() for cache in driver.storage.k_cache]
    move_blocks(driver, [3, 0, 4, 1, 2])
    assert driver.metadata.block_tables.tolist() == [[2, 4], [0, -1]]
    for old, new in zip(before, driver.storage.k_cache, strict=True):
        assert torch.equal(old[[4, 2, 1]], new[[2, 4, 0]])


def test_an_unknown_bug_is_named():
    with pytest.raises(CourseError, match="there is no bug 'E'; the bugs are A, B, C, D"):
        hunt("E")


def test_figure_9_comes_out():
    beams = Figure9()
    assert beams.tables == [[0, 1, 3, 5], [0, 1, 3, 6], [0, 1, 3, 7], [0, 2, 4, 8]]
    assert beams.step([1, 1, 2, 2]) == {2, 4, 5, 8}
    counts = [block.ref_cnt for block in beams.manager.pool.blocks]
    assert counts == [4, 4, 0, 4, 0, 0, 2, 2, 0, 0, 0, 0, 0]
    beams.grow()
    beams.manager.check_integrity()
    assert len({table[-1] for table in beams.tables}) == 4


def test_swap_by_hand_restores_the_cache_under_other_numbers():
    model = load_model("tiny")[0]
    driver = Driver(model, KVCacheManager(9, 4, enable_caching=False))
    request, newcomer = CacheRequest("A", list(range(10, 19))), CacheRequest("B", list(range(40, 45)))
    driver.greedy(request)
    space = SwapSpace(driver.storage, num_cpu_blocks=3)
    old, new = swap_out_and_in(driver, request, space, newcomer)
    assert old != new
    assert space.num_free_blocks == 3
    want = model.forward_dense(torch.tensor(request.token_ids))[-1]
    torch.testing.assert_close(driver.step(request)[0], want, rtol=1e-4, atol=1e-4)
    driver.manager.check_integrity()


@pytest.mark.parametrize(("length", "size", "entries", "empty"), [(7, 4, 2, 1), (8, 4, 2, 0), (200, 16, 13, 8)])
def test_the_price_of_a_block_size(length, size, entries, empty):
    price = block_size_price([length], size)
    assert price.entries == entries
    assert price.waste == pytest.approx(empty / (entries * size))


def test_the_storm_really_aborts_preempts_and_shares(monkeypatch):
    made, aborted, make, abort = [], [], plug_in.make_llm, LLMEngine.abort
    monkeypatch.setattr(plug_in, "make_llm", lambda *args, **kw: made.append(make(*args, **kw)) or made[-1])
    monkeypatch.setattr(LLMEngine, "abort", lambda *args: aborted.append(abort(*args)))
    assert all(free + in_use == total for free, in_use, total in plug_in.storm(None))
    plug_in.texts(None)
    storm, texts = (llm.stats for llm in made)
    assert sum(aborted) >= 30
    assert storm.num_preemptions + texts.num_preemptions >= 3
    assert storm.num_forks >= 10
    assert texts.num_copied_blocks >= 2
