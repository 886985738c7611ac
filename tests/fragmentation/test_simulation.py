"""Every slot has one owner at every step; the jumps from event to event equal a walk step by step; the paper's bars."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.fragmentation import PAPER, POOL_SLOTS, Paged, Parts, compare, make_system, simulate, sweep
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


def walk(requests, system):
    """The same policy, one step at a time, in the plainest way: mean token slots while somebody waits."""
    from minipaged.fragmentation.systems import Running

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
    for name, result in results.items():
        assert result.shares["tokens"] == pytest.approx(PAPER[name]["tokens"], abs=5)
    for name in ("max", "oracle"):
        for part, share in PAPER[name].items():
            assert results[name].shares[part] == pytest.approx(share, abs=5), (name, part)
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
        with pytest.raises(ValueError, match=r"50 \+ 2000 tokens, more than the 2048"):
            simulate(workload_b(1), make_system(name, 4096))
    with pytest.raises(ValueError, match="pool_slots is 3"):
        Paged(3)


def test_no_requests():
    result = simulate([], Paged(160))
    assert (result.finished, result.steps, result.requests_per_step) == (0, 0, 0.0)


def square(x):
    return x * x


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
