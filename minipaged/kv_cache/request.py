"""What the KV cache manager needs to know about a request: its tokens, and how far they are computed."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple


class ImageSpan(NamedTuple):
    """An image in a prompt: tokens `offset … offset + length - 1` stand for the image with this identifier."""

    identifier: str
    offset: int
    length: int


@dataclass(eq=False)
class CacheRequest:
    """One token sequence whose KV is kept in blocks.

    `token_ids` only ever grows, by `append_token`: block hashes are computed once, when a block fills up, and
    kept in `block_hashes`. `num_computed_tokens` is how many tokens have their K and V in the cache; whoever
    drives the manager advances it (a scheduler, a test, you).

    `cache_salt`, `adapter` and `images` keep apart requests whose tokens are equal but whose KV is not, or
    must not be shared: they become extra keys of the block hashes (see `hashing.extra_keys`).
    """

    request_id: str
    token_ids: list[int]
    num_computed_tokens: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    images: Sequence[ImageSpan] = ()
    block_hashes: list[bytes] = field(default_factory=list, repr=False)
    was_scheduled: bool = field(default=False, repr=False)  # had slots before: its hits are counted apart

    def __post_init__(self) -> None:
        try:
            self.token_ids = array("q", list(self.token_ids)).tolist()  # whole numbers only, checked in C
        except (TypeError, OverflowError) as error:
            raise TypeError(
                f"request {self.request_id!r}: token_ids must be whole numbers below 2**63 in a list ({error})"
            ) from None
        for name, value in (("cache_salt", self.cache_salt), ("adapter", self.adapter)):
            if value is not None and not isinstance(value, str):
                raise TypeError(
                    f"request {self.request_id!r}: {name} is {value!r} of type {type(value).__name__}; give a text, "
                    "or None for no such key"
                )
        if not self.token_ids:
            raise ValueError(
                f"request {self.request_id!r} has no tokens; a request needs at least 1 token, so give it a prompt"
            )

    @property
    def num_tokens(self) -> int:
        """All tokens so far: the prompt's and the generated ones."""
        return len(self.token_ids)

    def append_token(self, token_id: int) -> None:
        """Append one generated token. Its K and V are not in the cache yet: the cache lags by one."""
        try:
            self.token_ids.append(index(token_id))
        except TypeError:
            raise TypeError(
                f"request {self.request_id!r}: token {token_id!r} is no token id; append a whole number"
            ) from None
