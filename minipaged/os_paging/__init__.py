"""Month 1: how an operating system gives every program a memory of its own. Standard library only."""

from minipaged.os_paging.allocators import ALLOCATORS, allocator
from minipaged.os_paging.buddy import Buddy
from minipaged.os_paging.contiguous import Allocator, AllocatorStep, BestFit, FirstFit, NextFit
from minipaged.os_paging.errors import (
    AddressError,
    AllocationError,
    OutOfMemory,
    PageFault,
    PolicyError,
    ProtectionFault,
)

__all__ = [
    "ALLOCATORS",
    "AddressError",
    "AllocationError",
    "Allocator",
    "AllocatorStep",
    "BestFit",
    "Buddy",
    "FirstFit",
    "NextFit",
    "OutOfMemory",
    "PageFault",
    "PolicyError",
    "ProtectionFault",
    "allocator",
]
