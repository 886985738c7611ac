"""Fragmentation experiments (Month 4): four memory systems on one trace and the same bytes."""

from minipaged.fragmentation.accounting import Average, Parts
from minipaged.fragmentation.experiment import PAPER, POOL_SLOTS, compare, sweep
from minipaged.fragmentation.recording import Recorder, Sample, holes, time_average, time_share
from minipaged.fragmentation.sharing import Savings, beam_savings, parallel_savings
from minipaged.fragmentation.simulation import Result, simulate
from minipaged.fragmentation.systems import Contiguous, Paged, make_system, reserve_max, reserve_oracle, reserve_pow2

__all__ = [
    "PAPER",
    "POOL_SLOTS",
    "Average",
    "Contiguous",
    "Paged",
    "Parts",
    "Recorder",
    "Result",
    "Sample",
    "Savings",
    "beam_savings",
    "compare",
    "holes",
    "make_system",
    "parallel_savings",
    "reserve_max",
    "reserve_oracle",
    "reserve_pow2",
    "simulate",
    "sweep",
    "time_average",
    "time_share",
]
