"""Two ranks side by side in one process, for the exercises of Month 7: each is a thread with its own shards and cache.

What tensor parallelism asks of an attention layer can be seen without a second process: who holds which heads, and
where the ranks must meet. `minipaged.parallel` does the same with real processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.parallel.protocols import AllReduce, TensorParallelAttention

Result = TypeVar("Result")


class RankMissing(BaseException):
    """A rank waits in an all-reduce that another rank never enters. No Exception: the waiting rank did no wrong."""


class ThreadGroup:
    """Ranks that meet in `all_reduce`. `meetings` counts how often they met."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.num_ranks = num_ranks
        self.meetings = 0
        self._changed = threading.Condition()
        self._parts: dict[int, Tensor] = {}
        self._total: Tensor | None = None
        self._gone = num_ranks  # ranks that have ended; before `run` nobody is there to be met

    def all_reduce(self, rank: int) -> AllReduce:
        """The function for this rank: it returns the sum of all ranks' tensors, the same on every rank."""

        def meet(part: Tensor) -> Tensor:
            with self._changed:
                if self._gone == self.num_ranks:
                    raise RankMissing(f"rank {rank} calls all_reduce before the ranks run: in __init__")
                number = self.meetings
                self._parts[rank] = part
                if len(self._parts) == self.num_ranks:
                    parts = [self._parts[each] for each in range(self.num_ranks)]  # in order: equal to the last bit
                    self._total, self._parts = sum(parts[1:], start=parts[0]), {}
                    self.meetings += 1
                    self._changed.notify_all()
                while self.meetings == number:
                    if self._gone:
                        raise RankMissing(f"rank {rank} waits in an all-reduce that another rank never enters")
                    self._changed.wait()
                return self._total

        return meet

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """`work(rank)` on every rank at once; what each of them returned. Raises the first error of any rank. Only
        here can the ranks meet: outside of it, `all_reduce` raises RankMissing."""
        results: list[Any] = [None] * self.num_ranks
        errors: list[BaseException] = []
        inference = torch.is_inference_mode_enabled()  # a thread's own setting, as no_grad is
        self._gone, self._parts = 0, {}

        def on_rank(rank: int) -> None:
            try:
                with torch.inference_mode(inference), torch.no_grad():
                    results[rank] = work(rank)
            except BaseException as error:
                errors.append(error)
            finally:
                with self._changed:
                    self._gone += 1
                    self._changed.notify_all()

        threads = [threading.Thread(target=on_rank, args=(rank,), daemon=True) for rank in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((error for error in errors if not isinstance(error, RankMissing)), errors[0])
        return results


class TwoRankModel(nn.Module):
    """A model whose attention layers run on two ranks; everything else each rank computes for itself.

    To the engine it is a model like any other. One scheduler, one manager and one block table drive both ranks; each
    rank has a cache of its own, with its KV heads of every block. The engine's own storage stays empty.
    """

    def __init__(self, model, make: Callable[..., TensorParallelAttention]) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.group = ThreadGroup()
        self._ranks = [
            [make(layer.self_attn, rank, self.group.num_ranks, self.group.all_reduce(rank)) for layer in model.layers]
            for rank in range(self.group.num_ranks)
        ]
        self.storages: list[KVCacheStorage] = []
        self.differences = 0  # steps after which the ranks did not agree

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(self, token_ids: Tensor, positions: Tensor, storage: KVCacheStorage, metadata, backend) -> Tensor:
        if not self.storages:
            num_blocks, block_size = storage.k_cache[0].shape[:2]
            heads = self.config.num_kv_heads // self.group.num_ranks
            layers, dim = self.config.num_layers, self.config.head_dim
            self.storages = [
                KVCacheStorage(layers, num_blocks, block_size, heads, dim) for _ in range(self.group.num_ranks)
            ]
        first, *others = self.group.run(lambda rank: self._on_rank(rank, token_ids, positions, metadata, backend))
        self.differences += any(not torch.equal(first, other) for other in others)
        return first

    def _on_rank(self, rank: int, token_ids: Tensor, positions: Tensor, metadata, backend) -> Tensor:
        hidden = self.model.embed_tokens(token_ids)
        cos, sin = self.model.rope.lookup(positions)
        storage = self.storages[rank]
        for index, layer in enumerate(self.model.layers):
            caches = storage.k_cache[index], storage.v_cache[index]
            normed = layer.input_layernorm(hidden)
            hidden = hidden + self._ranks[rank][index].forward(normed, cos, sin, *caches, metadata, backend)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.model.norm(hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.model.compute_logits(hidden)
