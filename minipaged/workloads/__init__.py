"""Requests with lengths and arrivals: what the experiments of Months 4 and 5 are run on.

``request.py`` says what a request is, ``made.py`` draws requests, ``trace.py`` reads them from a file.
"""

from minipaged.workloads.made import (
    ALPACA_MEANS,
    MAX_LENGTH,
    SHAREGPT_MEANS,
    alpaca_like,
    log_normal_lengths,
    log_normal_mu,
    mean_lengths,
    multi_turn,
    poisson_arrivals,
    shared_prefix,
    sharegpt_like,
    workload_a,
    workload_b,
)
from minipaged.workloads.request import Workload, checked, problem
from minipaged.workloads.trace import COLUMNS, load_trace

__all__ = [
    "ALPACA_MEANS",
    "COLUMNS",
    "MAX_LENGTH",
    "SHAREGPT_MEANS",
    "Workload",
    "alpaca_like",
    "checked",
    "load_trace",
    "log_normal_lengths",
    "log_normal_mu",
    "mean_lengths",
    "multi_turn",
    "poisson_arrivals",
    "problem",
    "shared_prefix",
    "sharegpt_like",
    "workload_a",
    "workload_b",
]
