"""Why did this request hit so little? A recorder that watches the cache's events, as a router would, and explains."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from minipaged.kv_cache.events import BlockRemoved, BlockStored, CacheEvent
from minipaged.kv_cache.hashing import BlockHasher
from minipaged.kv_cache.request import CacheRequest


@dataclass(frozen=True)
class WhyNoHit:
    """The answer: `hit_tokens` were found; `reason` is a short code; `str()` says it in a sentence.

    Reasons: "caching off", "shorter than a block", "all found", "evicted", "extra keys differ",
    "tokens differ or never seen". `block` is the first logical block that did not hit, or None.
    """

    reason: str
    hit_tokens: int
    block: int | None
    text: str

    def __str__(self) -> str:
        return self.text


class MissRecorder:
    """Remembers names of contents that were stored and removed; at most `limit` of each, the oldest forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._removed: OrderedDict[bytes, None] = OrderedDict()
        # The same chain without extra keys: equal names here mean equal tokens.
        self._plain = BlockHasher()
        self._plain_name: OrderedDict[bytes, bytes] = OrderedDict()
        self._stored_plain: OrderedDict[bytes, None] = OrderedDict()

    def observe(self, events: Iterable[CacheEvent]) -> None:
        """Take note of what was stored and removed."""
        for event in events:
            if isinstance(event, BlockStored):
                self._note_stored(event)
            elif isinstance(event, BlockRemoved):
                self._remember(self._removed, event.block_hash, None)

    def _note_stored(self, event: BlockStored) -> None:
        parent = self._plain_name.get(event.parent_hash) if event.parent_hash else None
        if event.parent_hash and parent is None:
            return  # its past was forgotten
        for index, block_hash in enumerate(event.block_hashes):
            tokens = event.token_ids[index * event.block_size : (index + 1) * event.block_size]
            parent = self._plain(parent, tokens)
            self._remember(self._plain_name, block_hash, parent)
            self._remember(self._stored_plain, parent, None)
            self._removed.pop(block_hash, None)

    def _remember(self, memory: OrderedDict, key: bytes, value: bytes | None) -> None:
        memory[key] = value
        memory.move_to_end(key)
        if len(memory) > self._limit:
            memory.popitem(last=False)

    def was_removed(self, block_hash: bytes) -> bool:
        """This very content was in the cache and had to go."""
        return block_hash in self._removed

    def same_tokens_seen(self, token_ids: list[int], block_size: int) -> bool:
        """These tokens (whole blocks from the start of a sequence) were stored, perhaps under other extra keys."""
        name = None
        for start in range(0, len(token_ids), block_size):
            name = self._plain(name, token_ids[start : start + block_size])
        return name in self._stored_plain


def explain_miss(manager, request: CacheRequest, recorder: MissRecorder | None) -> WhyNoHit:
    """The reason for the first block of `request` that `manager` does not find (see `KVCacheManager.why_no_hit`)."""
    size, total = manager.block_size, request.num_tokens
    if not manager.enable_caching:
        return WhyNoHit("caching off", 0, None, "prefix caching is off (enable_caching=False), so nothing is looked up")
    _, hit_tokens = manager.get_computed_blocks(request)
    block, most = hit_tokens // size, (total - 1) // size
    if most == 0:
        text = (
            f"the prompt has {total} tokens, and only full blocks of {size} can hit, without the last token: "
            f"at least {size + 1} tokens are needed"
        )
        return WhyNoHit("shorter than a block", 0, 0, text)
    if block == most:
        text = f"all {most} blocks that may hit were found ({hit_tokens} of {total} tokens)"
        return WhyNoHit("all found", hit_tokens, None, text)
    where = f"block {block} (tokens {block * size} to {(block + 1) * size - 1}) was not found: "
    if recorder is not None and recorder.was_removed(request.block_hashes[block]):
        return WhyNoHit("evicted", hit_tokens, block, where + "it was cached and its block has been handed out since")
    tokens = request.token_ids[: (block + 1) * size]
    if recorder is not None and recorder.same_tokens_seen(tokens, size):
        text = where + "the same tokens were cached under another cache salt, adapter or image"
        return WhyNoHit("extra keys differ", hit_tokens, block, text)
    cause = "these tokens were never cached after this prefix"
    if recorder is None:
        cause += ", or were evicted (explain_misses=True would tell)"
    return WhyNoHit("tokens differ or never seen", hit_tokens, block, where + cause)
