"""Month 1: how an operating system gives every program a memory of its own. Standard library only.

Read in this order: addresses, page_table, tlb, mmu (one access); replacement, simulate, traces (who leaves); memory,
operating_system (processes, faults, fork, swap); page_cache; contiguous, buddy (allocation before paging); problems
(`python -m minipaged.os_paging` prints a fresh one).
"""

from minipaged.os_paging.addresses import AddressFormat
from minipaged.os_paging.allocators import ALLOCATORS, allocator
from minipaged.os_paging.buddy import Buddy
from minipaged.os_paging.churn import Churn, churn
from minipaged.os_paging.contiguous import Allocator, AllocatorStep, BestFit, FirstFit, NextFit
from minipaged.os_paging.errors import (
    AddressError,
    AllocationError,
    OutOfMemory,
    PageFault,
    PolicyError,
    ProtectionFault,
)
from minipaged.os_paging.memory import Frames, PageContent, Swap
from minipaged.os_paging.mmu import MMU, Translation
from minipaged.os_paging.operating_system import Event, OperatingSystem
from minipaged.os_paging.page_cache import Disk, PageCache
from minipaged.os_paging.page_table import (
    EXECUTE,
    READ,
    WRITE,
    PageTable,
    PageTableEntry,
    PageTableProtocol,
    Permission,
    TwoLevelPageTable,
)
from minipaged.os_paging.replacement import FIFO, LRU, OPT, POLICIES, Clock, ReplacementPolicy, make_policy
from minipaged.os_paging.simulate import Pin, Simulation, Step, average_access_ns, count_faults, simulate
from minipaged.os_paging.tlb import TLB, effective_access_time, tlb_hit_rate
from minipaged.os_paging.traces import BELADY, TRACES, take_turns

__all__ = [
    "ALLOCATORS",
    "BELADY",
    "EXECUTE",
    "FIFO",
    "LRU",
    "MMU",
    "OPT",
    "POLICIES",
    "READ",
    "TLB",
    "TRACES",
    "WRITE",
    "AddressError",
    "AddressFormat",
    "AllocationError",
    "Allocator",
    "AllocatorStep",
    "BestFit",
    "Buddy",
    "Churn",
    "Clock",
    "Disk",
    "Event",
    "FirstFit",
    "Frames",
    "NextFit",
    "OperatingSystem",
    "OutOfMemory",
    "PageCache",
    "PageContent",
    "PageFault",
    "PageTable",
    "PageTableEntry",
    "PageTableProtocol",
    "Permission",
    "Pin",
    "PolicyError",
    "ProtectionFault",
    "ReplacementPolicy",
    "Simulation",
    "Step",
    "Swap",
    "Translation",
    "TwoLevelPageTable",
    "allocator",
    "average_access_ns",
    "churn",
    "count_faults",
    "effective_access_time",
    "make_policy",
    "simulate",
    "take_turns",
    "tlb_hit_rate",
]
