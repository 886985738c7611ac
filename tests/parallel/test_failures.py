"""A rank that raises, dies, stops or hangs ends the run within seconds, with an error that names it; nobody is left."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from minipaged.parallel import ParallelSizeError, RankError, run_parallel, run_ranks

PATIENCE = 2.0


def misbehave(group, how: str, culprit: int):
    """Two all-reduces go well; then `culprit` does not come to the third."""
    for _ in range(2):
        group.all_reduce(torch.ones(3))
    if group.rank == culprit:
        if how == "raises":
            raise KeyError("block 17")
        if how == "hangs":
            time.sleep(600)
        if how == "exits":
            os._exit(3)
        os.kill(os.getpid(), {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[how])
    group.all_reduce(torch.ones(3))


@pytest.mark.parametrize(
    ("how", "num_ranks", "culprit", "words"),
    [
        ("raises", 2, 1, "rank 1 of 2 raised KeyError: 'block 17'"),
        ("raises", 3, 0, "rank 0 of 3 raised KeyError: 'block 17'"),
        ("dies", 2, 1, "rank 1 of 2 was ended by SIGKILL"),
        ("dies", 3, 0, "rank 0 of 3 was ended by SIGKILL"),
        ("exits", 2, 0, r"rank 0 of 2 ended without a result \(exit status 3\)"),
        ("stops", 2, 1, "rank 1 of 2 has given no sign of life for"),
        ("hangs", 3, 1, r"rank 1 of 3 hangs: the others have waited 2 s .* exchange 3, it has entered 2; it is at "
                        r"test_failures.py, line \d+, in misbehave"),
    ],
)  # fmt: skip
def test_the_run_ends_and_names_the_rank(how: str, num_ranks: int, culprit: int, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(RankError, match=words) as caught:
        run_ranks(misbehave, num_ranks, how, culprit, patience=PATIENCE, timeout=60, start="fork")
    assert caught.value.rank == culprit
    assert time.monotonic() - started < 30  # a hang would last for ever; this machine may be busy
    assert multiprocessing.active_children() == []
    if how == "raises":
        assert 'raise KeyError("block 17")' in caught.value.__notes__[0]


def gather_without(group, culprit: int):
    return group.gather(1) if group.rank != culprit else time.sleep(600)


def test_a_rank_that_has_nothing_to_say() -> None:
    with pytest.raises(RankError, match="rank 1 of 2 hangs: the others have waited 1 s for it in exchange 1"):
        run_ranks(gather_without, 2, 1, patience=1.0, timeout=60, start="fork")


def test_patience() -> None:
    with pytest.raises(ValueError, match=r"patience is 0\.1 s; give at least 1, 10 is usual"):
        run_ranks(lone, 1, patience=0.1, start="fork")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"patience": float("nan")}, "patience is nan s; give at least 1"),
        ({"patience": "10"}, "patience is '10' s; give at least 1"),
        ({"timeout": -1}, "timeout is -1; give a number of seconds above 0, or None"),
        ({"timeout": "60"}, "timeout is '60'; give a number of seconds above 0"),
        ({"start": "thread"}, "start is 'thread'; choose \"spawn\""),
        ({"device": "banana"}, "device is 'banana'; ranks run on \"cpu\""),
        ({"device": "mps"}, "device is 'mps'; ranks run on \"cpu\""),
        ({"device": "cuda:99"}, "needs GPU 99, but there are"),
        ({"dtype": torch.int8}, "dtype torch.int8 is not one of torch.float32"),
        ({"dtype": "float32"}, "dtype float32 is not one of torch.float32"),
    ],
)
def test_a_wrong_setting_is_refused_before_any_process_starts(settings: dict, words: str, monkeypatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", None)  # from here on it would be too late
    with pytest.raises(ValueError, match=words):
        run_parallel("Four score", **settings)


def wait_for(group, number: int):
    return group.rank if group.rank != number else time.sleep(600)


def test_a_limit_for_all_of_it() -> None:
    with pytest.raises(RankError, match=r"rank 1 is not done after 2 s \(not done: 1\)"):
        run_ranks(wait_for, 2, 1, timeout=2, start="fork")
    assert multiprocessing.active_children() == []


def exchange(group, values: list[int]):
    """Every kind of exchange, and a rank that leaves long after the others."""
    summed = group.all_reduce(torch.tensor([values[group.rank], 1]))
    told = group.broadcast("from 2" if group.rank == 2 else None, source=2)
    names = group.gather(f"rank {group.rank}")
    group.barrier()
    if group.rank == 0:
        time.sleep(1.5)  # the others are done: nobody misses them
    return summed.tolist(), told, names, group.num_all_reduces


def test_exchanges() -> None:
    got = run_ranks(exchange, 3, [5, 6, 7], patience=1.0, start="fork")
    assert got == [([18, 3], "from 2", ["rank 0", "rank 1", "rank 2"], 1)] * 3
    assert run_ranks(lone, 1, start="fork") == [(3, "told", 0)]


def lone(group):
    return int(group.all_reduce(torch.tensor(3))), group.broadcast("told"), group.num_all_reduces


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there(device: str) -> None:
    with pytest.raises(ValueError, match=r"needs GPU [01], but there are 0"):
        run_ranks(lone, 2, device=device, start="fork")


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None])
def test_a_number_of_ranks(bad: object) -> None:
    with pytest.raises(ParallelSizeError, match=r"num_ranks is .*; give a whole number"):
        run_ranks(lone, bad)
