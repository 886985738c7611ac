"""The engine on several ranks, from Python: what it generates, and what each rank held and exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from minipaged.attention import get_backend
from minipaged.model.hub import checkpoint_folder
from minipaged.model.loader import check_dtype, load_tokenizer
from minipaged.parallel.engine import Shard, serve
from minipaged.parallel.group import PATIENCE, RankGroup, check_device
from minipaged.parallel.launch import run_ranks
from minipaged.parallel.layout import ParallelLayout
from minipaged.parallel.protocols import OWN_ATTENTION, check_own_attention
from minipaged.serving import LLM, RequestOutput


@dataclass(frozen=True)
class RankReport:
    """What one rank held, and what it brought to the all-reduces.

    kv_cache_bytes   its part of all blocks
    weight_bytes     its part of the model
    look             what the `look` function returned on this rank
    """

    rank: int
    heads: range
    kv_heads: range
    num_blocks: int
    kv_cache_bytes: int
    weight_bytes: int
    num_steps: int
    num_all_reduces: int
    num_all_reduce_bytes: int
    look: Any = None


@dataclass(frozen=True)
class ParallelRun:
    """The outputs of a run on several ranks, and a report of each rank."""

    outputs: list[RequestOutput]
    layout: ParallelLayout
    ranks: list[RankReport] = field(repr=False)
    stats: Any = field(default=None, repr=False)


def generate_parallel(
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    params: Any = None,
    num_ranks: int = 2,
    model: str | Path = "tiny",
    **options: Any,
) -> list[RequestOutput]:
    """`LLM(model, **options).generate(prompts, params)`, computed by so many ranks. Options: see `run_parallel`."""
    return run_parallel(prompts, params, num_ranks, model, **options).outputs


def run_parallel(
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    params: Any = None,
    num_ranks: int = 2,
    model: str | Path = "tiny",
    *,
    look: Callable[[Any], Any] | None = None,
    attention: str | type = "auto",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    patience: float = PATIENCE,
    timeout: float | None = None,
    start: str = "spawn",
    parts: dict[str, Any] | None = None,
    **options: Any,
) -> ParallelRun:
    """Start so many ranks, generate, end them.

    Args:
        look: called on every rank at the end with its runner (`.storage`, `.model`, `.num_steps`; on rank 0 also
            `.manager`); what it returns is in the rank's report.
        parts: as LLM's, and "tensor_parallel_attention": a class with the protocol TensorParallelAttention. Classes may
            come from a notebook cell. They are made once in this process, too, where everything is checked first.
        options: LLM's others: num_blocks, block_size, preemption, …

    Raises ParallelSizeError, or what LLM and its generate raise for another setting, a part or a prompt, before any
    process starts; RankError, which names the rank, when one fails.
    """
    layout = ParallelLayout.of(model, num_ranks)
    parts = dict(parts or {})
    if OWN_ATTENTION in parts:
        check_own_attention(parts[OWN_ATTENTION])
    check_dtype(dtype)
    load = {
        "attention": parts.pop("attention", attention),
        "dtype": dtype,
        "own_attention": parts.pop(OWN_ATTENTION, None),
    }
    check_device(device, num_ranks - 1)
    rank_0 = engine_without_memory(layout, model, device, load["attention"], dtype, parts=parts, **options)
    rank_0.validate_prompts(prompts, params)
    work = (str(checkpoint_folder(model)), prompts, params, load, options, parts, look)
    ranks = {"device": device, "patience": patience, "timeout": timeout, "start": start}
    answers = run_ranks(generate_on_rank, num_ranks, *work, **ranks)
    outputs, stats = answers[0][0]
    return ParallelRun(outputs, layout, [report for _, report in answers], stats)


def engine_without_memory(
    layout: ParallelLayout, model: str | Path, device: str, attention: Any, dtype: torch.dtype, **options: Any
) -> LLM:
    """The engine that rank 0 will have, of sizes only: no weights, and a cache on torch's device "meta".

    To make it costs nothing, and it refuses what rank 0 would refuse many seconds later, in the same words.
    """
    sizes = SimpleNamespace(config=layout.config_of_a_rank(), dtype=dtype, device=torch.device("meta"))
    tokenizer = load_tokenizer(checkpoint_folder(model), layout.config)
    return LLM((sizes, tokenizer), attention=get_backend(attention, device), **options)


def generate_on_rank(
    group: RankGroup, model: str, prompts: Any, params: Any, load: dict, options: dict, parts: dict, look: Any
) -> tuple[Any, RankReport]:
    """One rank's part of `run_parallel`: (outputs and stats on rank 0, else None; its report)."""
    shard = Shard.load(group, model, **load)

    def work(make_llm: Callable) -> tuple[list[RequestOutput], Any]:
        llm = make_llm(parts=parts, **options)
        outputs = llm.generate(prompts, params)
        llm.engine.check_integrity()
        return outputs, llm.stats

    result, runner = serve(group, shard, work)
    layout, rank = shard.layout, group.rank
    report = RankReport(
        rank=rank,
        heads=layout.heads(rank),
        kv_heads=layout.kv_heads(rank),
        num_blocks=runner.storage.num_blocks,
        kv_cache_bytes=runner.storage.num_bytes,
        weight_bytes=sum(weight.nbytes for weight in shard.model.parameters()),
        num_steps=runner.num_steps,
        num_all_reduces=group.num_all_reduces,
        num_all_reduce_bytes=group.num_all_reduce_bytes,
        look=look(runner) if look else None,
    )
    return result, report
