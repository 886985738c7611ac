"""The contiguous allocators: what must hold after any operations, worked figures, bad input."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.os_paging import (
    ALLOCATORS,
    AllocationError,
    BestFit,
    Buddy,
    FirstFit,
    NextFit,
    allocator,
    churn,
)

every_kind = pytest.mark.parametrize("name", list(ALLOCATORS))
operations = st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=80)


def fill(kind, sizes, total):
    """An allocator with `sizes` allocated in order, and their addresses."""
    memory = kind(total)
    return memory, [memory.allocate(size) for size in sizes]


@every_kind
@settings(max_examples=60, deadline=None)
@given(steps=operations, total=st.integers(60, 300))
def test_memory_is_tiled_after_every_operation(name, steps, total):
    memory, live = allocator(name, total), []
    for is_free, number in steps:
        if is_free and live:
            memory.free(live.pop(number % len(live)))
        else:
            holes = memory.holes()
            address = memory.allocate(number)
            if address is None:
                assert memory.holes() == holes
                assert name == "buddy" or memory.largest_hole < number
            else:
                live.append(address)
        memory.check_integrity()
        assert sorted(live) == [address for address, _, _ in memory.used()]
        assert memory.largest_hole == max((size for _, size in memory.holes()), default=0)
        assert memory.internal_waste == sum(granted - asked for _, granted, asked in memory.used())
    for address in live:
        memory.free(address)
    assert memory.free_total == total
    assert memory.holes() == allocator(name, total).holes(), "everything joins again"


@settings(max_examples=60, deadline=None)
@given(steps=operations)
def test_buddy_blocks_are_aligned_powers_of_two(steps):
    memory, live = Buddy(200), []
    for is_free, number in steps:
        if is_free and live:
            memory.free(live.pop(number % len(live)))
        elif (address := memory.allocate(number)) is not None:
            live.append(address)
        for address, size in [(a, g) for a, g, _ in memory.used()] + memory.holes():
            assert size & (size - 1) == 0
            assert address % size == 0
        free = set(memory.holes())
        assert not any((address ^ size, size) in free for address, size in free), "free buddies have joined"


@settings(max_examples=60, deadline=None)
@given(steps=operations)
def test_the_trace_agrees_with_the_definitions(steps):
    """First fit stops at the first hole that fits, best fit takes the smallest, next fit starts where it stopped."""
    for name in ("first fit", "best fit", "next fit"):
        trace = []
        memory, live = allocator(name, 200, trace=trace.append), []
        rover = 0
        for is_free, number in steps:
            before = dict(memory.holes())
            if is_free and live:
                memory.free(live.pop(number % len(live)))
                continue
            address = memory.allocate(number)
            step = trace[-1]
            assert (step.operation, step.size, step.address) == ("allocate", number, address)
            assert set(step.examined) <= set(before)
            if address is None:
                assert set(step.examined) == set(before)
                continue
            live.append(address)
            fitting = [start for start, size in before.items() if size >= number]
            if name == "first fit":
                assert address == min(fitting)
                assert list(step.examined) == sorted(start for start in before if start <= address)
            elif name == "best fit":
                assert address == min(fitting, key=lambda start: (before[start], start))
            else:
                later = [start for start in fitting if start + before[start] > rover]
                assert address == min(later or fitting)
                assert step.examined[-1] == address
                rover = address + number
        assert [step.operation for step in trace].count("free") <= len(steps)


def test_ten_free_ten_used_ten_free_refuses_fifteen():
    """OSTEP chapter 17, the first example: a heap of 30 with 10 used in the middle has 20 free, but not 15."""
    memory, (first, _, last) = fill(FirstFit, [10, 10, 10], 30)
    memory.free(first)
    memory.free(last)
    assert memory.free_total == 20
    assert memory.allocate(15) is None
    assert memory.external_fragmentation == 0.5


def test_holes_of_10_30_20_and_a_request_for_15():
    """OSTEP chapter 17, the strategies' example: best fit leaves 5 of the 20, first fit 15 of the 30."""
    left = {}
    for kind in (FirstFit, BestFit):
        memory, addresses = fill(kind, [10, 1, 30, 1, 20], 62)
        for address in addresses[::2]:
            memory.free(address)
        memory.allocate(15)
        left[kind] = [size for _, size in memory.holes()]
    assert left == {FirstFit: [10, 15, 20], BestFit: [10, 30, 5]}


def test_buddy_splits_64_kib_for_7_kib():
    """OSTEP chapter 17, the buddy example: 64 KiB splits into 32, 16, 8; the leftmost 8 KiB is given, 1 KiB wasted."""
    trace = []
    memory = Buddy(64, trace=trace.append)
    assert memory.allocate(7) == 0
    assert memory.holes() == [(8, 8), (16, 16), (32, 32)]
    assert memory.internal_waste == 1
    assert trace[0].examined == (8, 16, 32, 64)
    memory.free(0)
    assert memory.holes() == [(0, 64)]


def test_next_fit_does_not_return_to_the_front_at_once():
    memory, addresses = fill(NextFit, [10, 10, 10], 40)
    memory.free(addresses[0])
    assert memory.allocate(5) == 30
    assert memory.allocate(8) == 0, "nothing fits behind the last allocation, so the search wraps"


def test_buddy_with_a_total_that_is_no_power_of_two():
    memory = Buddy(15_728)
    assert [size for _, size in memory.holes()] == [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    assert memory.allocate(9000) is None, "rounded up to 16,384, which memory has not"


def test_min_block():
    memory = Buddy(64, min_block=8)
    memory.allocate(1)
    assert memory.used() == [(0, 8, 1)]
    assert memory.internal_waste == 7
    with pytest.raises(ValueError, match="min_block is 6, which is no power of two: use 4 or 8"):
        Buddy(64, min_block=6)
    with pytest.raises(ValueError, match="total is 60, not a multiple of min_block 8: use 56"):
        Buddy(60, min_block=8)


@every_kind
def test_bad_input_changes_nothing(name):
    memory = allocator(name, 64)
    memory.allocate(16)
    before = (memory.used(), memory.holes(), memory.free_total)
    for size, error, message in [
        (0, AllocationError, "size is 0, but must be from 1 to 64"),
        (-3, AllocationError, "size is -3"),
        (65, AllocationError, "size is 65, but must be from 1 to 64: ask for less, or make the memory larger"),
        (1.5, TypeError, "size must be an int, got 1.5"),
        (True, TypeError, "size must be an int, got True"),
    ]:
        with pytest.raises(error, match=message):
            memory.allocate(size)
    for address, error, message in [
        (3, AllocationError, "inside the allocation at 0: free that"),
        (40, AllocationError, "no allocation begins at 40 .1 are live.: was it freed before"),
        (64, AllocationError, "address is 64, but must be from 0 to 63"),
        (None, TypeError, "address must be an int, got None"),
    ]:
        with pytest.raises(error, match=message):
            memory.free(address)
    assert (memory.used(), memory.holes(), memory.free_total) == before
    memory.free(0)
    with pytest.raises(AllocationError, match="freed before"):
        memory.free(0)


def test_unknown_allocator_and_empty_memory():
    with pytest.raises(ValueError, match="there is no allocator 'worst fit': choose one of 'first fit'"):
        allocator("worst fit", 64)
    with pytest.raises(ValueError, match="total is 0"):
        FirstFit(0)


def test_check_integrity_finds_a_lost_unit():
    memory = FirstFit(64)
    memory.allocate(8)
    memory._sizes[0] -= 1
    with pytest.raises(AssertionError, match="end at 63, memory at 64"):
        memory.check_integrity()


@every_kind
def test_churn_counts_what_happens(name):
    run = churn(name, total=256, requests=200, seed=1)
    assert len(run.free) == len(run.largest_hole) == 200
    assert all(largest <= free <= 256 for free, largest in zip(run.free, run.largest_hole, strict=True))
    assert 0 < run.refused_with_room <= run.refused
    assert (run.internal_waste > 0) == (name == "buddy")
    assert run == churn(name, total=256, requests=200, seed=1)
    with pytest.raises(ValueError, match="largest is 300, but must be from 1 to 256"):
        churn(name, total=256, largest=300)
