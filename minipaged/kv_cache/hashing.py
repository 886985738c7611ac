"""Names for block contents: a chain of hashes, one per full block.

The hash of a block covers its parent's hash, its own tokens and its extra keys. So two blocks have equal hashes
only where the whole past is equal too: K and V of a token depend on every token before it.

Source: vLLM 0.32, vllm/v1/core/kv_cache_utils.py (hash_block_tokens, generate_block_hash_extra_keys,
resolve_none_hash_seed).
"""

import hashlib
import secrets
from array import array
from collections.abc import Sequence

from minipaged.kv_cache.request import CacheRequest

ExtraKeys = tuple[tuple, ...]

HASH_ALGORITHMS = ("sha256", "xxhash")
# The seed of sha256 is public and fixed, so that equal prompts get equal names in every process.
SHA256_SEED = "minipaged: the parent of every first block"


class BlockHasher:
    """Hashes blocks with one algorithm and one seed. The seed stands in for the parent of every first block.

    - `"sha256"` (default): nobody can make two contents with one hash, so the seed may be fixed.
    - `"xxhash"`: faster, but anybody who knows the seed can make two prompts collide, and would then read, or poison,
      another tenant's cache. So its seed is random in each process unless you give one; hashes then differ from
      process to process. Needs the package `xxhash`.
    """

    def __init__(self, algorithm: str = "sha256", seed: str | None = None) -> None:
        if algorithm not in HASH_ALGORITHMS:
            raise ValueError(f"hash algorithm {algorithm!r} is unknown; choose one of {', '.join(HASH_ALGORITHMS)}")
        if seed is not None and not isinstance(seed, str):
            raise TypeError(f"the hash seed is {seed!r}; it must be a str, or None for the rule of the algorithm")
        self.algorithm = algorithm
        if algorithm == "xxhash":
            self._hash = _xxh3_128()
            seed = secrets.token_hex(32) if seed is None else seed
        else:
            self._hash = hashlib.sha256
            seed = SHA256_SEED if seed is None else seed
        self.root_hash = self._hash(seed.encode()).digest()

    def __call__(
        self, parent_hash: bytes | None, token_ids: Sequence[int], extra_keys: ExtraKeys | None = None
    ) -> bytes:
        """Name one full block: the digest of (parent's hash, tokens, extra keys). 32 bytes (sha256) or 16 (xxhash).

        `parent_hash` is None for the first block of a sequence. `extra_keys` come from `extra_keys()`.
        """
        message = (parent_hash or self.root_hash) + array("q", token_ids).tobytes()
        if extra_keys:
            # repr() of tagged tuples is unambiguous; the separator keeps tokens and keys apart.
            message += b"|extra|" + repr(extra_keys).encode()
        return self._hash(message).digest()


def _xxh3_128():
    try:
        from xxhash import xxh3_128
    except ImportError:
        raise ImportError(
            "hash algorithm 'xxhash' needs the package xxhash; install it (pip install xxhash) or use 'sha256'"
        ) from None
    return xxh3_128


_default_hasher = BlockHasher()


def hash_block_tokens(
    parent_hash: bytes | None, token_ids: Sequence[int], extra_keys: ExtraKeys | None = None
) -> bytes:
    """`BlockHasher()` as a plain function: sha256 with the fixed seed. Returns 32 bytes."""
    return _default_hasher(parent_hash, token_ids, extra_keys)


def extra_keys(request: CacheRequest, start: int, stop: int) -> ExtraKeys | None:
    """What makes the block of tokens `start … stop - 1` differ from another with the same tokens, or None.

    Every key carries a tag, so an adapter named "x" and a salt "x" stay different. The salt goes into the first
    block only: the chain hands it on to all later ones.
    """
    if request.adapter is None and request.cache_salt is None and not request.images:
        return None
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
