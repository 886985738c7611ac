"""Fragmentation experiments (Month 4): four memory systems on one trace and the same bytes."""

from minipaged.fragmentation.accounting import Average, Parts
from minipaged.fragmentation.experiment import PAPER, POOL_SLOTS, compare, sweep
from minipaged.fragmentation.simulation import Result, simulate
from minipaged.fragmentation.systems import Contiguous, Paged, make_system, reserve_max, reserve_oracle, reserve_pow2

__all__ = [
    "PAPER",
    "POOL_SLOTS",
    "Average",
    "Contiguous",
    "Paged",
    "Parts",
    "Result",
    "compare",
    "make_system",
    "reserve_max",
    "reserve_oracle",
    "reserve_pow2",
    "simulate",
    "sweep",
]
