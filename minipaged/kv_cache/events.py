"""What a router needs to know to send a request where its prefix lies: blocks stored, removed, all cleared.

Source: vLLM 0.32, vllm/distributed/kv_events.py (BlockStored, BlockRemoved, AllBlocksCleared). As there, duplicates
are reported one by one: a content is gone when it was removed as often as it was stored.
"""

from typing import NamedTuple


class BlockStored(NamedTuple):
    """Full blocks of one request became findable, one hash each, in logical order."""

    block_hashes: tuple[bytes, ...]
    parent_hash: bytes | None
    token_ids: tuple[int, ...]
    block_size: int


class BlockRemoved(NamedTuple):
    """One block lost its content: it was handed out again, or its KV was never written."""

    block_hash: bytes


class AllBlocksCleared(NamedTuple):
    """The whole prefix cache was reset."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
