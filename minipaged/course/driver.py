"""An engine small enough for a lesson: manager, storage and model, one visible step at a time, no scheduler.

The lessons of Months 0 and 2 drive the real parts by hand with it; Month 5 replaces it by the real engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minipaged.attention import AttentionBackend, AttentionMetadata, ReferenceBackend
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.kv_cache.storage import KVCacheStorage


class Driver:
    """Runs requests over one paged cache: slots from the manager, K and V into the storage, logits out.

    Args:
        model: a `LlamaModel`.
        manager: its blocks are the storage's blocks.
        backend: how attention is computed; plain torch by default.

    Attributes:
        storage: the tensors.
        metadata: the last step's `AttentionMetadata`; None before the first step.
        positions: {request id: positions whose K and V the last step wrote}.
    """

    def __init__(self, model, manager: KVCacheManager, backend: AttentionBackend | None = None) -> None:
        config = model.config
        self.model, self.manager, self.backend = model, manager, backend or ReferenceBackend()
        self.storage = KVCacheStorage(
            config.num_layers, manager.pool.num_blocks, manager.block_size, config.num_kv_heads, config.head_dim
        )
        self.metadata: AttentionMetadata | None = None
        self.positions: dict[str, range] = {}
        self._batch: list[Tensor] = []  # token ids and positions of the last step

    def step(self, *requests: CacheRequest) -> Tensor:
        """Compute all tokens of these requests that are not computed yet, in one flat batch without padding.

        A new request brings its whole prompt, a running one its newest token. Returns the logits of each request's
        last token: [number of requests, vocabulary]. Raises RuntimeError when the pool is short of blocks.
        """
        for request in requests:
            waiting = request.num_tokens - request.num_computed_tokens
            if self.manager.allocate_slots(request, waiting) is None:
                raise RuntimeError(
                    f"request {request.request_id!r} needs slots for {waiting} more tokens, but only "
                    f"{self.manager.num_free_blocks} of {self.manager.num_usable_blocks} blocks are free; "
                    "free a request, or make the pool larger"
                )
        self.storage.copy_blocks(self.manager.take_copies())
        self.positions = {r.request_id: range(r.num_computed_tokens, r.num_tokens) for r in requests}
        self.metadata = self._metadata(requests)
        self._batch = [
            torch.tensor([r.token_ids[p] for r in requests for p in self.positions[r.request_id]]),
            torch.tensor([p for r in requests for p in self.positions[r.request_id]]),
        ]
        logits = self.logits_of_the_last_batch()
        for request in requests:
            request.num_computed_tokens = request.num_tokens
        return logits

    def logits_of_the_last_batch(self) -> Tensor:
        """Run the last step's batch once more, as `metadata` now stands: for experiments with wrong tables."""
        hidden = self.model.forward(*self._batch, self.storage, self.metadata, self.backend)
        return self.model.compute_logits(hidden[self.metadata.query_start_loc[1:].long() - 1])

    def _metadata(self, requests: Sequence[CacheRequest]) -> AttentionMetadata:
        tables = [self.manager.block_table(r.request_id) for r in requests]
        new = [self.positions[r.request_id] for r in requests]
        slots = [s for table, p in zip(tables, new, strict=True) for s in table.slot_mapping(p.start, p.stop)]
        return AttentionMetadata.build(
            [self.manager.block_ids(r.request_id) for r in requests],
            [r.num_tokens for r in requests],
            [len(p) for p in new],
            slots,
        )

    def greedy(self, *requests: CacheRequest) -> list[int]:
        """One step, then the most likely next token is appended to each request. Returns these tokens."""
        tokens = self.step(*requests).argmax(dim=-1).tolist()
        for request, token in zip(requests, tokens, strict=True):
            request.append_token(token)
        return tokens
