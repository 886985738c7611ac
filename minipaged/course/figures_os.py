"""The pictures of Month 1: one translation, and processes with the frames between them.

They use the course's look (`canvas`), but their legends speak of pages and frames. Each returns a `Figure`.
`figures_os_time` has the pictures with a time axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minipaged.course.canvas import GREY, VERMILION, WIDTH, Canvas, Sketch, label, picture
from minipaged.os_paging import (
    MMU,
    READ,
    TLB,
    OperatingSystem,
    PageFault,
    PageTableProtocol,
    Permission,
    ProtectionFault,
)

DARK = "#444444"


def legend(sketch: Sketch, y: float, words: Mapping[str, str], plate: str = "", badge: str = "") -> None:
    """Explain states in this month's words: {state: words}; `plate` and `badge` explain those two."""
    x = 0.15
    if plate:
        sketch.number(x + 0.13, y, "7")
        sketch.text(x + 0.33, y, plate, size=8)
        x += 0.55 + 0.061 * len(plate)
    for state, meaning in words.items():
        sketch.box(x, y - 0.09, 0.26, 0.18, state, GREY if state == "free" else "#000000", dashed=state == "free")
        sketch.text(x + 0.33, y, meaning, size=8)
        x += 0.55 + 0.061 * len(meaning)
    if badge:
        sketch.badge(x + 0.13, y, "2")
        sketch.text(x + 0.33, y, badge, size=8)


def _bits(sketch: Sketch, x: float, y: float, number: int, count: int, state: str, wide: float) -> None:
    for i, bit in enumerate(f"{number:0{count}b}"):
        sketch.box(x + i * wide, y, wide, 0.28, state, line=0.6)
        sketch.text(x + (i + 0.5) * wide, y + 0.14, bit, ha="center", size=8.5, halo=state == "shared")


@picture
def draw_translation(
    table: PageTableProtocol, address: int, access: Permission = READ, tlb: TLB | None = None, title: str = ""
) -> tuple[Canvas, str]:
    """One address on its way: bits, TLB, page table, physical address or fault.

    `tlb`, if given, is asked and filled as in hardware. Raises AddressError outside the space.
    """
    format = table.format
    page, offset = format.split(address)
    walk = table.walk(page)
    try:
        found, fault = MMU(format, tlb).translate(table, address, access), ""
    except (PageFault, ProtectionFault) as error:
        found, fault = None, str(error)
    hit = bool(found and found.tlb_hit)
    lines = [title] if title else []
    lines.append(f"Virtual address {address:#x}: page {page}, offset {offset}.")

    sketch = Sketch(WIDTH, 3.5, title)
    boxes = [f"{array}[{index}]" for array, index in walk]
    if tlb is not None:
        boxes = ["TLB: hit" if hit else "TLB: miss", *boxes]
        lines.append(f"TLB {'hit: the page table is not read' if hit else 'miss'}.")
    widths = [0.3 + 0.085 * len(words) for words in boxes]
    left, row = 1.75, sum(widths) + 0.3 * len(boxes) + 1.05  # the boxes and the frame's name behind them
    wide = min(max(0.26, row / format.address_bits), 6.5 / format.address_bits)  # the offset passes to their right
    middle = left + format.page_bits * wide
    right = middle + format.offset_bits * wide
    sketch.text(0.15, 0.85, "virtual address", weight="bold")
    sketch.text(0.15, 1.05, f"{address:#x} = {address}", size=8, colour=DARK)
    sketch.text(left, 0.58, f"page {page}", size=8.5, colour=DARK)
    sketch.text(right, 0.58, f"offset {offset}", size=8.5, colour=DARK, ha="right")
    _bits(sketch, left, 0.72, page, format.page_bits, "token", wide)
    _bits(sketch, middle, 0.72, offset, format.offset_bits, "free", wide)
    if found is not None:  # drawn first, so that it passes behind the boxes
        sketch.arrow(right - 0.13, 1.02, right - 0.13, 2.55, dash="--", colour=DARK)
        sketch.text(right - 0.05, 2.25, "unchanged", size=8, colour=DARK)

    sketch.text(0.15, 1.75, "page → frame", weight="bold")
    x = left
    sketch.arrow(left + format.page_bits * wide / 2, 1.02, left + format.page_bits * wide / 2, 1.5)
    for number, (words, width) in enumerate(zip(boxes, widths, strict=True)):
        skipped = hit and number > 0
        sketch.box(x, 1.55, width, 0.38, "free", GREY if skipped else "#000000", dashed=skipped)
        sketch.text(x + width / 2, 1.74, words, ha="center", colour=GREY if skipped else "#000000")
        x += width
        if number < len(boxes) - 1:
            sketch.arrow(x + 0.03, 1.74, x + 0.27, 1.74, colour=GREY if hit else "#000000")
        x += 0.3
    if not hit:
        lines += [f"Read {array}[{index}]." for array, index in walk]
    if found is None:
        sketch.arrow(x - 0.27, 1.74, x + 0.02, 1.74, colour=VERMILION)
        sketch.text(x + 0.1, 1.74, "no frame" if "memory" in fault else "not allowed", weight="bold", colour=VERMILION)
        sketch.text(0.15, 2.75, "fault", weight="bold", colour=VERMILION)
        sketch.text(left, 2.75, label(fault, 88), colour=VERMILION)
        return sketch.canvas, "\n".join([*lines, f"Fault: {fault}."])
    bits = max(format.page_bits, found.frame.bit_length())
    sketch.arrow(x - 0.27, 1.74, x + 0.02, 1.74)
    sketch.text(x + 0.1, 1.74, f"frame {found.frame}", weight="bold", halo=True)
    sketch.arrow(x + 0.35, 1.9, middle - bits * wide / 2, 2.55)
    start = middle - bits * wide
    sketch.text(0.15, 2.75, "physical address", weight="bold")
    sketch.text(0.15, 2.95, f"{found.physical:#x} = {found.physical}", size=8, colour=DARK)
    sketch.text(max(start, 1.6), 3.05, f"frame {found.frame}", size=8.5, colour=DARK)
    sketch.text(right, 3.05, f"offset {offset}", size=8.5, colour=DARK, ha="right")
    _bits(sketch, start, 2.6, found.frame, bits, "shared", wide)
    _bits(sketch, middle, 2.6, offset, format.offset_bits, "free", wide)
    return sketch.canvas, "\n".join([*lines, f"Frame {found.frame}: physical address {found.physical:#x}."])


def _where(system: OperatingSystem, pid: int, page: int) -> tuple[str, int | None]:
    content = system.processes[pid].contents[page]
    if content.frame is not None:
        return "", content.frame
    return (f"in swap slot {content.slot}" if content.slot is not None else "not loaded"), None


@picture
def draw_memory(
    system: OperatingSystem, title: str = "", names: Mapping[int, str] | None = None, new: Sequence[int] = ()
) -> tuple[Canvas, str]:
    """Up to two processes and the frames between them: every page-table entry is an arrow.

    `names`: {pid: words}. `new`: frames to mark as changed in this step. The text in a frame is its content.
    """
    pids = sorted(system.processes)
    if len(pids) > 2:
        raise ValueError(f"{len(pids)} processes cannot be drawn side by side: draw at most 2, end the others")
    names = {pid: f"process {pid}" for pid in pids} | dict(names or {})
    entries = {pid: list(system.processes[pid].table.items()) for pid in pids}
    mappers: dict[int, list[str]] = {}
    for pid in pids:
        for page, entry in entries[pid]:
            if entry.present:
                mappers.setdefault(entry.frame, []).append(f"{names[pid]} page {page}")
    rows = max([system.frames.count, *map(len, entries.values())])
    swapped = [
        (c.slot, pid, page) for pid in pids for page, c in system.processes[pid].contents.items() if c.slot is not None
    ]
    top, row = (0.8 if title else 0.45), 0.42
    bottom = top + row * rows
    sketch = Sketch(WIDTH, bottom + (0.75 if system.swap.count else 0.4), title)
    lines = [title] if title else []
    centre, box, page_width = (3.1, 2.4, 1.9)
    left, right = 0.15, WIDTH - 0.15 - page_width
    sketch.text(centre + box / 2, top - 0.18, "physical memory (frames)", ha="center", weight="bold", size=8.5)

    for side, pid in enumerate(pids):
        x = left if side == 0 else right
        sketch.text(x, top - 0.18, f"{names[pid]}: pages", weight="bold", size=8.5)
        for i, (page, entry) in enumerate(entries[pid]):
            y = top + row * i
            where, frame = _where(system, pid, page)
            rights = "read only" if entry.copy_on_write or "write" not in str(entry.permissions) else "read, write"
            sketch.box(x, y, page_width, 0.32, "token" if frame is not None else "free", dashed=frame is None)
            sketch.text(x + 0.08, y + 0.16, f"page {page}", size=8.5, weight="bold")
            sketch.text(x + page_width - 0.08, y + 0.16, where or rights, size=8, ha="right", colour=DARK)
            if frame is not None:
                target = top + row * frame + 0.16
                start, end = (x + page_width, centre) if side == 0 else (x, centre + box)
                sketch.arrow(start, y + 0.16, end, target)
            said = f"frame {frame}, {rights}" if frame is not None else where
            lines.append(f"{names[pid]} page {page}: {said}")
    for frame in range(system.frames.count):
        y = top + row * frame
        users = mappers.get(frame, [])
        state = "free" if not users else "new" if frame in new else "shared" if len(users) > 1 else "token"
        sketch.box(centre, y, box, 0.32, state, dashed=not users)
        sketch.number(centre + 0.2, y + 0.16, frame)
        if users:
            words = bytes(system.frames.data(frame)).rstrip(b"\0").decode("ascii", "replace")
            sketch.text(centre + 0.42, y + 0.16, label(words, 19), size=8.5, halo=state != "token")
            sketch.badge(centre + box - 0.18, y + 0.16, len(users))
            lines.append(f"frame {frame}: {words!r}, count {len(users)}")
        else:
            lines.append(f"frame {frame}: free")
    y = bottom + 0.12
    meanings = {"token": "one entry maps it", "shared": "several entries map it", "new": "written now", "free": "free"}
    used = {"token", "free", "shared"} | ({"new"} if new else set())
    legend(sketch, y, {k: v for k, v in meanings.items() if k in used}, "frame number", "entries that map it")
    if system.swap.count:
        inside = ", ".join(f"slot {s}: {names[p]} page {g}" for s, p, g in sorted(swapped)) or "empty"
        sketch.text(0.15, y + 0.36, f"swap: {inside}", size=8.5)
        lines.append(f"swap: {inside}")
    return sketch.canvas, "\n".join(lines)
