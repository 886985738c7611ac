"""The paper's Fig. 2 on a laptop: four systems, one trace, the same bytes; and sweeps over many settings."""

import pickle
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

from tqdm import tqdm

from minipaged.fragmentation.simulation import Result, simulate
from minipaged.fragmentation.systems import make_system
from minipaged.workloads import Workload

# OPT-13B needs 800 KiB of KV for a token (2 · 40 layers · 5120 · 2 bytes); the paper's GPU has 12 GiB left for it.
POOL_SLOTS = 12 * 2**30 // (2 * 40 * 5120 * 2)

SYSTEMS = ("max", "pow2", "oracle", "paged")

# Kwon et al., SOSP 2023, Fig. 2: percent of KV memory. The last one is vLLM, for which only token states are given.
PAPER: dict[str, dict[str, float]] = {
    "max": {"tokens": 20.4, "reservation": 13.3, "internal": 57.3, "external": 8.9},
    "pow2": {"tokens": 26.8, "reservation": 17.9, "internal": 13.6, "external": 41.6},
    "oracle": {"tokens": 38.2, "reservation": 25.2, "internal": 0.0, "external": 36.6},
    "paged": {"tokens": 96.3},
}


def compare(
    requests: Iterable[Workload],
    systems: Iterable[str] = SYSTEMS,
    pool_slots: int = POOL_SLOTS,
    allocator: str = "buddy",
    block_size: int = 16,
    steps_per_second: float = 1.0,
) -> dict[str, Result]:
    """Every system on the same requests and the same bytes. `steps_per_second` turns their arrivals into steps."""
    requests = list(requests)  # an iterator would be used up by the first system
    made = {name: make_system(name, pool_slots, allocator, block_size) for name in systems}
    return {name: simulate(requests, system, steps_per_second=steps_per_second) for name, system in made.items()}


Setting = TypeVar("Setting")
Outcome = TypeVar("Outcome")


def sweep(
    function: Callable[[Setting], Outcome],
    settings: Sequence[Setting],
    executor: Executor | None = None,
    progress: bool = True,
) -> list[Outcome]:
    """`function` of every setting, in order, on all cores, with a progress bar.

    `executor` may be any `concurrent.futures` executor, or an object with its `submit`. To use a Dask cluster:

        from distributed import Client
        sweep(function, settings, Client("tcp://scheduler:8786").get_executor())

    By default a process pool of the standard library is made and closed. `function` must be importable then: written
    with `def` in a module. The first setting that fails ends the sweep with its error; those not begun are cancelled.
    """
    if executor is None:
        try:
            pickle.dumps(function)
        except Exception as error:
            raise ValueError(
                f"{function!r} cannot be sent to another process ({error}); write it with def in a module, or give "
                "executor=ThreadPoolExecutor()"
            ) from None
        with ProcessPoolExecutor() as own:
            return sweep(function, settings, own, progress)
    if not hasattr(executor, "submit"):
        raise ValueError(f"executor is {executor!r}; give a concurrent.futures executor, or None for a process pool")
    futures = [executor.submit(function, setting) for setting in settings]
    try:
        with tqdm(total=len(futures), disable=not progress) as bar:
            # Only the standard library's futures can be waited for together; others are awaited in order.
            for future in as_completed(futures) if all(isinstance(f, Future) for f in futures) else futures:
                future.result()
                bar.update()
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise
