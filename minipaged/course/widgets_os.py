"""The widgets of Month 1: an address translator, a replacement stepper, an allocator stepper."""

from __future__ import annotations

from collections.abc import Sequence

from minipaged.course.figures_os import draw_translation
from minipaged.course.figures_os_time import draw_allocations, draw_replacement
from minipaged.course.widgets import Explorer, Stepper
from minipaged.os_paging import (
    READ,
    AddressFormat,
    AllocatorStep,
    PageTable,
    PageTableEntry,
    TwoLevelPageTable,
    allocator,
    simulate,
)


def address_translator(address_bits: int = 12, missing: Sequence[int] = (2, 5), start: int = 0x3A7) -> Explorer:
    """Move an address through its space and see its bits, the walk and the physical address.

    Pages scatter over frames in a fixed way; those in `missing` are not in memory, so that an address there faults.
    """

    def draw(address: int, page_size: int, levels: int):
        format = AddressFormat(address_bits, page_size)
        table = (PageTable if levels == 1 else TwoLevelPageTable)(format)
        for page in set(range(format.num_pages)) - set(missing):
            table.map(page, PageTableEntry(READ, frame=(5 * page + 3) % format.num_pages))
        return draw_translation(table, address)

    return Explorer(draw, address=(0, (1 << address_bits) - 1, start), page_size=[256, 16, 64, 512], levels=[1, 2])


def replacement_stepper(trace: Sequence[int], num_frames: int, policy: str = "lru") -> Stepper:
    """Step through a reference string; every step adds a column to the table. The static frame is the last step."""
    run = simulate(trace, num_frames, policy)
    title = f"{policy.upper()}, {num_frames} frames"
    captions = ["memory is empty", *(f"page {step.page}: {step.outcome}" for step in run.steps)]
    figures = [draw_replacement(run, title, upto=count) for count in range(len(run.steps) + 1)]
    return Stepper(figures, captions=captions, name="reference", still=-1)


def allocations(fit: str, total: int, operations: Sequence[int | str]) -> list[AllocatorStep]:
    """The steps of requests and frees: an int asks for so many units, a text such as "free 2" frees the request with
    that number (counted from 1, refused ones too).

    Raises ValueError for an unknown allocator, and for a text that names no live request.
    """
    steps: list[AllocatorStep] = []
    memory, addresses = allocator(fit, total, trace=steps.append), []
    for operation in operations:
        if isinstance(operation, int):
            addresses.append(memory.allocate(operation))
            continue
        number = operation.removeprefix("free ")
        live = [str(i) for i, address in enumerate(addresses, start=1) if address is not None]
        if number not in live:
            raise ValueError(
                f"{operation!r} names no live request: write 'free N' with N one of {', '.join(live) or '-'}"
            )
        memory.free(addresses[int(number) - 1])
        addresses[int(number) - 1] = None
    return steps


def allocator_stepper(fit: str, total: int, operations: Sequence[int | str]) -> Stepper:
    """Step through requests and frees (see `allocations`); every step adds a row. The static frame is the last step."""
    steps = allocations(fit, total, operations)
    captions = ["memory is one hole"]
    for step in steps:
        holes = ", ".join(map(str, step.examined)) or "none"
        looked = f"free lists of sizes {holes}" if fit == "buddy" else f"holes at {holes}"
        captions.append("neighbouring holes join" if step.operation == "free" else f"looked at {looked}")
    figures = [draw_allocations(steps, total, fit.capitalize(), upto=count) for count in range(len(steps) + 1)]
    return Stepper(figures, captions=captions, name="operation", still=-1)
