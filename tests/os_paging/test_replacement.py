"""Replacement: what theory promises, the literature's figures, pins, policies of one's own, bad input."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.os_paging import (
    BELADY,
    LRU,
    OPT,
    POLICIES,
    TRACES,
    Pin,
    PolicyError,
    average_access_ns,
    count_faults,
    make_policy,
    simulate,
    take_turns,
)
from minipaged.os_paging.benchmark import benchmark, straightforward_lru
from minipaged.os_paging.traces import phases

references = st.lists(st.integers(0, 7), max_size=60)
every_policy = pytest.mark.parametrize("policy", list(POLICIES))
OSTEP_TRACE = [0, 1, 2, 0, 1, 3, 0, 3, 1, 2, 1]


def fewest_faults(trace, num_frames):
    """The true optimum, by trying every choice: what OPT has to reach."""
    states = {frozenset(): 0}
    for page in trace:
        following = {}
        for memory, faults in states.items():
            if page in memory:
                choices = [(memory, faults)]
            elif len(memory) < num_frames:
                choices = [(memory | {page}, faults + 1)]
            else:
                choices = [(memory - {victim} | {page}, faults + 1) for victim in memory]
            for state, count in choices:
                following[state] = min(count, following.get(state, count))
        states = following
    return min(states.values())


@settings(max_examples=100, deadline=None)
@given(trace=references, frames=st.integers(1, 5))
def test_opt_reaches_the_true_optimum(trace, frames):
    best = fewest_faults(trace, frames)
    assert count_faults(trace, frames, "opt") == best
    assert all(count_faults(trace, frames, policy) >= best for policy in POLICIES)


@pytest.mark.parametrize("policy", ["lru", "opt"])
@given(trace=references)
def test_stack_algorithms_gain_from_every_frame(policy, trace):
    faults = [count_faults(trace, frames, policy) for frames in range(1, 9)]
    assert faults == sorted(faults, reverse=True)


@given(trace=references, frames=st.integers(1, 5))
def test_lru_holds_what_was_used_last(trace, frames):
    for step in simulate(trace, frames, "lru").steps:
        recent = list(dict.fromkeys(reversed(trace[: step.index + 1])))[:frames]
        assert set(step.frames) - {None} == set(recent)


@every_policy
@given(trace=references, frames=st.integers(1, 5))
def test_counting_and_tracing_agree(policy, trace, frames):
    run = simulate(trace, frames, policy)
    assert run.faults == count_faults(trace, frames, policy)
    assert run.faults + run.hits == len(trace)
    assert run.faults >= len(set(trace))
    for step in run.steps:
        assert step.page in step.frames
        assert step.evicted not in step.frames or step.evicted is None


@given(trace=references, frames=st.integers(1, 5))
def test_the_straightforward_version_agrees(trace, frames):
    assert straightforward_lru(trace, frames) == count_faults(trace, frames, "lru")


def test_belady():
    """Belady, Nelson, Shedler, CACM 12(6), 1969: FIFO faults 9 times with 3 frames and 10 times with 4."""
    assert [count_faults(BELADY, frames, "fifo") for frames in (3, 4)] == [9, 10]


@pytest.mark.parametrize(("policy", "faults"), [("opt", 5), ("fifo", 7), ("lru", 5)])
def test_ostep_trace(policy, faults):
    """OSTEP chapter 22: 11 references, 3 frames; misses of the optimum, FIFO and LRU."""
    assert count_faults(OSTEP_TRACE, 3, policy) == faults


def test_ostep_victims():
    """OSTEP chapter 22: the optimum sends 2 away, then 3; FIFO 0, 1, 2, 3; LRU 2, then 0."""
    assert simulate(OSTEP_TRACE, 3, "opt").evicted == [2, 3]
    assert simulate(OSTEP_TRACE, 3, "fifo").evicted == [0, 1, 2, 3]
    assert simulate(OSTEP_TRACE, 3, "lru").evicted == [2, 0]


def test_ostep_looping_workload():
    """OSTEP chapter 22: 50 pages in a loop; below 50 frames LRU and FIFO never hit, with 50 they always do."""
    trace = TRACES["loop"](50, 10_000)
    assert count_faults(trace, 49, "lru") == count_faults(trace, 49, "fifo") == 10_000
    assert count_faults(trace, 50, "lru") == count_faults(trace, 50, "fifo") == 50
    assert count_faults(trace, 49, "opt") < 300


def test_ostep_average_access_time():
    """OSTEP chapter 22: memory 100 ns, disk 10 ms: at 90 % hits about 1 ms an access, at 99.9 % about 10.1 µs."""
    assert average_access_ns(0.1) == pytest.approx(1_000_100)
    assert average_access_ns(0.001) == pytest.approx(10_100)


def test_the_exercise_and_fifo():
    assert simulate([1, 2, 3, 1, 4], 3, "lru").evicted == [2]
    assert simulate([1, 2, 3, 1, 4], 3, "fifo").evicted == [1]


def test_clock_gives_a_second_chance():
    """All are used when 4 comes, so the hand clears every bit and takes 1; 2 is used again and is passed over."""
    run = simulate([1, 2, 3, 4, 2, 5], 3, "clock")
    assert run.evicted == [1, 3]
    assert simulate([1, 2, 3, 4, 2, 5], 3, "fifo").evicted == [1, 2]


def test_clock_is_fifo_when_nothing_is_used_twice():
    trace = list(range(20))
    assert simulate(trace, 3, "clock").evicted == simulate(trace, 3, "fifo").evicted


@every_policy
@settings(max_examples=60, deadline=None)
@given(
    trace=references,
    frames=st.integers(1, 4),
    pins=st.lists(st.builds(Pin, st.integers(0, 7), st.integers(0, 20), st.integers(10, 60)), max_size=3),
)
def test_pinned_pages_stay(policy, trace, frames, pins):
    for step in simulate(trace, frames, policy, pins).steps:
        assert step.evicted not in step.pinned
        if step.refused:
            assert step.pinned.issuperset(step.frames)
            assert step.page not in step.frames
        else:
            assert step.page in step.frames


def test_all_frames_pinned_is_an_answer():
    run = simulate([1, 2, 3, 3], 2, "lru", pins=[Pin(1, 0, 2), Pin(2, 0, 2)])
    assert [step.outcome for step in run.steps] == [
        "fault",
        "fault",
        "fault, refused: every frame is pinned",
        "fault, 1 leaves",
    ]
    assert run.lines()[2] == "3  [1] [2]  fault, refused: every frame is pinned"


class Newest(LRU):
    """Most recently used leaves: better than LRU on a loop."""

    name = "newest"

    def victim(self, pinned):
        return next(page for page in reversed(self._order) if page not in pinned)


def test_a_policy_of_ones_own():
    trace = TRACES["loop"](5, 100)
    assert count_faults(trace, 4, Newest()) < count_faults(trace, 4, "lru") == 100
    assert simulate(trace, 4, Newest()).policy == "newest"


@pytest.mark.parametrize(
    ("victim", "message"),
    [(lambda pinned: 1, "policy Liar chose page 1, which is pinned"), (lambda pinned: 9, "chose 9, which is not in")],
)
def test_a_lying_policy_is_named(victim, message):
    liar = type("Liar", (LRU,), {"name": "Liar", "victim": lambda self, pinned: victim(pinned)})()
    with pytest.raises(PolicyError, match=message):
        simulate([1, 2, 3], 2, liar, pins=[Pin(1, 0, 5)])


def test_opt_wants_its_own_trace():
    with pytest.raises(PolicyError, match="opt looks into the future: give it the trace"):
        make_policy("opt")
    with pytest.raises(PolicyError, match="page 3 is not next in the trace"):
        simulate([1, 3], 2, OPT([1, 2]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2], 0), ValueError, "num_frames is 0, but must be at least 1"),
        (([1, -2], 2), ValueError, "the trace holds page -2, but pages count from 0"),
        (([1, 2.0], 2), TypeError, "the trace holds float, but pages are ints"),
        (([1, True], 2), TypeError, "the trace holds bool"),
        (([1, 2], 2, "mru"), PolicyError, "no replacement policy 'mru': choose one of 'fifo', 'lru', 'clock', 'opt'"),
    ],
)
@pytest.mark.parametrize("run", [simulate, count_faults])
def test_bad_input(run, arguments, error, message):
    with pytest.raises(error, match=message):
        run(*arguments)


def test_traces_have_the_habits_they_promise():
    for name, make in TRACES.items():
        trace = make(100, 2000, seed=3)
        assert (len(trace), trace) == (2000, make(100, 2000, seed=3)), name
        assert set(trace) <= set(range(100))
    hot = sum(page < 20 for page in TRACES["80-20"](100, 20_000))
    assert 0.78 < hot / 20_000 < 0.82
    trace = phases(100, 2000, working_set=10, phase=500)
    assert all(len(set(trace[begin : begin + 500])) == 10 for begin in range(0, 2000, 500))
    assert TRACES["80-20"](1, 3) == [0, 0, 0]
    with pytest.raises(ValueError, match="num_pages is 0"):
        TRACES["loop"](0, 5)
    with pytest.raises(ValueError, match="working_set is 11, but must be from 1 to 5"):
        phases(5, 10, working_set=11)


def test_the_benchmark_counts_the_same_faults():
    results = benchmark(length=5_000, num_frames=50, num_pages=200)
    assert results["lru"][0] == results["OrderedDict LRU"][0]
    assert results["opt"][0] == min(faults for faults, _ in results.values())


def test_opt_cleans_its_heap():
    """Many hits leave many outdated entries; the heap must not grow with the trace."""
    trace = list(itertools.islice(itertools.cycle(range(20)), 20_000))
    policy = OPT(trace)
    assert count_faults(trace, 20, policy) == 20
    assert len(policy._heap) < 2_000


def test_programs_that_take_turns_thrash_when_their_working_sets_do_not_fit():
    rates = [count_faults(take_turns(n, 3_000), 32, "lru") / 3_000 for n in (1, 3, 5)]
    assert rates[0] < 0.01
    assert rates[1] < 0.02
    assert rates[2] > 0.1
    assert set(take_turns(3, 3_000)) == set(range(30))
    with pytest.raises(ValueError, match="num_programs is 0"):
        take_turns(0, 10)


@pytest.mark.parametrize("run", [simulate, count_faults])
@pytest.mark.parametrize("policy", [None, 3, LRU])
def test_what_is_no_policy_is_refused(run, policy):
    with pytest.raises(PolicyError, match=r"is no replacement policy|is a class"):
        run([1, 2], 3, policy)


def test_recording_has_a_limit_and_counting_has_none():
    with pytest.raises(ValueError, match=r"num_frames is 1000000000000, but must be from 1 to 65536.*count_faults"):
        simulate([1, 2, 1], 10**12)
    assert count_faults([1, 2, 1], 10**12) == 2
