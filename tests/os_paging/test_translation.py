"""Addresses, page tables, TLB and MMU: properties, worked figures, bad input."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.os_paging import (
    EXECUTE,
    MMU,
    READ,
    TLB,
    WRITE,
    AddressError,
    AddressFormat,
    PageFault,
    PageTable,
    PageTableEntry,
    ProtectionFault,
    TwoLevelPageTable,
    effective_access_time,
    tlb_hit_rate,
)

both_tables = pytest.mark.parametrize("kind", [PageTable, TwoLevelPageTable])


@given(offset_bits=st.integers(1, 16), page_bits=st.integers(1, 20), data=st.data())
def test_split_and_join_are_inverse(offset_bits, page_bits, data):
    format = AddressFormat(offset_bits + page_bits, 1 << offset_bits)
    address = data.draw(st.integers(0, format.size - 1))
    page, offset = format.split(address)
    assert (page, offset) == divmod(address, format.page_size)
    assert format.join(page, offset) == address


@both_tables
@settings(max_examples=50)
@given(pages=st.lists(st.integers(0, 255), unique=True, max_size=40), gone=st.integers(0, 40))
def test_a_table_finds_what_was_mapped_and_nothing_else(kind, pages, gone):
    table = kind(AddressFormat(14, 64))
    entries = {page: PageTableEntry(frame=page ^ 0x55) for page in pages}
    for page, entry in entries.items():
        table.map(page, entry)
    for page in pages[:gone]:
        assert table.unmap(page) is entries.pop(page)
    assert dict(table.items()) == entries
    assert all(table.lookup(page) is entries.get(page) for page in range(256))


@settings(max_examples=60, deadline=None)
@given(
    accesses=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.sampled_from([READ, WRITE])), max_size=60),
    missing=st.sets(st.integers(0, 15)),
    read_only=st.sets(st.integers(0, 15)),
    entries=st.sampled_from([1, 2, 4, 8]),
    policy=st.sampled_from(["lru", "fifo", "random"]),
    data=st.data(),
)
def test_the_tlb_changes_no_translation(accesses, missing, read_only, entries, policy, data):
    """With and without TLB, one or two levels: the same physical address or the same fault."""
    ways = data.draw(st.sampled_from([w for w in (1, 2, 4, 8) if w <= entries]))
    format = AddressFormat(8, 16)
    units = [MMU(format), MMU(format, TLB(entries, ways, policy)), MMU(format, TLB(entries, ways, policy))]
    tables = [PageTable(format), PageTable(format), TwoLevelPageTable(format)]
    for table in tables:
        for page in set(range(16)) - missing:
            table.map(page, PageTableEntry(READ if page in read_only else READ | WRITE, frame=(7 * page + 3) % 32))
    for page, offset, access in accesses:
        outcomes = []
        for unit, table in zip(units, tables, strict=True):
            try:
                outcomes.append(unit.translate(table, format.join(page, offset), access).physical)
            except (PageFault, ProtectionFault) as fault:
                outcomes.append((type(fault), fault.page))
        assert outcomes[0] == outcomes[1] == outcomes[2]
    bits = [[(e.accessed, e.dirty) for _, e in table.items()] for table in tables]
    assert bits[0] == bits[1] == bits[2]


def test_address_21_is_117():
    """OSTEP chapter 18: 64 bytes of address space, pages of 16; pages 0 … 3 in frames 3, 7, 5, 2."""
    format = AddressFormat(6, 16)
    table = PageTable(format)
    for page, frame in enumerate((3, 7, 5, 2)):
        table.map(page, PageTableEntry(frame=frame))
    found = MMU(format).translate(table, 21)
    assert (found.page, found.offset, found.frame, found.physical) == (1, 5, 7, 117)
    assert found.walk == (("page table", 1),)
    assert found.tlb_hit is None


def test_two_levels_in_16_kib():
    """OSTEP chapter 20: 14-bit addresses, pages of 64 bytes, 4-byte entries; 0x3F80 is page 254, found in 0x0DC0."""
    format = AddressFormat(14, 64)
    table = TwoLevelPageTable(format, entry_bytes=4)
    for page, frame in {0: 10, 1: 23, 4: 80, 5: 59, 254: 55, 255: 45}.items():
        table.map(page, PageTableEntry(frame=frame))
    found = MMU(format).translate(table, 0x3F80)
    assert (found.page, found.offset, found.frame, found.physical) == (254, 0, 55, 0x0DC0)
    assert found.walk == (("directory", 15), ("table 15", 14))
    assert table.num_tables == 2
    assert PageTable(format).memory_bytes == 1024
    assert table.memory_bytes == 64 + 2 * 64
    with pytest.raises(PageFault):
        MMU(format).translate(table, 0x1000)
    assert table.walk(64) == [("directory", 4)], "no second table there: the walk ends"


def test_a_linear_table_for_32_bits_takes_4_mib():
    """OSTEP chapter 18: 2**20 entries of 4 bytes a process. Two levels: 4 KiB, and 4 KiB more per small table."""
    format = AddressFormat(32, 4096)
    table = TwoLevelPageTable(format)
    assert PageTable(format).memory_bytes == 4 * 2**20
    assert table.memory_bytes == 4096
    table.map(0, PageTableEntry())
    assert table.memory_bytes == 2 * 4096


def test_ten_integers_hit_seven_times():
    """OSTEP chapter 19: an array of ten 4-byte integers from address 100 on, pages of 16 bytes: 3 misses of 10."""
    format = AddressFormat(8, 16)
    pages = [format.split(100 + 4 * i)[0] for i in range(10)]
    assert tlb_hit_rate(pages, TLB(4)) == 0.7


@pytest.mark.parametrize(("hit_rate", "time"), [(0.8, 140), (0.98, 122)])
def test_effective_access_time(hit_rate, time):
    """Silberschatz, Operating System Concepts: 20 ns to search the TLB, 100 ns for memory."""
    assert effective_access_time(hit_rate, memory_ns=100, tlb_ns=20) == pytest.approx(time)
    assert effective_access_time(1.0, 100, 1, levels=4) == 101
    assert effective_access_time(0.0, 100, 1, levels=4) == 501


def test_lru_and_fifo_choose_different_entries():
    for policy, leaves in (("lru", 2), ("fifo", 1)):
        tlb = TLB(2, policy=policy)
        tlb.insert(0, 1, 11, READ)
        tlb.insert(0, 2, 12, READ)
        tlb.lookup(0, 1)
        assert tlb.insert(0, 3, 13, READ) == leaves


def test_associativity_limits_where_a_page_may_lie():
    direct, full = TLB(4, ways=1), TLB(4)
    pages = [0, 4, 0, 4, 0, 4]  # the same set of four
    assert tlb_hit_rate(pages, direct) == 0
    assert tlb_hit_rate(pages, full) == pytest.approx(4 / 6)
    assert direct.contents() == [[(0, 4, 4)], [], [], []]


def test_two_processes_share_a_tlb_without_mixing():
    tlb = TLB(4)
    tlb.insert(1, 0, 5, READ)
    assert tlb.lookup(2, 0) is None
    tlb.insert(2, 0, 6, READ)
    assert (tlb.lookup(1, 0).frame, tlb.lookup(2, 0).frame) == (5, 6)
    tlb.flush(1)
    assert tlb.lookup(1, 0) is None
    assert tlb.lookup(2, 0).frame == 6
    tlb.flush()
    assert tlb.contents() == [[]]


def test_faults_say_what_is_missing():
    format = AddressFormat(8, 16)
    table, unit = PageTable(format), MMU(format)
    table.map(1, PageTableEntry(READ, frame=0))
    table.map(2, PageTableEntry(READ | WRITE))
    table.map(3, PageTableEntry(READ | WRITE, frame=1, copy_on_write=True))
    with pytest.raises(ProtectionFault, match="write of page 1 is not permitted: its entry allows read"):
        unit.translate(table, 16, WRITE)
    with pytest.raises(ProtectionFault, match="execute of page 1"):
        unit.translate(table, 16, EXECUTE)
    with pytest.raises(PageFault, match="page 2 is not in memory"):
        unit.translate(table, 32)
    with pytest.raises(ProtectionFault, match="write of page 3"):
        unit.translate(table, 48, WRITE)
    assert unit.translate(table, 48).physical == 16
    with pytest.raises(AddressError, match="address is 256, but must be from 0 to 255: an address has 8 bits here"):
        unit.translate(table, 256)


def test_a_stale_translation_is_what_invalidate_prevents():
    """The TLB holds copies: a page that moves is found at its old place until the copy is dropped."""
    format = AddressFormat(8, 16)
    table, unit = PageTable(format), MMU(format, TLB(4))
    table.map(0, PageTableEntry(frame=3))
    assert unit.translate(table, 0).frame == 3
    table.lookup(0).frame = 9
    assert unit.translate(table, 0).frame == 3
    unit.tlb.invalidate(0, 0)
    assert unit.translate(table, 0).frame == 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddressFormat(16, 1000), "page_size is 1000, which is no power of two: use 512 or 1024"),
        (lambda: AddressFormat(16, 1), "page_size is 1, but must be at least 2"),
        (lambda: AddressFormat(12, 4096), "address_bits is 12, but must be from 13 to 64"),
        (lambda: AddressFormat(8, 16).join(0, 16), "offset is 16, but must be from 0 to 15"),
        (lambda: AddressFormat(8, 16).split(-1), "address is -1"),
        (lambda: PageTable(AddressFormat(8, 16)).lookup(16), "page is 16, but must be from 0 to 15"),
        (lambda: PageTable(AddressFormat(8, 16)).unmap(3), "page 3 is not mapped"),
        (lambda: TwoLevelPageTable(AddressFormat(8, 16)).unmap(3), "page 3 is not mapped"),
        (lambda: PageTable(AddressFormat(8, 16), entry_bytes=3), "entry_bytes is 3, which is no power of two"),
        (lambda: TwoLevelPageTable(AddressFormat(8, 16), table_bits=4), "table_bits is 4, but must be from 1 to 3"),
        (lambda: TwoLevelPageTable(AddressFormat(8, 128)), "the page number has 1 bit, but two levels need at least 2"),
        (lambda: TLB(0), "entries is 0"),
        (lambda: TLB(8, ways=3), "8 entries do not divide into sets of 3 ways"),
        (lambda: TLB(8, policy="clock"), "there is no TLB policy 'clock': choose one of 'lru', 'fifo', 'random'"),
        (lambda: effective_access_time(1.2, 100), "hit_rate is 1.2, but must be from 0 to 1"),
        (lambda: effective_access_time(0.5, -1), "none may be negative"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@both_tables
def test_mapping_twice_is_refused(kind):
    table = kind(AddressFormat(8, 16))
    table.map(3, first := PageTableEntry(frame=1))
    with pytest.raises(AddressError, match="page 3 is mapped already: unmap it first"):
        table.map(3, PageTableEntry(frame=2))
    assert table.lookup(3) is first


@both_tables
def test_what_is_no_entry_is_refused(kind):
    table = kind(AddressFormat(8, 16))
    with pytest.raises(TypeError, match=r"not to 7: write PageTableEntry\(frame=…\)"):
        table.map(3, 7)
    with pytest.raises(AddressError, match="frame is -1, but must be at least 0"):
        table.map(3, PageTableEntry(frame=-1))
    with pytest.raises(TypeError, match="frame must be an int, got 'x'"):
        table.map(3, PageTableEntry(frame="x"))
    assert list(table.items()) == []
