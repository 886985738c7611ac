"""Names for block contents: a chain of hashes, one per full block.

The hash of a block covers its parent's hash, its own tokens and its extra keys. So two blocks have equal hashes
only where the whole past is equal too: K and V of a token depend on every token before it.

Source: vLLM 0.32, vllm/v1/core/kv_cache_utils.py (hash_block_tokens, generate_block_hash_extra_keys).
"""

import hashlib
from array import array
from collections.abc import Sequence

from minipaged.kv_cache.request import CacheRequest

ExtraKeys = tuple[tuple, ...]

# The parent of every first block. Fixed, so that equal prompts get equal names in every process.
ROOT_HASH = hashlib.sha256(b"minipaged: the parent of every first block").digest()


def hash_block_tokens(
    parent_hash: bytes | None, token_ids: Sequence[int], extra_keys: ExtraKeys | None = None
) -> bytes:
    """Name one full block: sha256 over (parent's hash, tokens, extra keys). Returns 32 bytes.

    `parent_hash` is None for the first block of a sequence. `extra_keys` come from `extra_keys()`.
    """
    message = (parent_hash or ROOT_HASH) + array("q", token_ids).tobytes()
    if extra_keys:
        # repr() of tagged tuples is unambiguous; the separator keeps tokens and keys apart.
        message += b"|extra|" + repr(extra_keys).encode()
    return hashlib.sha256(message).digest()


def extra_keys(request: CacheRequest, start: int, stop: int) -> ExtraKeys | None:
    """What makes the block of tokens `start … stop - 1` differ from another with the same tokens, or None.

    Every key carries a tag, so an adapter named "x" and a salt "x" stay different. The salt goes into the first
    block only: the chain hands it on to all later ones.
    """
    keys: list[tuple] = []
    if request.adapter is not None:
        keys.append(("adapter", request.adapter))
    for image in request.images:
        if image.offset < stop and start < image.offset + image.length:
            # The offset in this block tells the same image at another place from this one.
            keys.append(("image", image.identifier, image.offset - start))
    if start == 0 and request.cache_salt is not None:
        keys.append(("cache_salt", request.cache_salt))
    return tuple(keys) or None
