"""Fresh problems from a seed, each with its worked solution: as many as you like to practise on.

The idea is OSTEP's homework simulators'; these problems are made and solved by this package.
"""

import random
from dataclasses import dataclass

from minipaged.os_paging.addresses import AddressFormat
from minipaged.os_paging.allocators import allocator
from minipaged.os_paging.contiguous import AllocatorStep
from minipaged.os_paging.errors import PageFault, require_whole
from minipaged.os_paging.mmu import MMU
from minipaged.os_paging.page_table import PageTable, PageTableEntry
from minipaged.os_paging.simulate import simulate

MAX_ON_PAPER = 100  # frames, references or operations: nobody works out more by hand


@dataclass(frozen=True)
class Problem:
    """A task, and its solution step by step. Both are lines of text."""

    task: tuple[str, ...]
    solution: tuple[str, ...]


def replacement_problem(
    policy: str = "lru", frames: int = 3, seed: int = 0, length: int = 10, pages: int = 5
) -> Problem:
    """Follow a reference string through `frames` frames. Raises PolicyError and ValueError as `simulate` does."""
    _require_on_paper("length", length, "ask for at least one reference")
    require_whole("pages", pages, 1, None, "references need at least one page")
    _require_on_paper("num_frames", frames, "memory needs at least one frame")
    trace = random.Random(seed).choices(range(pages), k=length)
    run = simulate(trace, frames, policy)
    task = (
        f"Replacement: policy {policy}, {frames} frames, all empty at first. Pages are used in this order:",
        "  " + " ".join(map(str, trace)),
        "For each reference: hit or fault? Who leaves? What is in memory afterwards? How many faults in all?",
    )
    return Problem(task, (*run.lines(), f"{run.faults} faults, {run.hits} hits"))


def translation_problem(seed: int = 0, page_size: int = 16, address_bits: int = 7, count: int = 4) -> Problem:
    """Translate `count` virtual addresses with a page table of which some entries are empty."""
    _require_on_paper("count", count, "ask for at least one address")
    format, rng = AddressFormat(address_bits, page_size), random.Random(seed)
    require_whole("pages", format.num_pages, 2, 64, "a problem on paper has 2 to 64 pages: change page_size")
    table, frames = PageTable(format), rng.sample(range(2 * format.num_pages), format.num_pages)
    mapped = sorted(rng.sample(range(format.num_pages), _mapped(format.num_pages)))
    for page in mapped:
        table.map(page, PageTableEntry(frame=frames[page]))
    addresses = [rng.randrange(format.size) for _ in range(count)]
    missing = [page for page in range(format.num_pages) if page not in mapped]
    addresses[rng.randrange(count)] = format.join(rng.choice(missing), rng.randrange(page_size))  # one fault at least
    solution: list[str] = []
    for address in addresses:
        page, offset = format.split(address)
        start = f"{address:#04x} = {address}: page {address} // {page_size} = {page}, offset {offset}"
        try:
            found = MMU(format).translate(table, address)
            physical = f"{found.frame} * {page_size} + {offset} = {found.physical:#04x}"
            solution.append(f"{start}; frame {found.frame}, physical {physical}")
        except PageFault:
            solution.append(f"{start}; not present: page fault")
    task = (
        f"Translation: addresses of {address_bits} bits, pages of {page_size} bytes. The page table:",
        *(
            f"  page {page:>2} -> " + (f"frame {frames[page]}" if page in mapped else "-")
            for page in range(format.num_pages)
        ),
        "Translate, or say that it faults: " + ", ".join(f"{address:#04x}" for address in addresses),
    )
    return Problem(task, tuple(solution))


def _mapped(num_pages: int) -> int:
    """Two thirds of the pages, and at least one page is left to fault on."""
    return min((2 * num_pages + 2) // 3, num_pages - 1)


def allocation_problem(fit: str = "first fit", seed: int = 0, total: int = 64, length: int = 8) -> Problem:
    """Follow requests and frees through a contiguous allocator. Raises ValueError for an unknown `fit`."""
    _require_on_paper("length", length, "ask for at least one operation")
    require_whole("total", total, 8, None, "requests take up to a third of memory")
    for attempt in range(200):
        task, steps = _operations(random.Random(f"{seed}/{attempt}"), fit, total, length)
        if any(step.address is None and _free(step) >= step.size for step in steps):
            break  # the lesson of the problem: refused, though so much is free
    width = max(map(len, task))
    solution = [f"{line:<{width}}  {_outcome(step)}" for line, step in zip(task, steps, strict=True)]
    question = "Where does each request go? Which holes are left? Is one refused though the free total suffices?"
    title = f"Allocation: {fit} in a memory of {total} units, empty at first."
    return Problem((title, *(f"  {line}" for line in task), question), tuple(solution))


def _require_on_paper(name: str, value: int, way_out: str) -> None:
    require_whole(name, value, 1, MAX_ON_PAPER, f"{way_out}, and for no more than one can do on paper")


def _operations(rng: random.Random, fit: str, total: int, length: int) -> tuple[list[str], list[AllocatorStep]]:
    """Random requests and frees as lines of text, and what the allocator did."""
    task, steps, live = [], [], {}
    memory = allocator(fit, total, trace=steps.append)
    for number in range(length):
        if live and rng.random() < 0.4:
            name = rng.choice(sorted(live))
            task.append(f"free {name}")
            memory.free(live.pop(name))
        else:
            name, size = chr(ord("A") + number % 26) + str(number // 26 or ""), rng.randint(2, total // 3)
            task.append(f"{name} = allocate({size})")
            if (address := memory.allocate(size)) is not None:
                live[name] = address
    return task, steps


def _free(step: AllocatorStep) -> int:
    return sum(size for _, size in step.holes)


def _outcome(step: AllocatorStep) -> str:
    holes = ", ".join(f"{address}-{address + size - 1}" for address, size in step.holes) or "none"
    if step.operation == "free":
        return f"-> back at {step.address}; holes: {holes}"
    if step.address is not None:
        return f"-> at {step.address}; holes: {holes}"
    reason = "enough in all, but no hole fits" if _free(step) >= step.size else "too little in all"
    return f"-> refused ({_free(step)} free: {reason}); holes: {holes}"
