"""The small operating system against a model in which every process simply owns its bytes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minipaged.os_paging import (
    READ,
    TLB,
    WRITE,
    AddressError,
    AllocationError,
    Clock,
    Frames,
    OperatingSystem,
    OutOfMemory,
    PageFault,
    PolicyError,
    ProtectionFault,
    Swap,
    TwoLevelPageTable,
)

PAGE = 4
PAGES = 8


class MemoryMachine(RuleBasedStateMachine):
    """Random processes, writes, forks, sharing and exits; after each, every byte of every process is what it should be.

    The model keeps one bytearray a page; shared pages are one bytearray in two processes, a fork copies the others.
    """

    def __init__(self):
        super().__init__()
        self.system = OperatingSystem(3, PAGE, 5, swap_slots=60, **self.make_options())
        self.model: dict[int, dict[int, tuple[bytearray, bool, bool]]] = {}  # pid -> page -> bytes, shared, writable

    @staticmethod
    def make_options():
        return {}

    def pick(self, number):
        return sorted(self.model)[number % len(self.model)] if self.model else None

    @rule()
    def spawn(self):
        if len(self.model) < 5:
            self.model[self.system.spawn()] = {}

    @rule(
        who=st.integers(0, 9),
        page=st.integers(0, 7),
        content=st.binary(max_size=4),
        shared=st.booleans(),
        w=st.booleans(),
    )
    def map(self, who, page, content, shared, w):
        pid = self.pick(who)
        if pid is None:
            return
        permissions = READ | WRITE if w else READ
        if page in self.model[pid]:
            with pytest.raises(AddressError, match="mapped already"):
                self.system.map(pid, page, permissions=permissions)
        else:
            self.system.map(pid, page, permissions=permissions, content=content, shared=shared)
            self.model[pid][page] = (bytearray(content.ljust(PAGE, b"\0")), shared, w)

    @rule(who=st.integers(0, 9), address=st.integers(0, 31), data=st.binary(min_size=1, max_size=9))
    def write(self, who, address, data):
        pid = self.pick(who)
        if pid is None or address + len(data) > PAGE * PAGES:
            return
        pages = range(address // PAGE, (address + len(data) - 1) // PAGE + 1)
        known = [self.model[pid].get(page) for page in pages]
        wrong = next((entry for entry in known if entry is None or not entry[2]), b"")
        if wrong != b"":
            with pytest.raises(PageFault if wrong is None else ProtectionFault):
                self.system.write(pid, address, data)
            return
        self.system.write(pid, address, data)
        for at, byte in enumerate(data, start=address):
            self.model[pid][at // PAGE][0][at % PAGE] = byte

    @rule(who=st.integers(0, 9), page=st.integers(0, 7))
    def read(self, who, page):
        pid = self.pick(who)
        if pid is not None and page in self.model[pid]:
            assert self.system.read(pid, page * PAGE, PAGE) == self.model[pid][page][0]

    @rule(who=st.integers(0, 9))
    def fork(self, who):
        pid = self.pick(who)
        if pid is not None and len(self.model) < 5:
            child = self.system.fork(pid)
            self.model[child] = {
                page: (data if shared else bytearray(data), shared, writable)
                for page, (data, shared, writable) in self.model[pid].items()
            }

    @rule(who=st.integers(0, 9), page=st.integers(0, 7), other=st.integers(0, 9), at=st.integers(0, 7), w=st.booleans())
    def share(self, who, page, other, at, w):
        owner, pid = self.pick(who), self.pick(other)
        if owner is None:
            return
        entry = self.model[owner].get(page)
        if entry is None or not entry[1] or at in self.model[pid]:
            with pytest.raises(AddressError):
                self.system.share(owner, page, pid, at)
        else:
            self.system.share(owner, page, pid, at, READ | WRITE if w else READ)
            self.model[pid][at] = (entry[0], True, w)

    @rule(who=st.integers(0, 9), page=st.integers(0, 7))
    def unmap(self, who, page):
        pid = self.pick(who)
        if pid is None:
            return
        if page in self.model[pid]:
            self.system.unmap(pid, page)
            del self.model[pid][page]
        else:
            with pytest.raises(AddressError, match="not mapped"):
                self.system.unmap(pid, page)

    @rule(who=st.integers(0, 9))
    def exit(self, who):
        pid = self.pick(who)
        if pid is not None:
            self.system.exit(pid)
            del self.model[pid]

    @invariant()
    def everything_agrees(self):
        self.system.check_integrity()
        for pid, pages in self.model.items():
            assert sorted(self.system.processes[pid].contents) == sorted(pages)

    def teardown(self):
        for pid, pages in self.model.items():
            for page, (data, _, _) in pages.items():
                assert self.system.read(pid, page * PAGE, PAGE) == data
        for pid in list(self.model):
            self.system.exit(pid)
        assert self.system.frames.num_free == 3
        assert self.system.swap.num_free == 60


class WithTLB(MemoryMachine):
    @staticmethod
    def make_options():
        return {"tlb": TLB(4, ways=2), "page_table": TwoLevelPageTable, "policy": "clock"}


TestMemory = MemoryMachine.TestCase
TestMemoryWithTLB = WithTLB.TestCase
TestMemory.settings = TestMemoryWithTLB.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def book(system, text=b"It was the best of times, it was the worst of times"):
    pid = system.spawn()
    system.map(pid, 0, num_pages=4, content=text)
    return pid


def make(events=None, **options):
    options = {"num_frames": 4, "page_size": 16, "address_bits": 8, **options}
    return OperatingSystem(**options, trace=None if events is None else events.append)


def test_only_the_pages_wanted_are_loaded():
    events = []
    system = make(events)
    pid = book(system)
    assert events == []
    assert system.read(pid, 33, 5) == b"the w"
    assert [str(event) for event in events] == ["process 1 page 2: page fault", "process 1 page 2: load frame 0"]
    assert system.counts == {"page fault": 1, "load": 1}


def test_fork_copies_one_page_at_the_first_write():
    events = []
    system = make(events)
    parent = book(system)
    system.read(parent, 0, 20)
    child = system.fork(parent)
    assert system.frames.num_free == 2
    assert system.ref_cnt(parent, 0) == 2
    system.write(child, 0, b"He")
    assert (system.read(child, 0, 6), system.read(parent, 0, 6)) == (b"He was", b"It was")
    assert system.counts["copy"] == 1
    system.write(parent, 0, b"We")
    assert system.counts["write in place"] == 1, "the second writer is alone: no copy"
    assert system.read(child, 0, 6) == b"He was"
    assert str(events[-2]) == "process 2 page 0: copy frame 2: the count of frame 0 is now 1"


def test_a_cached_translation_does_not_let_the_parent_write_through():
    system = make(tlb=TLB(8))
    parent = book(system)
    system.write(parent, 0, b"X")  # the TLB now says: page 0 may be written
    child = system.fork(parent)
    system.write(parent, 0, b"Y")
    assert system.read(child, 0, 1) == b"X"


def test_clean_pages_are_dropped_dirty_ones_swapped():
    system = make(num_frames=1, swap_slots=2)
    pid = book(system)
    system.read(pid, 0)
    system.read(pid, 16)
    assert "swap out" not in system.counts
    assert system.counts["drop"] == 1
    system.write(pid, 16, b"!")
    system.read(pid, 0)
    assert system.counts["swap out"] == 1
    assert system.read(pid, 16, 3) == b"!f "
    assert system.counts["swap in"] == 1
    assert system.swap.num_free == 2


def test_a_dirty_page_that_came_back_is_still_dirty():
    system = make(num_frames=1, swap_slots=1)
    pid = book(system)
    system.write(pid, 0, b"?")
    for _ in range(3):
        system.read(pid, 16)
        assert system.read(pid, 0, 2) == b"?t"


def test_shared_pages_are_one_frame():
    system = make()
    library, user = book(system), system.spawn()
    system.map(library, 8, permissions=READ | WRITE, content=b"libc", shared=True)
    system.share(library, 8, user, at=3)
    assert system.read(user, 3 * 16, 4) == b"libc"
    system.write(library, 8 * 16, b"LIB")
    assert system.read(user, 3 * 16, 4) == b"LIBc"
    assert system.ref_cnt(user, 3) == 2
    with pytest.raises(ProtectionFault, match="write of page 3 is not permitted"):
        system.write(user, 3 * 16, b"x")
    child = system.fork(library)
    system.write(child, 8 * 16, b"!")
    assert system.read(user, 3 * 16, 4) == b"!IBc", "shared stays shared after fork"


def test_out_of_memory_changes_nothing():
    system = make(num_frames=2, swap_slots=0)
    pid = book(system)
    system.write(pid, 0, b"a")
    system.write(pid, 16, b"b")
    counts = dict(system.counts)
    with pytest.raises(
        OutOfMemory, match="0 of 2 frames are free and none can be emptied: 0 of 0 swap slots are free"
    ):
        system.read(pid, 32)
    system.check_integrity()
    assert system.counts == counts | {"page fault": counts["page fault"] + 1}
    assert system.read(pid, 0) == b"a"
    system.unmap(pid, 0)
    assert system.read(pid, 32, 2) == b" t", "freed memory serves again"


def test_a_clean_page_goes_when_swap_is_full():
    system = make(num_frames=2, swap_slots=0, policy="fifo")
    pid = book(system)
    system.write(pid, 0, b"a")  # the oldest, but dirty and with nowhere to go
    system.read(pid, 16)
    assert system.read(pid, 32, 2) == b" t"
    assert system.counts["drop"] == 1


def test_copy_on_write_needs_a_second_frame():
    system = make(num_frames=1)
    parent = book(system)
    child = system.fork(parent)
    system.read(parent, 0)
    with pytest.raises(OutOfMemory):
        system.write(child, 0, b"x")
    system.check_integrity()
    assert system.read(parent, 0, 2) == b"It"


def test_an_own_policy_runs_the_system_and_a_lying_one_is_named():
    system = make(num_frames=2, policy=Clock())
    pid = book(system)
    assert system.read(pid, 0, 50) == b"It was the best of times, it was the worst of time"
    liar = type("Liar", (Clock,), {"name": "liar", "victim": lambda self, pinned: 77})()
    system = make(num_frames=2, policy=liar)
    pid = book(system)
    with pytest.raises(PolicyError, match="policy liar chose 77, which is not in memory"):
        system.read(pid, 0, 50)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda s, p: s.read(p, 256), AddressError, "address is 256, but must be from 0 to 255"),
        (lambda s, p: s.read(p, 250, 10), AddressError, "address is 259"),
        (lambda s, p: s.read(p, 0, 0), ValueError, "length is 0"),
        (lambda s, p: s.read(p, 200), PageFault, "page 12 is not mapped in process 1: map it"),
        (lambda s, p: s.access(p, 200), PageFault, "page 12 is not mapped in process 1"),
        (lambda s, p: s.write(p, 60, b"123456"), PageFault, "page 4 is not mapped"),
        (lambda s, p: s.read(9, 0), ValueError, "there is no process 9: alive are 1"),
        (lambda s, p: s.map(p, 3, 2), AddressError, "page 3 of process 1 is mapped already"),
        (lambda s, p: s.map(p, 14, 3), ValueError, "num_pages is 3, but must be from 1 to 2"),
        (lambda s, p: s.map(p, 8, 1, content=bytes(17)), ValueError, "content has 17 bytes, 1 pages hold 16"),
        (lambda s, p: s.unmap(p, 3, 2), AddressError, "page 4 of process 1 is not mapped"),
        (lambda s, p: s.share(p, 0, p, 9), AddressError, "page 0 of process 1 is not for sharing"),
        (lambda s, p: s.ref_cnt(p, 9), AddressError, "page 9 of process 1 is not mapped"),
        (lambda s, p: s.exit(2), ValueError, "there is no process 2"),
    ],
)
def test_bad_input_changes_nothing(act, error, message):
    events = []
    system = make(events)
    pid = book(system)
    with pytest.raises(error, match=message):
        act(system, pid)
    assert not [event for event in events if event.kind != "page fault"]
    assert sorted(system.processes[pid].contents) == [0, 1, 2, 3]
    assert system.frames.num_free == 4
    system.check_integrity()


def test_bad_systems():
    with pytest.raises(ValueError, match="num_frames is 0"):
        make(num_frames=0)
    with pytest.raises(ValueError, match="num_slots is -1"):
        make(swap_slots=-1)
    with pytest.raises(ValueError, match="page_size is 24, which is no power of two"):
        make(page_size=24)
    with pytest.raises(PolicyError, match="opt looks into the future"):
        make(policy="opt")
    with pytest.raises(PolicyError, match="no replacement policy 'mru'"):
        make(policy="mru")


@pytest.mark.parametrize("store", [Frames(2, 16), Swap(2, 16)])
def test_places_are_given_once_and_freed_once(store):
    assert [store.allocate(), store.allocate(), store.allocate()] == [0, 1, None]
    store.free(1)
    with pytest.raises(AllocationError, match=r"1 is free \(1 of 2 are\): use a .* that allocate returned"):
        store.free(1)
    with pytest.raises(AllocationError, match="2, but must be from 0 to 1"):
        store.free(2)
    with pytest.raises(AllocationError, match="1 is free"):
        store.data(1)
    assert store.allocate() == 1


def test_check_integrity_finds_a_wrong_entry():
    system = make()
    pid = book(system)
    system.read(pid, 0)
    system.processes[pid].table.lookup(0).frame = 3
    with pytest.raises(AssertionError, match="process 1 page 0: entry and content name other frames"):
        system.check_integrity()


@pytest.mark.parametrize("data", ["x", 5, None])
def test_only_bytes_are_written(data):
    system = OperatingSystem(num_frames=2, page_size=16, address_bits=8)
    pid = system.spawn()
    system.map(pid, page=0, content=b"abc")
    with pytest.raises(TypeError, match="data must be bytes, got"):
        system.write(pid, 0, data)
    assert system.read(pid, 0, 3) == b"abc"
