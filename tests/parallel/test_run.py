"""`run_parallel`: what is refused before a process starts, parts of one's own, and what each rank reports."""

import pytest
import torch

from minipaged import LLM, BlockTable, SamplingParams
from minipaged.parallel import ParallelLayout, ParallelSizeError, RankError, generate_parallel, launch, run_parallel
from minipaged.parallel.run import engine_without_memory

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


TOO_LONG = "The lamp " * 20


@pytest.mark.parametrize(
    ("prompts", "params", "options"),
    [
        ("", {}, {}),
        ([PROMPT, ""], {}, {}),
        (7, {}, {}),
        ([[1, 2, 100_000]], {}, {}),
        (TOO_LONG, {}, {"num_blocks": 2}),
        (PROMPT, {"max_tokens": 100_000}, {}),
        (PROMPT, {"stop_token_ids": [100_000]}, {}),
        (PROMPT, {"n": 9}, {"max_num_seqs": 4}),
        (PROMPT, {}, {"attention": "flash"}),
        (PROMPT, {}, {"num_blocks": 0}),
        (PROMPT, {}, {"max_num_seqs": 0}),
        (PROMPT, {}, {"num_block": 8}),
        (PROMPT, {}, {"preemption": "swap", "num_disk_blocks": -1}),
        (PROMPT, {}, {"parts": {"block_table": 16}}),
        (PROMPT, {}, {"parts": {"table": BlockTable}}),
    ],
)
def test_what_the_engine_refuses_is_refused_in_its_words_before_a_process_starts(
    prompts: object, params: dict, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"attention": "reference"} | options
    with pytest.raises((TypeError, ValueError)) as alone:
        LLM("tiny", **options).generate(prompts, SamplingParams(**params))
    monkeypatch.setattr(launch, "_open_store", lambda: pytest.fail("a process was about to start"))
    with pytest.raises(alone.type) as caught:
        generate_parallel(prompts, SamplingParams(**params), **options)
    assert str(caught.value) == str(alone.value)
    assert getattr(caught.value, "__notes__", []) == getattr(alone.value, "__notes__", [])


def test_parameters_of_another_type_are_refused_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_open_store", lambda: pytest.fail("a process was about to start"))
    with pytest.raises(TypeError, match="params is a dict; give SamplingParams or BeamSearchParams"):
        generate_parallel(PROMPT, {"temperature": 0.5}, attention="reference")
    with pytest.raises(ValueError, match="2 params for 1 prompts; give one for all"):
        generate_parallel(PROMPT, [SamplingParams()] * 2, attention="reference")


def test_the_engine_without_memory_has_the_sizes_of_rank_0() -> None:
    """What is refused depends on the number of blocks: it must be that of the real one, also where it is a default."""
    run = run_parallel(PROMPT, SamplingParams(max_tokens=1), 2, attention="reference", start="fork")
    llm = engine_without_memory(run.layout, "tiny", "cpu", "reference", torch.float32)
    storage = llm.engine.runner.storage
    assert (storage.num_blocks, storage.num_bytes) == (run.ranks[0].num_blocks, run.ranks[0].kv_cache_bytes)
    assert storage.k_cache[0].is_meta


def fails_on_rank_0(runner) -> None:
    if hasattr(runner, "manager"):
        raise LookupError("nothing to look at")


def test_an_error_on_rank_0_ends_the_run() -> None:
    with pytest.raises(RankError, match="rank 0 of 2 raised LookupError: nothing to look at"):
        generate_parallel(PROMPT, attention="reference", start="fork", look=fails_on_rank_0)


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
