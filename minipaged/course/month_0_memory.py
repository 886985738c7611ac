"""Month 0: bytes of a KV cache, and memory handed out in contiguous reservations, slot by slot. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

KIB, MIB, GIB = 2**10, 2**20, 2**30
GB = 10**9

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


@dataclass(frozen=True)
class ModelShape:
    """What of a model's shape decides the size of its KV cache. `num_heads` is there to show that it does not."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")

    def kv_bytes_per_token(self, dtype: str = "fp16") -> int:
        """Bytes of K and V that one token takes in all layers together."""
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {dtype!r} is unknown; choose one of {', '.join(DTYPE_BYTES)}")
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[dtype]


# Shapes as in the config.json that each model was published with.
OPT_13B = ModelShape("OPT-13B", 40, 40, 40, 128)
LLAMA_2_7B = ModelShape("Llama-2-7B", 32, 32, 32, 128)
LLAMA_31_8B = ModelShape("Llama-3.1-8B", 32, 32, 8, 128)
LLAMA_31_70B = ModelShape("Llama-3.1-70B", 80, 64, 8, 128)
SHAPES = {shape.name: shape for shape in (OPT_13B, LLAMA_2_7B, LLAMA_31_8B, LLAMA_31_70B)}


def in_units(num_bytes: float) -> str:
    """Bytes in the largest binary unit that they reach: `800 KiB`, `1.56 GiB`."""
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}" if num_bytes < 1000 * size else f"{num_bytes / size:,.0f} {unit}"
    return f"{num_bytes:.0f} bytes"


def requests_that_fit(memory: int, bytes_per_token: int, slots_per_request: int) -> int:
    """How many requests of `slots_per_request` slots fit into `memory` bytes."""
    for name, value in (("bytes_per_token", bytes_per_token), ("slots_per_request", slots_per_request)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    return max(memory, 0) // (bytes_per_token * slots_per_request)


@dataclass(frozen=True)
class Slot:
    """One slot of the cache's memory: whose it is ("" for nobody's), its token's text, its state (see STATES)."""

    owner: str
    text: str
    state: str


def reservation(name: str, tokens: Sequence[str], written: int, reserved: int, duplicate: int = 0) -> list[Slot]:
    """The slots of one request that reserved `reserved` contiguous slots when it came.

    tokens: the text of every token that will ever be stored for it; only the one who looks back knows the end.
    written: how many of them are stored now. duplicate: how many of these, from the first, another request stores too.
    """
    if not 0 <= duplicate <= written <= len(tokens) <= reserved:
        raise ValueError(
            f"{name}: {duplicate} duplicates, {written} written, {len(tokens)} tokens in all, {reserved} reserved; "
            "each must be at most the next"
        )
    now = [Slot(name, text, "duplicate" if i < duplicate else "token") for i, text in enumerate(tokens[:written])]
    later = [Slot(name, text, "reserved") for text in tokens[written:]]
    return now + later + [Slot(name, "", "internal")] * (reserved - len(tokens))


def hole(length: int, wanted: int) -> list[Slot]:
    """Free slots between reservations: external waste when the waiting request wants more in one piece."""
    return [Slot("", "", "external" if length < wanted else "free")] * length


def longest_hole(memory: Sequence[Slot]) -> int:
    """The longest stretch of nobody's slots: the largest reservation that can be granted."""
    longest = here = 0
    for slot in memory:
        here = 0 if slot.owner else here + 1
        longest = max(longest, here)
    return longest


def count_states(memory: Sequence[Slot]) -> dict[str, int]:
    """How many slots are in which state."""
    return dict(Counter(slot.state for slot in memory))


DRIVING_QUESTION = "Name at least three problems of reserving max_len contiguous slots for every request."
DRIVING_ANSWERS = (
    "Reservation: slots that will be used later are taken from everybody else now.",
    "Internal fragmentation: slots inside a reservation that are never used, because the answer ends early.",
    "External fragmentation: free pieces between reservations, together large enough, each one too short.",
    "No sharing: requests with the same beginning each store the same K and V.",
    "Bonus: no dynamic lengths. The limit is guessed at the start; a guess too low means to copy, or to stop.",
)
