"""How much memory do forks save? Parallel sampling and beam search, block by block, on the real manager.

Source: Kwon et al., SOSP 2023, §6.3: blocks saved by sharing, over the blocks that would be needed without it.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.os_paging.errors import require_whole
from minipaged.workloads import Workload, checked


@dataclass
class Savings:
    """Blocks, summed over the steps of all requests: what the tables list, and what lies in memory."""

    listed: int = 0
    held: int = 0

    @property
    def percent(self) -> float:
        """Saved blocks in percent of the blocks without sharing."""
        return 100 * (1 - self.held / self.listed) if self.listed else 0.0


class _Family:
    """The sequences of one request, over a manager that has room for all of them without sharing."""

    def __init__(self, workload: Workload, width: int, block_size: int) -> None:
        room = 2 * width * -(-workload.total_tokens // block_size)  # the old and the new generation of a beam
        self.manager = KVCacheManager(room, block_size, enable_caching=False)
        self.born = 0
        first = CacheRequest("0", [0] * workload.prompt_tokens)
        self.manager.allocate_slots(first, workload.prompt_tokens)
        first.num_computed_tokens = workload.prompt_tokens
        self.members = [first, *(self.fork(first) for _ in range(width - 1))]

    def fork(self, parent: CacheRequest) -> CacheRequest:
        self.born += 1
        child = CacheRequest(str(self.born), list(parent.token_ids), parent.num_computed_tokens)
        self.manager.fork(parent, child)
        return child

    def replace(self, parents: list[int]) -> None:
        """The next generation: one child for every entry, of the member with that index; who has none is freed."""
        for index in set(range(len(self.members))) - set(parents):
            self.manager.free(self.members[index])
        heirs, seen = [], set()
        for index in parents:
            heirs.append(self.fork(self.members[index]) if index in seen else self.members[index])
            seen.add(index)
        self.members = heirs

    def write_one(self) -> None:
        """Every member writes one token: copy-on-write where its last block is shared."""
        for member in self.members:
            member.append_token(0)
            self.manager.allocate_slots(member, 1)
            member.num_computed_tokens += 1
        self.manager.take_copies()  # ordered copies keep their source until they are collected

    def count(self, savings: Savings, steps: int = 1) -> None:
        tables = (len(self.manager.block_table(member.request_id)) for member in self.members)
        savings.listed += sum(tables) * steps
        savings.held += (self.manager.num_usable_blocks - self.manager.num_free_blocks) * steps


def parallel_savings(requests: Iterable[Workload], width: int, block_size: int = 16) -> Savings:
    """`width` samples of each prompt: they share its blocks, all but the last one where that is not full."""
    savings = Savings()
    for workload in _checked(requests, width, block_size):
        family = _Family(workload, width, block_size)
        for _ in range(workload.output_tokens):
            family.write_one()
            family.count(savings)
    return savings


def beam_savings(
    requests: Iterable[Workload], width: int, block_size: int = 16, fresh: float = 1.0, seed: int = 0
) -> Savings:
    """`width` beams. In each step every beam takes a random parent with probability `fresh`, else it stays its own.

    Which beams survive is the model's business, so the choice of parents is an assumption. 1.0: all parents are equally
    likely and independent of each other. 0.0: nobody is ever replaced, which is parallel sampling.
    """
    if not 0 <= fresh <= 1:
        raise ValueError(f"fresh is {fresh}; a probability lies from 0 to 1")
    rng, savings = random.Random(seed), Savings()
    for workload in _checked(requests, width, block_size):
        family = _Family(workload, width, block_size)
        for _ in range(workload.output_tokens):
            family.replace([rng.randrange(width) if rng.random() < fresh else i for i in range(width)])
            family.write_one()
            family.count(savings)
    return savings


def _checked(requests: Iterable[Workload], width: int, block_size: int) -> list[Workload]:
    require_whole("width", width, 1, None, "a request has at least 1 sequence")
    require_whole("block_size", block_size, 1, None, "a block has at least one slot")
    return checked(requests)
