"""Every slot has one owner at every step; the jumps from event to event equal a walk step by step; the paper's bars."""

import math
import os
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.fragmentation import PAPER, POOL_SLOTS, Paged, Parts, compare, make_system, simulate, sweep
from minipaged.fragmentation.systems import Running, duplicate_tokens
from minipaged.os_paging.contiguous import FirstFit
from minipaged.workloads import Workload, shared_prefix, sharegpt_like, workload_a, workload_b

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=25)
NAMES = st.sampled_from(["max", "pow2", "oracle", "paged"])
KINDS = st.sampled_from(["first fit", "best fit", "next fit", "buddy"])


@settings(deadline=None, max_examples=120)
@given(lengths=LENGTHS, name=NAMES, kind=KINDS, block_size=st.integers(1, 9), spare=st.integers(0, 200))
def test_parts_sum_to_the_pool_and_all_finish(lengths, name, kind, block_size, spare):
    requests = [Workload(float(arrival), prompt, output) for prompt, output, arrival in lengths]
    slots = 2048 + spare if name in ("max", "pow2") else 70 + spare
    system = make_system(name, slots, kind, block_size)

    def watch(step, running, parts):
        assert parts.total == system.pool_slots
        assert min(parts) >= 0

    result = simulate(requests, system, watch=watch)
    assert result.finished == len(requests)
    assert system.parts([], False) == Parts(0, 0, 0, 0, 0, system.pool_slots)
    if not result.preemptions:
        assert result.computed_tokens == sum(request.total_tokens for request in requests)


PREFIXED = st.tuples(
    st.integers(1, 40), st.integers(1, 30), st.sampled_from(["a", "b", None]), st.integers(0, 40), st.integers(0, 30)
)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(PREFIXED, min_size=1, max_size=20),
    block_size=st.integers(1, 9),
    share=st.booleans(),
    watermark=st.sampled_from([0.0, 0.1, 0.5]),
    max_running=st.one_of(st.none(), st.integers(1, 4)),
)
def test_parts_sum_with_prefixes_sharing_watermark_and_a_limited_batch(rows, block_size, share, watermark, max_running):
    requests = [
        Workload(float(arrival), prompt, output, name, min(prompt, prefix) if name else 0)
        for prompt, output, name, prefix, arrival in rows
    ]
    system = Paged(80, block_size, share, watermark)

    def watch(step, running, parts):
        assert parts.total == system.pool_slots
        assert min(parts) >= 0
        assert len(running) <= (max_running or len(requests))
        system.manager.check_integrity()

    assert simulate(requests, system, max_running, watch=watch).finished == len(requests)


def test_steps_per_second_spread_the_arrivals():
    requests = sharegpt_like(200, rate=1.0)
    slow, fast = (compare(requests, ("paged",), steps_per_second=speed)["paged"] for speed in (1, 50))
    assert slow.saturated_steps > 0
    assert fast.saturated_steps == 0


def walk(requests, system):
    """The same policy, one step at a time, in the plainest way: mean token slots while somebody waits."""
    waiting = [Running(request, number) for number, request in enumerate(requests)]
    running, total, steps = [], 0, 0
    while waiting or running:
        for request in list(running):
            if request.cached == request.workload.total_tokens:
                system.release(request)
                running.remove(request)
        for request in list(running):
            if request in running and system.room(request) == 0:
                while not system.grow(request):
                    victim = running.pop()
                    system.release(victim)
                    waiting.insert(0, victim)
                    if victim is request:
                        break
        while waiting and system.admit(waiting[0]):
            running.append(waiting.pop(0))
        running.sort(key=lambda request: request.number)
        if waiting:
            total += system.parts(running, True).tokens
            steps += 1
        for request in running:
            request.cached += 1
    return 100 * total / (steps * system.pool_slots) if steps else 0.0


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, name=st.sampled_from(["oracle", "paged"]), block_size=st.integers(1, 5))
def test_small_token_share_equals_a_walk(lengths, name, block_size):
    requests = [Workload(0.0, prompt, output) for prompt, output, _ in lengths]
    jumping = simulate(requests, make_system(name, 75, "buddy", block_size))
    assert jumping.shares["tokens"] == pytest.approx(walk(requests, make_system(name, 75, "buddy", block_size)))


@pytest.mark.parametrize("name", ["max", "pow2", "oracle", "paged"])
def test_token_share_equals_a_walk_step_by_step(name):
    requests = sharegpt_like(120, seed=3)
    jumping = simulate(requests, make_system(name, 6000))
    assert jumping.shares["tokens"] == pytest.approx(walk(requests, make_system(name, 6000)))


def test_the_papers_figure_2():
    """OPT-13B's pool, ShareGPT-like lengths, buddy, saturation: our figures, held; the paper's within 5 points."""
    results = compare(sharegpt_like(1000))
    parts = ("tokens", "reservation", "internal", "external", "free")
    ours = {
        "max": (20.1, 13.3, 57.8, 8.9, 0.0),
        "pow2": (29.9, 19.7, 14.7, 35.6, 0.0),
        "oracle": (38.4, 25.3, 0.0, 36.3, 0.0),
        "paged": (97.1, 0.0, 1.8, 0.0, 1.0),
    }
    for name, shares in ours.items():
        assert [results[name].shares[part] for part in parts] == pytest.approx(shares, abs=0.06), name
    for name, result in results.items():
        assert result.shares["tokens"] == pytest.approx(PAPER[name]["tokens"], abs=5)
    missed = [
        (name, part)
        for name in PAPER
        for part, share in PAPER[name].items()
        if results[name].shares[part] != pytest.approx(share, abs=5)
    ]
    assert missed == [("pow2", "external")]  # the lesson says so, and shows the assumption that moves it
    assert results["paged"].shares["external"] == 0
    running = [results[name].mean_running for name in ("max", "pow2", "oracle", "paged")]
    assert running == sorted(running)
    assert POOL_SLOTS == 15728


def test_workloads_a_and_b():
    ample = 20000
    a = simulate(workload_a(), Paged(ample * 16))
    b = simulate(workload_b(), Paged(ample * 16))
    assert (a.computed_tokens, b.computed_tokens) == (6000, 205000)
    assert a.preemptions == b.preemptions == 0
    tight = simulate(workload_b(), Paged(600 * 16))
    assert tight.preemptions > 0
    assert tight.finished == 100


def test_sharing_removes_the_duplicates():
    requests = shared_prefix(500, prefix_tokens=341)
    alone = simulate(requests, Paged(POOL_SLOTS))
    shared = simulate(requests, Paged(POOL_SLOTS, share=True))
    assert alone.shares["duplicate"] > 50
    assert shared.shares["duplicate"] == 0
    assert shared.most_running > 2 * alone.most_running


def test_mean_last_block_waste_is_half_a_block():
    waste = []

    def watch(step, running, parts):
        waste.append((parts.internal, len(running)))

    simulate(sharegpt_like(300), Paged(POOL_SLOTS, 16), watch=watch)
    mean = sum(w for w, _ in waste) / sum(n for _, n in waste)
    assert 5 < mean < 16


def test_bad_input():
    with pytest.raises(ValueError, match=r"request 0 \(50 \+ 2000 tokens\) does not fit into paged's pool of 160"):
        simulate(workload_b(1), Paged(160))
    with pytest.raises(ValueError, match="system 'orca' is unknown"):
        make_system("orca", 100)
    with pytest.raises(ValueError, match="max_running is 0"):
        simulate(workload_a(1), Paged(160), max_running=0)
    for name in ("max", "pow2"):
        with pytest.raises(ValueError, match=r"request 0: 50 \+ 2000 tokens are more than the 2048"):
            simulate(workload_b(1), make_system(name, 4096))
    for wrong, message in (
        (lambda: Paged(3), "pool_slots is 3"),
        (lambda: Paged(100, 0), "block_size is 0"),
        (lambda: Paged(100.5), "pool_slots must be an int, got 100.5"),
        (lambda: Paged(160, watermark=-0.1), "watermark is -0.1"),
        (lambda: Paged(160, watermark=1), "watermark is 1"),
        (lambda: Paged(160, watermark=math.nan), "watermark is nan"),
        (lambda: make_system("oracle", 160, FirstFit(100)), "free_total is 100, but the pool has 160 slots"),
        (lambda: make_system("oracle", 160, None), "free_total is None"),
        (lambda: simulate([], Paged(160), steps_per_second=math.inf), "steps_per_second is inf"),
        (lambda: simulate([], Paged(160), max_running=1.5), "max_running must be an int, got 1.5"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            wrong()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ((0.0, 5, 1), r"request 1 is \(0.0, 5, 1\); write Workload"),
        (Workload(0.0, -5, 1), "request 1: prompt_tokens is -5"),
        (Workload(0.0, 5, 0), "request 1: output_tokens is 0"),
        (Workload(0.0, 5.5, 1), "request 1: prompt_tokens is 5.5"),
        (Workload(math.nan, 5, 1), "request 1: arrival is nan"),
        (Workload(-1.0, 5, 1), "request 1: arrival is -1"),
        (Workload(1e308, 5, 1), "request 1: arrival is 1e.308"),
        (Workload(0.0, 5, 1, "a", 9), "request 1: prefix_tokens is 9, more than the 5"),
        (Workload(0.0, 5, 1, None, 3), "request 1: prefix_tokens is 3, but prefix_id is missing"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(request_, message):
    system = Paged(160)
    with pytest.raises(ValueError, match=message):
        simulate([Workload(0.0, 5, 1), request_], system, steps_per_second=100)
    assert simulate([Workload(0.0, 5, 1)], system).finished == 1


def test_a_system_in_use_is_refused():
    system = Paged(1600)
    with pytest.raises(KeyError):
        simulate(workload_a(2), system, watch=lambda *_: {}["stopped by the watcher"])
    with pytest.raises(ValueError, match="paged's pool is in use by another run"):
        simulate(workload_a(2), system)


class Broken(FirstFit):
    """An allocator with one fault."""

    def __init__(self, total: int, fault: str) -> None:
        super().__init__(total)
        self.fault = fault

    def allocate(self, size: int) -> int | None:
        return None if self.fault == "refuses" else 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuses", r"oracle refuses request 0 \(50 \+ 10 tokens\) although nothing runs"),
        ("takes nothing", r"allocate\(60\) returned 0, but free_total went from 400 to 400"),
    ],
)
def test_a_broken_allocator_is_named_and_does_not_hang(fault, message):
    with pytest.raises(ValueError, match=message):
        simulate(workload_a(2), make_system("oracle", 400, Broken(400, fault)))


def test_the_order_of_the_trace_does_not_matter():
    requests = sharegpt_like(60, rate=0.05, seed=3)
    turned = list(reversed(requests))
    assert simulate(turned, Paged(4096)) == simulate(requests, Paged(4096))


def test_requests_take_no_memory_before_they_run():
    def grown(n):
        requests = [Workload(0.0, 1, 1)] * n
        system = Paged(16)
        tracemalloc.start()
        simulate(requests, system)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    grown(10)
    assert grown(4000) - grown(1000) < 3000 * 40  # two lists of the trace: pointers of 8 bytes, and nothing else


def test_prefixes_of_one_name_are_beginnings_of_one_another():
    chat = [Running(Workload(0.0, n, 1, "chat", n), i) for i, n in enumerate((30, 120, 80))]
    other = [Running(Workload(0.0, 50, 1), 3), Running(Workload(0.0, 50, 1, "alone", 40), 4)]
    assert duplicate_tokens(chat + other) == 30 + 80


@pytest.mark.parametrize("share", [False, True])
def test_a_watermark_leaves_blocks_free_when_a_request_is_admitted(share):
    requests = shared_prefix(300, prefix_tokens=80)
    runs = {w: simulate(requests, Paged(3200, share=share, watermark=w)) for w in (0.0, 0.3)}
    assert runs[0.3].preemptions < runs[0.0].preemptions
    assert runs[0.3].shares["free"] > runs[0.0].shares["free"] + 5


def test_no_requests():
    result = simulate([], Paged(160))
    assert (result.finished, result.steps, result.requests_per_step) == (0, 0, 0.0)


def square(x):
    return x * x


def test_sweep_uses_several_processes_and_shows_its_progress(capfd):
    assert sweep(square, list(range(20))) == [x * x for x in range(20)]
    assert "20/20" in capfd.readouterr().err
    with ProcessPoolExecutor(2) as two:
        assert os.getpid() not in sweep(process_number, [1, 2, 3], two, progress=False)


def process_number(_):
    return os.getpid()


def test_sweep_says_what_it_cannot_use():
    with pytest.raises(ValueError, match=r"cannot be sent to another process .* write it with def"):
        sweep(lambda x: x, [1], progress=False)
    with pytest.raises(ValueError, match="executor is 'cluster'"):
        sweep(square, [1], "cluster", progress=False)


def test_compare_reads_an_iterator_once():
    requests = sharegpt_like(30)
    assert compare(iter(requests)) == compare(requests)


def test_sweep_in_order_over_any_executor():
    assert sweep(square, [3, 1, 2], progress=False) == [9, 1, 4]
    with ThreadPoolExecutor(2) as threads:
        assert sweep(square, [3, 1, 2], threads, progress=False) == [9, 1, 4]


def test_sweep_passes_an_error_on():
    def fail(x):
        raise RuntimeError(f"setting {x}")

    with ThreadPoolExecutor(1) as threads, pytest.raises(RuntimeError, match="setting 1"):
        sweep(fail, [1, 2], threads, progress=False)


def test_sweep_over_a_dask_cluster():
    """A cluster of threads in this process; `Client(address)` would reach a real one the same way."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        assert sweep(square, [3, 1, 2], client.get_executor(), progress=False) == [9, 1, 4]
