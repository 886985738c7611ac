"""The worker's side of a step: move blocks, flatten the batch, run the model. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minipaged.attention import AttentionBackend, AttentionMetadata
from minipaged.kv_cache import KVCacheManager
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.kv_cache.swap import SwapSpace
from minipaged.serving.protocols import SchedulerOutput
from minipaged.serving.request import Request

MANY_ROWS, WARM_CONTEXT = 32, 64  # a batch of which every thread has a part, and its context, in a warm-up


class ModelRunner:
    """Runs batches on one model with one KV cache."""

    def __init__(
        self,
        model,
        storage: KVCacheStorage,
        backend: AttentionBackend,
        manager: KVCacheManager,
        swap_space: SwapSpace | None = None,
    ) -> None:
        self.model, self.storage, self.backend = model, storage, backend
        self.manager, self.swap_space = manager, swap_space
        self.device = storage.k_cache[0].device

    def move_blocks(self, output: SchedulerOutput) -> int:
        """Swap out, copy, swap in: in this order, and before the model writes. Returns the number of copies.

        A block that is swapped out may be handed out again in the same step, so it is saved first. A copy may
        read a block whose owner gave it up, so it is done before a returning sequence fills that block.
        """
        if output.swap_out:
            self.swap_space.write_out(output.swap_out)
        copies = self.manager.take_copies()
        if copies:
            self.storage.copy_blocks(copies)
        if output.swap_in:
            self.swap_space.read_in(output.swap_in)
        return len(copies)

    def prepare(self, output: SchedulerOutput) -> tuple[Tensor, Tensor, AttentionMetadata]:
        """The step's batch without padding: token ids [T], positions [T], and where everything lies."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        tables, seq_lens, query_lens = [], [], []
        block_table = self.manager.block_table
        for request in output.scheduled:
            count = output.num_scheduled_tokens[request.request_id]
            start = request.num_computed_tokens
            stop = start + count
            if count < 1 or stop > request.num_tokens:
                raise ValueError(
                    f"the scheduler asks for {count} tokens of {request.request_id} from position {start}, but it has "
                    f"{request.num_tokens} tokens: schedule between 1 and {request.num_uncomputed_tokens}"
                )
            table = block_table(request.request_id)
            if count == 1:
                token_ids.append(request.token_ids[start])
                positions.append(start)
            else:
                token_ids += request.token_ids[start:stop]
                positions += range(start, stop)
            slots += table.slot_mapping(start, stop)
            tables.append([block.block_id for block in table.blocks])
            seq_lens.append(stop)
            query_lens.append(count)
        metadata = AttentionMetadata.build(tables, seq_lens, query_lens, slots, device=self.device)
        batch = torch.tensor([token_ids, positions], dtype=torch.int64).to(self.device)
        return batch[0], batch[1], metadata

    def execute(self, token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, rows: Sequence[int]) -> Tensor:
        """Run the model; logits fp32 [len(rows), vocab_size] of the given rows of the batch."""
        hidden = self.model.forward(token_ids, positions, self.storage, metadata, self.backend)
        if len(rows) != len(hidden):
            hidden = hidden[torch.tensor(rows, dtype=torch.int64, device=hidden.device)]
        logits = self.model.compute_logits(hidden)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)  # the sampler waits for them anyway; now the model's time is right
        return logits

    def warm_up(self) -> None:
        """Run the model on steps of the usual forms: the first one of each compiles kernels, for seconds.

        No request notices: nothing is written (all slots are −1), and the results are thrown away.
        """
        forms = [[1], [MANY_ROWS]]
        if hasattr(self.backend, "begin_step"):  # it has other kernels for many sequences
            forms.append([1] * MANY_ROWS)
        for query_lens in forms:
            table = [0] * -(-WARM_CONTEXT // self.storage.block_size)
            num_seqs, num_tokens = len(query_lens), sum(query_lens)
            metadata = AttentionMetadata.build(
                [table] * num_seqs, [WARM_CONTEXT] * num_seqs, query_lens, [-1] * num_tokens, device=self.device
            )
            zeros = torch.zeros(num_tokens, dtype=torch.int64, device=self.device)
            with torch.inference_mode():
                self.execute(zeros, zeros, metadata, range(num_tokens))

    @staticmethod
    def sampling_rows(output: SchedulerOutput) -> tuple[list[Request], list[int]]:
        """The requests that get a next token in this step, and the batch row of their newest token.

        A prompt that is computed in pieces gets none before its last piece.
        """
        requests, rows, end = [], [], 0
        for request in output.scheduled:
            count = output.num_scheduled_tokens[request.request_id]
            end += count
            if request.num_computed_tokens + count == request.num_tokens:
                requests.append(request)
                rows.append(end - 1)
        return requests, rows
