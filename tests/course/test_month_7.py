"""Month 7's helpers: the sizes of a large model, a picture of ranks, and pools that tell their peak."""

import pytest

from minipaged.course.figures_month_7 import draw_ranks
from minipaged.course.month_7 import (
    CountingPool,
    llama_3_1_70b,
    one_after_the_other,
    peak_after,
    together_then_a_stranger,
    watched_burst,
)
from minipaged.kv_cache import BlockPool
from minipaged.model import load_model
from minipaged.parallel import ParallelLayout


class PeakPool(BlockPool):
    peak = 0

    def get_new_blocks(self, num_blocks):
        blocks = super().get_new_blocks(num_blocks)
        self.peak = max(self.peak, self.num_usable_blocks - self.num_free_blocks)
        return blocks


@pytest.mark.parametrize(("ranks", "kib"), [(1, 320), (2, 160), (4, 80), (8, 40), (16, 40)])
def test_bytes_of_a_token_of_llama_3_1_70b(ranks: int, kib: int) -> None:
    assert ParallelLayout(llama_3_1_70b(), ranks).kv_bytes_per_token(itemsize=2) == kib * 1024


def test_the_picture_names_every_rank_with_its_heads() -> None:
    model, _ = load_model("tiny")
    lines = draw_ranks(ParallelLayout(model.config, 4), [7, 1, 3]).text.splitlines()
    assert "physical blocks 7, 1, 3" in lines[1]
    assert lines[2:] == [
        "rank 0: query heads 0–1; of every block KV head 0",
        "rank 1: query heads 2–3; of every block KV head 0",
        "rank 2: query heads 4–5; of every block KV head 1",
        "rank 3: query heads 6–7; of every block KV head 1",
    ]


def test_a_count_of_ones_own_is_wrong_where_blocks_are_shared() -> None:
    stories = (one_after_the_other, together_then_a_stranger)
    assert [peak_after(CountingPool, story) for story in stories] == [2, 4]
    assert [peak_after(PeakPool, story) for story in stories] == [2, 6]


def test_a_gauge_misses_the_burst_between_two_looks() -> None:
    llm, seen = watched_burst(PeakPool)
    assert seen == [0.0, 0.0]
    assert llm.engine.manager.pool.peak == 24
    assert llm.stats.num_preemptions > 0
