"""Month 1's pictures and widgets: the text says what the package computed, and nonsense is refused."""

import pytest

from minipaged.course.figures_os import draw_memory, draw_translation
from minipaged.course.figures_os_time import draw_allocations, draw_replacement
from minipaged.course.widgets_os import address_translator, allocations, allocator_stepper, replacement_stepper
from minipaged.os_paging import (
    BELADY,
    READ,
    TLB,
    WRITE,
    AddressError,
    AddressFormat,
    OperatingSystem,
    PageTable,
    PageTableEntry,
    TwoLevelPageTable,
    simulate,
)


def table_of(kind=PageTable):
    table = kind(AddressFormat(14, 64))
    table.map(254, PageTableEntry(READ, frame=55))
    return table


def test_translation_hit_and_miss():
    table, tlb = table_of(TwoLevelPageTable), TLB(4)
    first = draw_translation(table, 0x3F80, tlb=tlb, title="OSTEP")
    assert first.text.split("\n") == [
        "OSTEP",
        "Virtual address 0x3f80: page 254, offset 0.",
        "TLB miss.",
        "Read directory[15].",
        "Read table 15[14].",
        "Frame 55: physical address 0xdc0.",
    ]
    again = draw_translation(table, 0x3F81, tlb=tlb)
    assert "TLB hit: the page table is not read." in again.text
    assert "Read" not in again.text
    assert first.png != again.png


def test_translation_faults():
    assert "Fault: page 0 is not in memory" in draw_translation(table_of(), 5).text
    assert "Fault: write of page 254 is not permitted" in draw_translation(table_of(), 0x3F80, WRITE).text
    with pytest.raises(AddressError):
        draw_translation(table_of(), 1 << 14)


def test_memory_of_a_fork():
    system = OperatingSystem(4, 16, 8, swap_slots=1)
    parent = system.spawn()
    system.map(parent, 0, 2, content=b"It was the best of times")
    system.read(parent, 0)
    child = system.fork(parent)
    system.write(child, 0, b"He")
    text = draw_memory(system, "fork", {parent: "parent", child: "child"}, new=[1]).text
    assert "parent page 0: frame 0, read only" in text
    assert "child page 0: frame 1, read, write" in text
    assert "child page 1: not loaded" in text
    assert "frame 1: 'He was the best ', count 1" in text
    assert "swap: empty" in text
    system.spawn()
    with pytest.raises(ValueError, match="3 processes cannot be drawn"):
        draw_memory(system)


def test_replacement_table():
    run = simulate(BELADY, 3, "fifo")
    text = draw_replacement(run, "FIFO").text
    assert text.endswith("9 faults, 3 hits")
    assert "4: fault, 1 leaves; memory 4 2 3" in text
    assert draw_replacement(run, upto=2).text.endswith("2 faults, 0 hits")
    with pytest.raises(ValueError, match="25 references: a table shows 1 to 24"):
        draw_replacement(simulate([1] * 25, 3))


def test_allocation_rows():
    steps = allocations("first fit", 30, [10, 10, 10, "free 1", "free 3", 15])
    text = draw_allocations(steps, 30).text
    assert "allocate 15: refused. Used: 10-19. Holes: 0-9, 20-29." in text
    assert "(asked 7)" in draw_allocations(allocations("buddy", 64, [7]), 64).text
    with pytest.raises(ValueError, match="0 operations"):
        draw_allocations([], 64)
    with pytest.raises(ValueError, match="'free 2' names no live request: write 'free N' with N one of 1"):
        allocations("first fit", 30, [10, "free 2"])
    with pytest.raises(ValueError, match="names no live request"):
        allocations("first fit", 30, [10, "free 1", "free 1"])


def test_widgets():
    explorer = address_translator()
    assert "page 3, offset 167" in explorer.figure.text
    explorer.controls["address"].value = 0x2FF
    assert "page 2 is not in memory" in explorer.figure.text
    explorer.controls["levels"].value = 2
    assert "directory" in explorer.figure.text
    stepper = replacement_stepper([1, 2, 3, 1, 4], 3)
    assert stepper.captions[-1] == "page 4: fault, 2 leaves"
    stepper.slider.value = 5
    assert stepper.figure.text.endswith("4 faults, 1 hit")
    stepper = allocator_stepper("best fit", 30, [10, 10, "free 1", 5])
    assert stepper.captions == [
        "memory is one hole",
        "looked at holes at 0",
        "looked at holes at 10",
        "neighbouring holes join",
        "looked at holes at 0, 20",
    ]
    assert len({figure.height for figure in stepper.frames}) == 1
