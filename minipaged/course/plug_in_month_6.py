"""What exercise 6.10 does with a learner's kernel: the engine generates text with it, each call under the referee."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from minipaged.attention import AttentionMetadata, ReferenceBackend
from minipaged.attention.judge import fenced
from minipaged.course.expect import Expect
from minipaged.course.kernel_runs import launch, unwritten
from minipaged.model import load_model
from minipaged.serving import LLM, SamplingParams

PROMPTS = ("A page is", "The operating system maps a page")
BLOCK_SIZE = 8
HINTS = {
    "unwritten v_cache": "0 · NaN is NaN: a weight of 0 does not hide an unwritten value. Mask the load of V.",
    "unwritten k_cache": "The positions 0 … seq_len − 1 hold a token, no others: mask the load of K by that.",
    "outside load": "The entries behind a sequence's last block are −1, and a lane behind seq_len has no entry: mask "
    "the load of the table, with other=0.",
    "twice": "One program a (sequence, KV head), and it stores the GROUP heads of that KV head.",
}


@functools.cache
def _tiny():
    return load_model("tiny")


class PluggedIn(ReferenceBackend):
    """An attention backend that attends with a learner's decode kernel.

    A prefill is a batch of decodes too: query token t of a sequence is one row, with a context of its own length and
    its sequence's table. So the kernel computes all there is to attend to.
    """

    name = "my_paged_decode_kernel"

    def __init__(self, kernel, expect: Expect) -> None:
        super().__init__()
        self.kernel, self.expect = kernel, expect

    def attend(
        self, query: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
    ) -> Tensor:
        seqs = metadata.seq_of_token().long()
        ends = metadata.query_start_loc[1:][seqs]
        lengths = metadata.seq_lens[seqs] - (ends - 1 - torch.arange(len(seqs), dtype=torch.int32))
        num_tokens, num_heads, head_dim = query.shape
        _, block_size, num_kv_heads, _ = k_cache.shape
        out, tables = unwritten(*query.shape), fenced(metadata.block_tables[seqs])
        stride_block, stride_slot, stride_head, _ = k_cache.stride()
        arguments = {
            "out": out, "query": fenced(query), "k_cache": k_cache, "v_cache": v_cache, "block_tables": tables,
            "seq_lens": fenced(lengths.int()), "scale": scale, "num_heads": num_heads, "stride_block": stride_block,
            "stride_slot": stride_slot, "stride_head": stride_head, "tables_stride": tables.stride(0),
            "GROUP": num_heads // num_kv_heads, "BLOCK_SIZE": block_size, "D": head_dim,
        }  # fmt: skip
        written = ~k_cache.isnan().any(dim=-1).any(dim=-1)
        launch(
            self.expect, self.kernel, (num_tokens, num_kv_heads), arguments, case="in the engine", hints=HINTS,
            written={"k_cache": written, "v_cache": written, "out": False},
        )  # fmt: skip
        return out


def texts(backend: str | PluggedIn) -> list[str]:
    """What the engine says to PROMPTS. The cache is poisoned before the start: NaN in every slot nobody has written."""
    own = {} if isinstance(backend, str) else {"attention": backend}
    attention = backend if isinstance(backend, str) else "auto"
    llm = LLM(_tiny(), num_blocks=16, block_size=BLOCK_SIZE, attention=attention, parts=own)
    storage = llm.engine.runner.storage
    for cache in (*storage.k_cache, *storage.v_cache):
        cache.fill_(float("nan"))
    outputs: Sequence = llm.generate(list(PROMPTS), SamplingParams(max_tokens=5))
    return [output.outputs[0].text for output in outputs]


@functools.cache
def reference_texts() -> list[str]:
    return texts("reference")
