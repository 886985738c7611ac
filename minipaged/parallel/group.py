"""The ranks of a run, as one of them sees it: who it is, and the few ways in which ranks exchange something.

Two kinds of messages travel. Partial sums (tensors) go through the data group: gloo on a CPU, NCCL on GPUs. What rank 0
decides (lists of numbers) goes through a gloo group of its own, in which ranks may wait for as long as rank 0 is idle.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from minipaged.parallel.watch import RankError, Watch

PATIENCE = 10.0  # seconds that the others wait for a rank in an all-reduce before the run ends
SHORTEST_PATIENCE = 1.0  # four signs of life
JOINING = timedelta(seconds=120)  # for all ranks to start and meet: Python imports torch meanwhile
IDLE = timedelta(days=30)


class RankGroup:
    """One rank among `num_ranks`. Every rank must make the same calls, in the same order.

    num_all_reduces, num_all_reduce_bytes   what this rank has brought to all-reduces so far
    """

    def __init__(self, rank: int = 0, num_ranks: int = 1, device: str | torch.device = "cpu", watch=None, control=None):
        self.rank, self.num_ranks, self.device = rank, num_ranks, torch.device(device)
        self.num_all_reduces = self.num_all_reduce_bytes = 0
        self._watch: Watch | None = watch
        self._control = control

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of what all ranks bring; the same on every rank, to the last bit."""
        if self.num_ranks == 1:
            return part
        self.num_all_reduces += 1
        self.num_all_reduce_bytes += part.nbytes
        total = part.clone(memory_format=torch.contiguous_format)
        self._exchange(dist.all_reduce, total)
        return total

    def broadcast(self, value: Any = None, source: int = 0) -> Any:
        """What rank `source` gives, on every rank. For rank 0 the others wait as long as it takes: it may be idle."""
        if self.num_ranks == 1:
            return value
        mine = self.rank == source
        payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8) if mine else None
        size = torch.tensor([len(payload) if mine else 0])
        self._exchange(dist.broadcast, size, source, group=self._control, idle=source == 0 and not mine)
        payload = payload if mine else torch.empty(int(size), dtype=torch.uint8)
        self._exchange(dist.broadcast, payload, source, group=self._control)
        return value if mine else pickle.loads(payload.numpy().tobytes())

    def gather(self, value: Any) -> list[Any]:
        """What every rank gives, in the order of the ranks; on every rank."""
        return [self.broadcast(value, source) for source in range(self.num_ranks)]

    def barrier(self) -> None:
        """Wait until all ranks are here, as long as it takes: one may still load its part of a model."""
        if self.num_ranks > 1:
            self._exchange(dist.barrier, group=self._control, idle=True)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank ends with an error, so that they end with its words."""
        if self._watch is not None:
            with suppress(RuntimeError):  # the store is gone already
                self._watch.tell_failure(error)

    def close(self) -> None:
        """Leave the group. All ranks leave after the same last exchange; nobody is missed from now on."""
        if self._watch is not None:
            self._watch.stop()
            dist.destroy_process_group()
            self._watch = None

    def _exchange(self, operation: Callable, *args, idle: bool = False, **kwargs) -> None:
        try:
            with self._watch.exchange(idle):
                operation(*args, **kwargs)
        except RuntimeError as error:
            raise self._watch.who_broke(error) from error


class Place(NamedTuple):
    """Where a rank computes, and how partial sums travel."""

    device: torch.device
    backend: str  # of torch.distributed


ON_CPU = Place(torch.device("cpu"), "gloo")


def place_of(device: str, local_rank: int) -> Place:
    """ "cpu": gloo. "cuda": a GPU for each rank of this machine, and NCCL. "cuda:0": all ranks share this GPU.

    NCCL refuses two ranks on one GPU, so there gloo adds up, through host memory: slow, but it shows the same.
    Raises ValueError for a GPU that is not there.
    """
    wanted = check_device(device, local_rank)
    if wanted.type == "cpu":
        return ON_CPU
    index = local_rank if wanted.index is None else wanted.index
    torch.cuda.set_device(index)
    return Place(torch.device("cuda", index), "nccl" if wanted.index is None else "gloo")


def check_device(device: str, local_rank: int) -> torch.device:
    """The device, if this rank of a machine can have it; no GPU is touched. Raises ValueError as `place_of` does."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):
        raise ValueError(
            f'device is {device!r}; ranks run on "cpu", on a GPU each ("cuda"), or share one ("cuda:0"): choose one'
        )
    if wanted.type == "cpu":
        return wanted
    index, found = local_rank if wanted.index is None else wanted.index, torch.cuda.device_count()
    if index >= found:
        raise ValueError(
            f"rank {local_rank} of this machine needs GPU {index}, but there are {found}: start fewer ranks, let all "
            'of them share one with device "cuda:0", or run on "cpu"'
        )
    return wanted


def check_patience(patience: float) -> None:
    """Raises ValueError for what is no number of seconds, or too short for a sign of life."""
    is_number = isinstance(patience, int | float) and not isinstance(patience, bool)
    if not is_number or not SHORTEST_PATIENCE <= patience < float("inf"):
        raise ValueError(f"patience is {patience!r} s; give at least {SHORTEST_PATIENCE:g}, 10 is usual")


def join(
    rank: int,
    num_ranks: int,
    store: dist.Store,
    place: Place = ON_CPU,
    patience: float = PATIENCE,
    on_end: Callable[[RankError], None] | None = None,
    local: bool = True,
) -> RankGroup:
    """Meet the other ranks over a store that all reach. `local`: all are on this machine, so gloo does not leave it."""
    check_patience(patience)
    if num_ranks == 1:
        return RankGroup(device=place.device)
    if local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    watch = Watch(store.clone(), rank, num_ranks, patience, on_end)
    meeting = dist.PrefixStore("minipaged/data", store)
    dist.init_process_group(place.backend, store=meeting, rank=rank, world_size=num_ranks, timeout=JOINING)
    control = dist.new_group(backend="gloo", timeout=IDLE)
    watch.start()
    return RankGroup(rank, num_ranks, place.device, watch, control)


def join_from_torchrun(device: str = "cpu", patience: float = PATIENCE) -> RankGroup:
    """Meet the ranks that torchrun started, with a device as in `place_of`.

    Raises ValueError where torchrun did not start this process, or a rank's GPU is not there.
    """
    if "RANK" not in os.environ:
        raise ValueError(
            "no rank is given in the environment: start this program with torchrun, as in "
            '`torchrun --nproc-per-node 2 -m minipaged.parallel.generate "Four score and seven"`'
        )
    rank, num_ranks, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    place = place_of(device, local_rank)
    if num_ranks == 1:
        return RankGroup(device=place.device)
    store, rank, num_ranks = next(dist.rendezvous("env://", timeout=JOINING))
    local = os.environ.get("LOCAL_WORLD_SIZE") == str(num_ranks)
    return join(rank, num_ranks, store, place, patience, local=local)


def _loopback() -> str:
    """The name of the interface that is 127.0.0.1: "lo" on Linux, "lo0" on macOS."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "lo")
