"""The options that every command with an engine has: `minipaged generate`, `minipaged serve`, and the ranks'."""

from __future__ import annotations

import argparse

from minipaged.attention.launch import BACKENDS

DTYPES = ("float32", "bfloat16", "float16")
"""Names of torch's types, as text: torch itself is imported only after the command line was read."""


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    """The pool, the prefix cache, and what happens when blocks are short."""
    add = parser.add_argument_group("the cache and its reader").add_argument
    add("--attention", default="auto", help=f"attention backend: {', '.join(BACKENDS)}")
    add("--device", default="cpu", help='"cpu" or "cuda"')
    of_dtype = "type of weights and KV cache (default float32, which the cache of --attention cpu always has)"
    add("--dtype", choices=DTYPES, default="float32", help=of_dtype)
    add("--num-blocks", type=int, help="physical blocks in the pool (default: what the model makes sensible)")
    add("--block-size", type=int, default=16, help="tokens a block (default 16)")
    no_caching = ("--no-prefix-caching", "--no-enable-prefix-caching")  # the second is vLLM's name
    add(*no_caching, action="store_true", help="do not reuse the KV of equal prefixes")
    add("--preemption", choices=["recompute", "swap"], default="recompute", help="when blocks are short")
    add("--num-cpu-blocks", type=int, help="swap: blocks in host memory (default: as many as in the pool)")
    add("--num-disk-blocks", type=int, default=0, help="swap: blocks in a file, used when host memory is full")


def add_batch_options(group: argparse._ArgumentGroup) -> None:
    """What a step may hold."""
    add = group.add_argument
    add("--max-num-seqs", type=int, default=256, help="sequences that run at a time")
    add("--max-num-batched-tokens", type=int, default=2048, help="token budget of a step")
    no_chunks = ("--no-chunked-prefill", "--no-enable-chunked-prefill")
    add(*no_chunks, action="store_true", help="compute every prompt in one piece")
