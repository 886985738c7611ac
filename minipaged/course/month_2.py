"""What the lessons of Month 2 compute: blocks that move, a fork step by step and its copies, the paper's Figure 9, swap
by hand, and the price of a block size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from minipaged.attention import AttentionMetadata, get_backend
from minipaged.course.driver import Driver
from minipaged.course.figures import draw_block_table
from minipaged.course.widgets import Stepper
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.kv_cache.swap import SwapSpace


def move_blocks(driver: Driver, new_place: Sequence[int]) -> None:
    """Move physical block b of every layer to `new_place[b]`, and let the tables of the last step's batch follow."""
    places = torch.tensor(new_place)
    for cache in (*driver.storage.k_cache, *driver.storage.v_cache):
        cache[places] = cache.clone()
    tables = driver.metadata.block_tables
    driver.metadata.block_tables = torch.where(tables < 0, tables, places[tables.long()].int())


def forked_samples(model: Any, prompt: Sequence[int]) -> tuple[Driver, CacheRequest, CacheRequest]:
    """A1, whose prompt is computed, and A2, its fork, in a pool of 9 blocks of 4 that hands out 7, 1 and 3 first."""
    driver = Driver(model, KVCacheManager(num_blocks=9, block_size=4, free_order=[7, 1, 3]))
    a1, a2 = CacheRequest("A1", list(prompt)), CacheRequest("A2", list(prompt))
    driver.step(a1)
    driver.manager.fork(a1, a2)
    return driver, a1, a2


def copies_after_fork(num_tokens: int, num_samples: int, block_size: int = 4) -> int:
    """How many blocks are copied when `num_samples` samples of one prompt have each written one token."""
    manager = KVCacheManager(num_samples * (num_tokens // block_size + 1), block_size)
    first, *others = samples = [CacheRequest(f"A{i}", list(range(num_tokens))) for i in range(num_samples)]
    manager.allocate_slots(first, num_tokens)
    first.num_computed_tokens = num_tokens
    for other in others:
        manager.fork(first, other)
    copies = []
    for sample in samples:
        sample.append_token(0)
        manager.allocate_slots(sample, 1)
        copies += manager.take_copies()
    return len(copies)


def fork_stepper(model: Any, tokenizer: Any, prompt: Sequence[int]) -> Stepper:
    """Two answers to one prompt, from the fork to the end of the first one, in a pool of 9 blocks of 4.

    A page without a kernel shows the step at which both have written.
    """
    manager = KVCacheManager(num_blocks=9, block_size=4, enable_caching=False, free_order=[7, 1, 3])
    driver, a1, a2 = Driver(model, manager), CacheRequest("A1", list(prompt)), CacheRequest("A2", list(prompt))
    figures, captions = [], []

    def show(caption: str, *requests: CacheRequest) -> None:
        figures.append(draw_block_table(manager, requests, tokenizer, new=driver.positions))
        captions.append(caption)
        driver.positions = {}

    driver.step(a1)
    show("the prompt is computed once, for A1", a1)
    manager.fork(a1, a2)
    show("fork: A2 gets the same numbers, every count goes up to 2", a1, a2)
    a1.append_token(*tokenizer.encode(" fathers"))
    manager.allocate_slots(a1, 1)
    (source, copy), *_ = copies = manager.take_copies()
    driver.storage.copy_blocks(copies)
    show(f"A1 wants to write, and the count is 2: block {source} is copied to block {copy}", a1, a2)
    driver.step(a1)
    show(f"A1 writes into its own block {copy}", a1, a2)
    a2.append_token(*tokenizer.encode(" mothers"))
    driver.step(a2)
    show(f"A2 finds a count of 1 and writes into block {source}: no copy", a1, a2)
    manager.free(a1)
    show("A1 ends: each of its counts goes down by 1, and a count of 0 is a free block", a2)
    return Stepper(figures, captions=captions, still=-2)


class Figure9:
    """Four beams of the paper's Figure 9, grown by the manager itself: allocate, fork, allocate.

    Blocks hold 4 made-up tokens. The beams end up with the blocks [0, 1, 3, 5], [0, 1, 3, 6], [0, 1, 3, 7] and
    [0, 2, 4, 8].
    """

    def __init__(self) -> None:
        # Without prefix caching, as in the paper: blocks are shared by forks only.
        self.manager = KVCacheManager(num_blocks=13, block_size=4, enable_caching=False)
        self._children = 0
        trunk = CacheRequest("candidate 0", [1] * 4)
        self._fill(trunk, 4)
        last = self._fork(trunk, "candidate 3")
        for request in (trunk, last, trunk, last):
            self._grow(request)
        self.candidates = [trunk, *(self._fork(trunk, f"candidate {i}") for i in (1, 2)), last]
        for request in self.candidates:
            self._grow(request)

    @property
    def tables(self) -> list[list[int]]:
        return [self.manager.block_ids(request.request_id) for request in self.candidates]

    def step(self, parents: Sequence[int]) -> set[int]:
        """Replace the beams by children of `parents` (indices). Returns the blocks that became free."""
        before = {block for table in self.tables for block in table}
        self._children += len(parents)
        number = self._children
        children = [self._fork(self.candidates[p], f"child {number + i}") for i, p in enumerate(parents)]
        for request in self.candidates:
            self.manager.free(request)
        self.candidates = children
        return before - {block for table in self.tables for block in table}

    def grow(self) -> None:
        """Every beam writes the 4 tokens of one more block."""
        for request in self.candidates:
            self._grow(request)

    def _fork(self, parent: CacheRequest, name: str) -> CacheRequest:
        child = CacheRequest(name, parent.token_ids)
        self.manager.fork(parent, child)
        return child

    def _grow(self, request: CacheRequest) -> None:
        request.token_ids += [1] * 4
        self._fill(request, 4)

    def _fill(self, request: CacheRequest, num_tokens: int) -> None:
        if self.manager.allocate_slots(request, num_tokens) is None:
            raise RuntimeError(
                f"{request.request_id} needs a block, and the pool of {self.manager.num_usable_blocks} is full"
            )
        request.num_computed_tokens += num_tokens


def swap_out_and_in(
    driver: Driver, request: CacheRequest, swap_space: SwapSpace, meanwhile: CacheRequest
) -> tuple[list[int], list[int]]:
    """Save all blocks of a request and give them back; let another request run; take new blocks and restore.

    Returns the (old, new) block ids. The blocks that were given up are filled with NaN in between.
    """
    manager, num_tokens = driver.manager, request.num_computed_tokens
    old = manager.block_ids(request.request_id)
    slots = swap_space.reserve(request.request_id, len(old))
    if slots is None:
        raise RuntimeError(f"the swap space has room for {swap_space.num_free_blocks} blocks, not for {len(old)}")
    swap_space.write_out(list(zip(old, slots, strict=True)))
    manager.free(request)
    _poison(driver, old)
    driver.step(meanwhile)
    request.num_computed_tokens = 0
    manager.allocate_slots(request, num_tokens)
    request.num_computed_tokens = num_tokens
    new = manager.block_ids(request.request_id)
    swap_space.read_in(list(zip(slots, new, strict=True)))
    swap_space.release(request.request_id)
    return old, new


def _poison(driver: Driver, block_ids: Sequence[int]) -> None:
    """Fill given-up blocks with NaN: whoever still read them would notice."""
    for cache in (*driver.storage.k_cache, *driver.storage.v_cache):
        cache[list(block_ids)] = float("nan")


@dataclass(frozen=True)
class BlockSizePrice:
    """What one block size costs: table entries of a sequence (mean), and the share of held slots that stay empty."""

    block_size: int
    entries: float
    waste: float


def block_size_price(lengths: Sequence[int], block_size: int) -> BlockSizePrice:
    """Counted with a real manager that holds one sequence of each length at the same time."""
    manager = KVCacheManager(sum(-(-n // block_size) for n in lengths), block_size, enable_caching=False)
    for number, length in enumerate(lengths):
        manager.allocate_slots(CacheRequest(str(number), [0] * length), length)
    blocks = manager.num_usable_blocks - manager.num_free_blocks
    return BlockSizePrice(block_size, blocks / len(lengths), 1 - sum(lengths) / (blocks * block_size))


def decode_milliseconds(block_size: int, num_seqs: int = 8, context: int = 1024, repeats: int = 9) -> float:
    """Time of one layer's decode attention on this machine: 8 query heads, 2 KV heads, 64 numbers; best of repeats.

    Physical blocks are shuffled. The backend is the engine's own choice for the CPU.
    """
    backend = get_backend("auto", validate=False)
    blocks = context // block_size
    order = torch.randperm(num_seqs * blocks, generator=torch.Generator().manual_seed(0)).reshape(num_seqs, blocks)
    k_cache, v_cache = torch.randn(2, num_seqs * blocks, block_size, 2, 64)
    query = torch.randn(num_seqs, 8, 64)
    metadata = AttentionMetadata.build(order.tolist(), [context] * num_seqs, [1] * num_seqs, [-1] * num_seqs)
    times = []
    for _ in range(repeats + 1):  # the first one compiles
        start = perf_counter()
        backend.attend(query, k_cache, v_cache, metadata, 64**-0.5)
        times.append(perf_counter() - start)
    return 1000 * min(times[1:])
