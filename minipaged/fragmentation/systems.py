"""Four ways to give a request its KV memory: three that reserve a contiguous piece, and paging.

Source: Kwon et al., SOSP 2023, §6.1 (Orca Max, Pow2 and Oracle). Only the output is unknown when a request arrives, so
only the output is guessed: the prompt is reserved exactly, and the total never exceeds the model's 2048.
"""

import zlib
from collections.abc import Callable
from typing import Protocol

from minipaged.fragmentation.accounting import Parts
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.os_paging.allocators import allocator as make_allocator
from minipaged.os_paging.errors import require_whole
from minipaged.workloads import MAX_LENGTH, Workload

Reserve = Callable[[Workload], int]


class ContiguousAllocator(Protocol):
    """What a contiguous system needs of its allocator; a learner's own class fits too."""

    free_total: int

    def allocate(self, size: int) -> int | None: ...
    def free(self, address: int) -> None: ...


Span = tuple[int, int, str]  # first slot, number of slots, the name of the part in `Parts` that they belong to


class Running:
    """A request in the batch: `cached` of its `workload.total_tokens` tokens have a slot with K and V."""

    def __init__(self, workload: Workload, number: int) -> None:
        self.workload = workload
        self.number = number
        self.cached = workload.prompt_tokens


class System(Protocol):
    """How the simulation talks to a way of managing memory."""

    name: str
    pool_slots: int
    moving_from: int  # index in Parts of the slots that the next token is written to

    def fits_alone(self, workload: Workload) -> bool: ...
    def admit(self, request: Running) -> bool: ...
    def room(self, request: Running) -> int: ...  # tokens that fit before `grow` is needed again
    def grow(self, request: Running) -> bool: ...
    def release(self, request: Running) -> None: ...
    def parts(self, running: list[Running], waiting: bool) -> Parts: ...
    def layout(self, running: list[Running]) -> list[Span]: ...  # what is not listed is free


def reserve_max(workload: Workload) -> int:
    """Room for the longest request the model allows."""
    _check_length(workload)
    return MAX_LENGTH


def reserve_pow2(workload: Workload) -> int:
    """The exact prompt, and the output rounded up to a power of two; at most 2048 together."""
    _check_length(workload)
    rounded = 1 << (workload.output_tokens - 1).bit_length()
    return min(workload.prompt_tokens + rounded, MAX_LENGTH)


def reserve_oracle(workload: Workload) -> int:
    """Exactly what will be needed: nobody can know it, so this is the best that reserving can do."""
    return workload.total_tokens


def _check_length(workload: Workload) -> None:
    if workload.total_tokens > MAX_LENGTH:
        raise ValueError(
            f"{workload.prompt_tokens} + {workload.output_tokens} tokens are more than the {MAX_LENGTH} reserved "
            "at most; shorten it, or choose oracle or paged"
        )


RESERVE: dict[str, Reserve] = {"max": reserve_max, "pow2": reserve_pow2, "oracle": reserve_oracle}


class Contiguous:
    """Reserve one contiguous piece for the request's whole life, with an allocator of your choice.

    The allocator is new, and as large as the pool: it hands out slots 0 to pool_slots - 1.
    """

    moving_from = Parts._fields.index("reservation")

    def __init__(self, name: str, reserve: Reserve, pool_slots: int, allocator: ContiguousAllocator) -> None:
        require_whole("pool_slots", pool_slots, 1, None, "give the pool at least one slot")
        free = getattr(allocator, "free_total", None)
        if free != pool_slots:
            raise ValueError(
                f"the allocator's free_total is {free}, but the pool has {pool_slots} slots; make a new allocator of "
                "that size for each system"
            )
        self.name = name
        self.pool_slots = pool_slots
        self.allocator = allocator
        self._reserve = reserve
        self._owned: dict[int, tuple[int, int, int]] = {}  # request → (address, reserved, granted)
        self.refused = 0  # slots that the request in front of the queue asks for in vain; 0 when none does

    def fits_alone(self, workload: Workload) -> bool:
        return self._reserve(workload) <= self.pool_slots

    def admit(self, request: Running) -> bool:
        size = self._reserve(request.workload)
        before = self.allocator.free_total
        address = self.allocator.allocate(size)
        if address is None:
            self.refused = size
            return False
        granted = before - self.allocator.free_total
        if granted < size:
            raise ValueError(
                f"allocate({size}) returned {address!r}, but free_total went from {before} to {before - granted}; it "
                f"must fall by {size} or more"
            )
        self.refused = 0
        self._owned[request.number] = (address, size, granted)
        return True

    def room(self, request: Running) -> int:
        return request.workload.total_tokens - request.cached

    def grow(self, request: Running) -> bool:
        return True

    def release(self, request: Running) -> None:
        address, _, _ = self._owned.pop(request.number)
        self.allocator.free(address)

    def parts(self, running: list[Running], waiting: bool) -> Parts:
        cached = sum(request.cached for request in running)
        final = sum(request.workload.total_tokens for request in running)
        reserved = sum(size for _, size, _ in self._owned.values())
        granted = sum(size for _, _, size in self._owned.values())
        free = self.pool_slots - granted
        duplicate = duplicate_tokens(running)
        return Parts(
            tokens=cached - duplicate,
            duplicate=duplicate,
            reservation=final - cached,
            internal=reserved - final,
            # While a request waits, no hole was large enough for it: what is free is of no use.
            external=granted - reserved + (free if waiting else 0),
            free=0 if waiting else free,
        )

    def layout(self, running: list[Running]) -> list[Span]:
        """Where every request lies, part by part, by address: for the map of holes."""
        spans = []
        for request in running:
            address, reserved, granted = self._owned[request.number]
            cached, final = request.cached, request.workload.total_tokens
            lengths = (cached, final - cached, reserved - final, granted - reserved)
            for part, slots in zip(("tokens", "reservation", "internal", "external"), lengths, strict=True):
                if slots:
                    spans.append((address, slots, part))
                address += slots
        return sorted(spans)


class Paged:
    """Blocks on demand from the real `KVCacheManager`. With `share`, equal prefixes use the same blocks.

    `watermark`: the share of all blocks that stays free, for those that run already, when a request is admitted.
    """

    name = "paged"
    moving_from = Parts._fields.index("internal")

    def __init__(self, pool_slots: int, block_size: int = 16, share: bool = False, watermark: float = 0.0) -> None:
        require_whole("block_size", block_size, 1, None, "a block has at least one slot; 16 is vLLM's default")
        way_out = f"make the pool larger: it must hold at least one block of {block_size}"
        require_whole("pool_slots", pool_slots, block_size, None, way_out)
        if not (isinstance(watermark, int | float) and 0 <= watermark < 1):
            raise ValueError(f"watermark is {watermark!r}; give a share of the blocks, from 0 to below 1")
        self.block_size = block_size
        self.pool_slots = pool_slots // block_size * block_size
        self.manager = KVCacheManager(pool_slots // block_size, block_size, enable_caching=share)
        self.share = share
        self._watermark = round(watermark * self.manager.num_usable_blocks)
        self._requests: dict[int, CacheRequest] = {}

    def fits_alone(self, workload: Workload) -> bool:
        return -(-workload.total_tokens // self.block_size) <= self.manager.num_usable_blocks

    def admit(self, request: Running) -> bool:
        tokens = _token_ids(request.workload, request.number) if self.share else [0]
        cache_request = CacheRequest(str(request.number), tokens)
        blocks, hit = self.manager.get_computed_blocks(cache_request)
        # One slot more than the prompt: the step that admits a request also gives it its first new token.
        new_tokens = request.cached - hit + 1
        # Some blocks stay free for those that run already; an idle pool has nobody to keep them for. A cached block
        # that nobody uses counts as free until it is used again.
        leaving = -(-new_tokens // self.block_size) + sum(block.ref_cnt == 0 for block in blocks)
        if self._requests and leaving + self._watermark > self.manager.num_free_blocks:
            return False
        if self.manager.allocate_slots(cache_request, new_tokens, hit, blocks) is None:
            return False
        cache_request.num_computed_tokens = request.cached
        self._requests[request.number] = cache_request
        return True

    def room(self, request: Running) -> int:
        return len(self.manager.block_table(str(request.number))) * self.block_size - request.cached

    def grow(self, request: Running) -> bool:
        cache_request = self._requests[request.number]
        cache_request.num_computed_tokens = request.cached
        return self.manager.allocate_slots(cache_request, 1) is not None

    def release(self, request: Running) -> None:
        self.manager.free(self._requests.pop(request.number))

    def parts(self, running: list[Running], waiting: bool) -> Parts:
        free = self.manager.num_free_blocks * self.block_size
        used = self.pool_slots - free
        empty = sum(self.room(request) for request in running)
        duplicate = 0 if self.share else duplicate_tokens(running)
        # With sharing a block counts once, however many tables point to it.
        return Parts(used - empty - duplicate, duplicate, 0, empty, 0, free)

    def layout(self, running: list[Running]) -> list[Span]:
        """Where every block lies, by address. A shared block is listed once."""
        filled: dict[int, int] = {}
        for request in running:
            for i, block in enumerate(self.manager.block_ids(str(request.number))):
                tokens = min(self.block_size, max(0, request.cached - i * self.block_size))
                filled[block] = max(tokens, filled.get(block, 0))
        spans = []
        for block, tokens in sorted(filled.items()):
            start = block * self.block_size
            spans += [(start, tokens, "tokens"), (start + tokens, self.block_size - tokens, "internal")]
        return [span for span in spans if span[1]]


def duplicate_tokens(running: list[Running]) -> int:
    """Slots that hold a prefix which another running request holds too.

    Prefixes of one name are beginnings of one another, so the longest of them holds all that could be shared.
    """
    slots: dict[str, list[int]] = {}
    for request in running:
        if request.workload.prefix_id is not None:
            slots.setdefault(request.workload.prefix_id, []).append(request.workload.prefix_tokens)
    return sum(sum(lengths) - max(lengths) for lengths in slots.values())


def _token_ids(workload: Workload, number: int) -> list[int]:
    """Made-up tokens: equal for equal prefixes, different everywhere else."""
    shared = zlib.crc32(str(workload.prefix_id).encode()) << 20
    own = -((number + 1) << 20)
    prefix = [shared + i for i in range(workload.prefix_tokens)]
    return prefix + [own + i for i in range(workload.prompt_tokens - workload.prefix_tokens)]


def make_system(
    name: str, pool_slots: int, allocator: str | ContiguousAllocator = "buddy", block_size: int = 16
) -> System:
    """A system by name: "max", "pow2", "oracle" (each over an allocator), or "paged"."""
    if name == "paged":
        return Paged(pool_slots, block_size)
    if name not in RESERVE:
        raise ValueError(f"system {name!r} is unknown; choose one of {', '.join([*RESERVE, 'paged'])}")
    if isinstance(allocator, str):
        allocator = make_allocator(allocator, pool_slots)
    return Contiguous(name, RESERVE[name], pool_slots, allocator)
