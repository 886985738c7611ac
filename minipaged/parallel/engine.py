"""One engine, several ranks. Rank 0 schedules, keeps the pool and the block tables, and chooses the tokens.

What it decides goes to all ranks once a step: token ids, positions, block tables, slots, and the blocks to copy or
swap. A block id means the same on every rank: each has a part of every block, the keys and values of its own heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from minipaged.attention import AttentionBackend, AttentionMetadata, get_backend
from minipaged.attention.launch import cache_dtype
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.kv_cache.swap import SwapSpace
from minipaged.model.config import ModelConfig
from minipaged.model.decoder import LlamaModel
from minipaged.model.hub import checkpoint_folder
from minipaged.model.loader import load_tokenizer
from minipaged.parallel.group import RankGroup
from minipaged.parallel.layout import ParallelLayout
from minipaged.parallel.shard import load_shard
from minipaged.serving import LLM
from minipaged.serving.protocols import SchedulerOutput
from minipaged.serving.runner import ModelRunner

Result = TypeVar("Result")
Pairs = list[tuple[int, int]]


@dataclass
class Moves:
    """Blocks that move before the model runs: swapped out, copied, swapped in, in this order."""

    swap_out: Pairs = field(default_factory=list)
    copies: Pairs = field(default_factory=list)
    swap_in: Pairs = field(default_factory=list)

    def apply(self, storage: KVCacheStorage, swap_space: SwapSpace | None) -> None:
        """The same blocks move on every rank; each moves its own part of them."""
        if self.swap_out:
            swap_space.write_out(self.swap_out)
        if self.copies:
            storage.copy_blocks(self.copies)
        if self.swap_in:
            swap_space.read_in(self.swap_in)


class StepPlan(NamedTuple):
    """All that a rank must know of a step, as plain numbers."""

    moves: Moves
    token_ids: list[int]
    positions: list[int]
    block_tables: list[list[int]]
    seq_lens: list[int]
    query_lens: list[int]
    slot_mapping: list[int]

    @classmethod
    def of(cls, moves: Moves, token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata) -> StepPlan:
        tensors = (token_ids, positions, metadata.block_tables, metadata.seq_lens, metadata.query_lens)
        return cls(moves, *(tensor.tolist() for tensor in tensors), metadata.slot_mapping.tolist())

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor, AttentionMetadata]:
        tokens = torch.tensor([self.token_ids, self.positions], dtype=torch.int64).to(device)
        lists = (self.block_tables, self.seq_lens, self.query_lens, self.slot_mapping)
        return tokens[0], tokens[1], AttentionMetadata.build(*lists, device=device)


class CacheSizes(NamedTuple):
    """What rank 0 decided about the cache: the same numbers of blocks on every rank."""

    num_blocks: int
    block_size: int
    num_cpu_blocks: int | None  # None: no swap space
    num_disk_blocks: int
    swap_folder: str | Path | None


class LeadingRunner(ModelRunner):
    """Rank 0's runner: tells the other ranks what it is about to do, then does its own part of it."""

    def __init__(self, runner: ModelRunner, group: RankGroup) -> None:
        super().__init__(runner.model, runner.storage, runner.backend, runner.manager, runner.swap_space)
        self.group = group
        self._moves = Moves()
        self.num_steps = 0

    def move_blocks(self, output: SchedulerOutput) -> int:
        self._moves = Moves(output.swap_out, self.manager.take_copies(), output.swap_in)
        return len(self._moves.copies)

    def execute(self, token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, rows: Sequence[int]) -> Tensor:
        self.group.broadcast(StepPlan.of(self._moves, token_ids, positions, metadata))
        self.num_steps += 1
        try:
            self._moves.apply(self.storage, self.swap_space)
            return super().execute(token_ids, positions, metadata, rows)
        except BaseException as error:  # the others are in the middle of this step, and nobody can call them back
            self.group.fail(error)
            raise


class ParallelLLM(LLM):
    """The engine on rank 0 of a group. All other ranks follow it.

    Options as ``LLM``'s, without model, dtype, device and attention: these are the shard's. See ``serve``.
    """

    def __init__(self, group: RankGroup, shard: Shard, **options) -> None:
        self.group, self.layout = group, shard.layout
        tokenizer = load_tokenizer(shard.folder, shard.layout.config)
        super().__init__((shard.model, tokenizer), attention=shard.backend, **options)
        runner = self.engine.runner = LeadingRunner(self.engine.runner, group)
        swap, storage = runner.swap_space, runner.storage
        sizes = (swap.num_cpu_blocks, swap.num_disk_blocks, options.get("swap_folder")) if swap else (None, 0, None)
        group.broadcast(CacheSizes(storage.num_blocks, storage.block_size, *sizes))


@dataclass
class Shard:
    """What one rank loads: its part of the model, and the backend that reads its part of the cache."""

    folder: Path
    layout: ParallelLayout
    model: LlamaModel
    backend: AttentionBackend

    @classmethod
    def load(
        cls,
        group: RankGroup,
        model: str | Path = "tiny",
        *,
        dtype: torch.dtype = torch.float32,
        attention: str | AttentionBackend | type = "auto",
        own_attention: type | None = None,
    ) -> Shard:
        """This rank's part of a checkpoint. Raises ParallelSizeError before anything is loaded."""
        folder = checkpoint_folder(model)
        layout = ParallelLayout(ModelConfig.from_folder(folder), group.num_ranks)
        backend = get_backend(attention, device=group.device)
        part = load_shard(folder, layout, group.rank, group.all_reduce, dtype, group.device, own_attention)
        return cls(folder, layout, part, backend)


class Follower:
    """A rank that is told what to do. It has the same blocks as rank 0, and no scheduler, manager or sampler."""

    def __init__(self, group: RankGroup, shard: Shard, sizes: CacheSizes) -> None:
        self.group, self.model, self.backend = group, shard.model, shard.backend
        config = shard.model.config
        self.storage = KVCacheStorage(
            config.num_layers,
            sizes.num_blocks,
            sizes.block_size,
            config.num_kv_heads,
            config.head_dim,
            dtype=cache_dtype(shard.backend, shard.model.dtype),
            device=shard.model.device,
            copy_blocks=shard.backend.copy_blocks,
        )
        self.swap_space = None
        if sizes.num_cpu_blocks is not None:
            self.swap_space = SwapSpace(self.storage, sizes.num_cpu_blocks, sizes.num_disk_blocks, sizes.swap_folder)
        self.num_steps = 0

    def follow(self) -> None:
        """Take part in every step, until rank 0 says that there are no more."""
        while (plan := self.group.broadcast()) is not None:
            batch = plan.batch(self.storage.k_cache[0].device)
            with torch.inference_mode():
                plan.moves.apply(self.storage, self.swap_space)
                self.model.forward(*batch[:2], self.storage, batch[2], self.backend)
            self.num_steps += 1


def serve(
    group: RankGroup, shard: Shard, work: Callable[[Callable[..., ParallelLLM]], Result]
) -> tuple[Result | None, ModelRunner | Follower | None]:
    """Run one engine on all ranks; every rank calls this.

    Rank 0 runs ``work(make_llm)``, which may call ``make_llm(**options)`` once and use the engine; the others follow.
    Returns (what ``work`` returned, None on the other ranks; this rank's runner, None where no engine was made).
    """
    group.barrier()  # all have loaded their part: from now on nobody should keep the others waiting
    if group.rank > 0:
        sizes = group.broadcast()
        follower = Follower(group, shard, sizes) if sizes else None
        if follower:
            follower.follow()
        return None, follower
    made: list[ParallelLLM] = []

    def make_llm(**options) -> ParallelLLM:
        made.append(ParallelLLM(group, shard, **options))
        return made[0]

    result = work(make_llm)
    group.broadcast(None)  # in the place of a plan, or of the cache's sizes: there is nothing (more) to do
    return result, made[0].engine.runner if made else None
