"""A kernel's shares on several threads.

Best are the threads that torch's own operations run on. Between two of them they do not sleep: they wait for work at
full speed for a while, and threads of another pool would have to share the cores with them. On Linux torch and Numba
take their threads from one OpenMP library, so a parallel Numba kernel meets them. Elsewhere, and in a forked child
(which OpenMP does not survive), a pool of Python threads does it: the kernels release the interpreter's lock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba
import numpy as np

from minipaged.attention.cpu_kernels import build_attend

_pool: ThreadPoolExecutor | None = None
_was_forked = False


def run_jobs(head_dim: int, group: int, jobs: np.ndarray, arguments: tuple) -> None:
    """Run the attention kernel's jobs (see ``build_attend``) at the same time, on one thread each."""
    if len(jobs) == 1:
        _kernel(head_dim, group)(jobs, *arguments)
    elif _has_openmp() and not _was_forked:
        _run_with_openmp(_kernel(head_dim, group, parallel=True), jobs, arguments)
    else:
        _run_in_pool(_kernel(head_dim, group), jobs, arguments)


def _run_with_openmp(kernel: Callable, jobs: np.ndarray, arguments: tuple) -> None:
    before, wanted = numba.get_num_threads(), min(len(jobs), numba.config.NUMBA_NUM_THREADS)
    if before != wanted:
        numba.set_num_threads(wanted)
    try:
        kernel(jobs, *arguments)
    finally:
        if before != wanted:
            numba.set_num_threads(before)


def _run_in_pool(kernel: Callable, jobs: np.ndarray, arguments: tuple) -> None:
    global _pool
    others = len(jobs) - 1
    if _pool is None or _pool._max_workers < others:
        _pool = ThreadPoolExecutor(others, thread_name_prefix="minipaged-attention")
    waiting = [_pool.submit(kernel, jobs[i : i + 1], *arguments) for i in range(1, len(jobs))]
    kernel(jobs[:1], *arguments)  # the first one in this thread
    for future in waiting:
        future.result()


@cache
def _kernel(head_dim: int, group: int, parallel: bool = False) -> Callable:
    return build_attend(head_dim, group, parallel)


@cache
def _has_openmp() -> bool:
    """Would Numba run parallel kernels on OpenMP's threads? Its choice can be changed (NUMBA_THREADING_LAYER)."""
    if sys.platform != "linux" or numba.config.THREADING_LAYER not in ("default", "omp", "threadsafe", "forksafe"):
        return False
    try:
        from numba.np.ufunc import omppool  # noqa: F401
    except ImportError:
        return False
    return True


def _after_fork() -> None:
    """A forked child has none of the parent's threads: without this it would wait for them for ever."""
    global _pool, _was_forked
    _pool, _was_forked = None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
