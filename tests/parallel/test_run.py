"""`run_parallel`: what is refused before a process starts, parts of one's own, and what each rank reports."""

import pytest
import torch

from minipaged import BlockTable, SamplingParams
from minipaged.parallel import ParallelLayout, ParallelSizeError, RankError, generate_parallel, launch, run_parallel

PROMPT = "Four score and seven years ago our"


class MyBlockTable(BlockTable):
    """A part of one's own: only rank 0 has it."""


def tables(runner) -> tuple:
    manager = getattr(runner, "manager", None)
    return manager is None or manager.block_size, next(runner.model.parameters()).dtype


def test_reports_and_parts() -> None:
    run = run_parallel(
        PROMPT, SamplingParams(max_tokens=6), 2, attention="reference", num_blocks=8, start="fork",
        parts={"block_table": MyBlockTable}, look=tables, dtype=torch.bfloat16,
    )  # fmt: skip
    layout = ParallelLayout.of("tiny", 2)
    assert run.layout == layout
    assert run.outputs[0].outputs[0].text.startswith(" fathers brought forth")
    assert [report.look for report in run.ranks] == [(16, torch.bfloat16), (True, torch.bfloat16)]
    num_tokens = len(run.outputs[0].prompt_token_ids) + 5  # the last token is never fed
    for report in run.ranks:
        assert report.kv_cache_bytes == 8 * layout.kv_bytes_per_block(16, itemsize=2)
        assert report.num_steps == 6
        assert report.num_all_reduces == 6 * layout.all_reduces_per_step()
        assert report.num_all_reduce_bytes == layout.all_reduce_bytes_per_step(num_tokens, itemsize=2)


def test_refused_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_open_store", lambda: pytest.fail("a process was about to start"))
    with pytest.raises(
        ParallelSizeError, match=r"on 3 ranks: num_attention_heads = 8 is no multiple of 3\. It runs on"
    ):
        generate_parallel(PROMPT, num_ranks=3)
    with pytest.raises(TypeError, match="MyBlockTable lacks forward"):
        generate_parallel(PROMPT, parts={"tensor_parallel_attention": type("MyBlockTable", (Base,), {})})
    with pytest.raises(TypeError, match="give the class"):
        generate_parallel(PROMPT, parts={"tensor_parallel_attention": "tests.parallel"})


class Base:
    def __init__(self, attention, rank, num_ranks, all_reduce): ...


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        (PROMPT, {"num_blocks": 0}, "rank 0 of 2 raised ValueError: num_blocks is 0"),
        ([], {"max_num_seqs": 0}, "rank 0 of 2 raised ValueError: max_num_seqs"),
        ("", {}, "rank 0 of 2 raised ValueError: "),
    ],
)
def test_what_rank_0_refuses_ends_the_run(prompt: str, options: dict, words: str) -> None:
    with pytest.raises(RankError, match=words):
        generate_parallel(prompt, attention="reference", start="fork", **options)


class Raises(Base):
    def __init__(self, attention, rank, num_ranks, all_reduce):
        self.rank, self.all_reduce = rank, all_reduce

    def forward(self, hidden, cos, sin, k_cache, v_cache, metadata, backend):
        if self.rank == 1:
            raise IndexError("my own mistake")
        return self.all_reduce(hidden)


def test_a_learners_mistake_is_shown_with_its_line() -> None:
    with pytest.raises(RankError, match="rank 1 of 2 raised IndexError: my own mistake") as caught:
        generate_parallel(PROMPT, attention="reference", start="fork", parts={"tensor_parallel_attention": Raises})
    assert 'raise IndexError("my own mistake")' in caught.value.__notes__[0]
