"""A small operating system for memory: processes, demand paging, copy-on-write, sharing, swap.

Every access goes the way of real hardware: the memory unit translates; when it cannot, it raises a fault; the operating
system serves the fault and the access is tried again. Each step can be watched through `trace`.

    system = OperatingSystem(num_frames=4, page_size=16, address_bits=8, swap_slots=8)
    parent = system.spawn()
    system.map(parent, page=0, num_pages=2, content=b"It was the best of times")
    system.read(parent, 0, 6)            # a page fault, a load, and then b"It was"
    child = system.fork(parent)          # nothing is copied yet
    system.write(child, 0, b"Is")        # now one page is

Source: OSTEP chapters 13, 21 and 22; Bach, The Design of the UNIX Operating System, 1986, chapter 9.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minipaged.os_paging.addresses import AddressFormat
from minipaged.os_paging.books import MemoryBooks, Process
from minipaged.os_paging.errors import (
    AddressError,
    OutOfMemory,
    PageFault,
    ProtectionFault,
    require_bytes,
    require_whole,
)
from minipaged.os_paging.memory import Frames, PageContent, Swap
from minipaged.os_paging.mmu import MMU, Translation
from minipaged.os_paging.page_table import READ, WRITE, PageTable, PageTableEntry, PageTableProtocol, Permission
from minipaged.os_paging.replacement import ReplacementPolicy, make_policy
from minipaged.os_paging.simulate import choose_victim
from minipaged.os_paging.tlb import TLB


@dataclass(frozen=True)
class Event:
    """Something that the operating system did."""

    kind: str  # "page fault", "load", "swap in", "swap out", "drop", "copy", "write in place", "fork", "share", "exit"
    pid: int
    page: int | None
    frame: int | None
    detail: str = ""

    def __str__(self) -> str:
        page = "" if self.page is None else f" page {self.page}"
        frame = "" if self.frame is None else f" frame {self.frame}"
        return f"process {self.pid}{page}: {self.kind}{frame}{': ' + self.detail if self.detail else ''}"


class OperatingSystem(MemoryBooks):
    """Memory for many processes in `num_frames` frames.

    `page_size`: bytes, a power of two. `address_bits`: of a virtual address. `policy`: "fifo", "lru", "clock" or an
    object with the methods of `ReplacementPolicy`, whose pages here are frames. `tlb`: a TLB or None. `swap_slots`:
    pages the swap area holds. `page_table`: PageTable or TwoLevelPageTable. `trace`: called with every Event.
    """

    def __init__(
        self,
        num_frames: int,
        page_size: int = 4096,
        address_bits: int = 16,
        policy: str | ReplacementPolicy = "lru",
        tlb: TLB | None = None,
        swap_slots: int = 0,
        page_table: Callable[[AddressFormat], PageTableProtocol] = PageTable,
        trace: Callable[[Event], None] | None = None,
    ):
        self.format = AddressFormat(address_bits, page_size)
        chosen = make_policy(policy) if isinstance(policy, str) else policy
        super().__init__(Frames(num_frames, page_size), Swap(swap_slots, page_size), chosen, tlb)
        self.mmu = MMU(self.format, tlb)
        self.counts: dict[str, int] = {}  # events so far, by kind
        self._page_table = page_table
        self._trace = trace
        self._next_pid = 1

    # Address spaces.

    def spawn(self) -> int:
        """A new process with an empty address space; its pid."""
        pid, self._next_pid = self._next_pid, self._next_pid + 1
        self.processes[pid] = Process(pid, self._page_table(self.format))
        return pid

    def map(
        self,
        pid: int,
        page: int,
        num_pages: int = 1,
        permissions: Permission = READ | WRITE,
        content: bytes = b"",
        shared: bool = False,
    ) -> None:
        """Let `num_pages` pages from `page` on exist, filled with `content` (as from a file) and then zeros.

        Nothing is loaded: that is left to the first access of each page. `shared`: fork and `share` give others the
        same pages, so that all see each other's writes. Raises AddressError, and ValueError for too much content.
        """
        process, size = self._process(pid), self.format.page_size
        pages = self._page_range(page, num_pages)
        if len(content) > num_pages * size:
            raise ValueError(f"content has {len(content)} bytes, {num_pages} pages hold {num_pages * size}: map more")
        for number in pages:
            if number in process.contents:
                raise AddressError(f"page {number} of process {pid} is mapped already: unmap it first")
        for index, number in enumerate(pages):
            source = bytes(content[index * size : (index + 1) * size])
            self._attach(process, number, PageContent(source), PageTableEntry(permissions, shared=shared))

    def share(self, owner: int, page: int, pid: int, at: int, permissions: Permission = READ) -> None:
        """Map the owner's `page` also as page `at` of process `pid`: two entries, one frame.

        Raises AddressError when the page is not mapped with shared=True, or when `at` is taken.
        """
        source, target = self._process(owner), self._process(pid)
        entry = source.table.lookup(page)
        if entry is None or not entry.shared:
            raise AddressError(f"page {page} of process {owner} is not for sharing: map it with shared=True")
        if target.table.lookup(at) is not None:
            raise AddressError(f"page {at} of process {pid} is mapped already: unmap it first")
        content = source.contents[page]
        self._attach(target, at, content, PageTableEntry(permissions, frame=content.frame, shared=True))
        self._note("share", pid, at, content.frame, f"{content.ref_cnt} entries map it")

    def fork(self, pid: int) -> int:
        """A child with the same memory: its pid. No page is copied; private pages become copy-on-write in both."""
        parent = self._process(pid)
        child = self.processes[self.spawn()]
        for page, entry in list(parent.table.items()):
            entry.copy_on_write |= not entry.shared
            self._forget_translation(pid, page)  # a cached "may write" would let the parent write the child's page
            content = parent.contents[page]
            twin = PageTableEntry(entry.permissions, content.frame, entry.copy_on_write, entry.shared)
            self._attach(child, page, content, twin)
        self._note("fork", pid, None, None, f"process {child.pid} shares {len(parent.contents)} pages")
        return child.pid

    def unmap(self, pid: int, page: int, num_pages: int = 1) -> None:
        """Let pages exist no longer; a frame or slot that nobody else maps is free again."""
        process = self._process(pid)
        for number in (pages := self._page_range(page, num_pages)):
            if number not in process.contents:
                raise AddressError(f"page {number} of process {pid} is not mapped: unmap only what was mapped")
        for number in pages:
            self._detach(process, number)

    def exit(self, pid: int) -> None:
        """End a process and give back everything that only it used."""
        process = self._process(pid)
        for page in list(process.contents):
            self._detach(process, page)
        del self.processes[pid]
        self._note("exit", pid, None, None)

    # Access.

    def read(self, pid: int, address: int, length: int = 1) -> bytes:
        """`length` bytes from a virtual address on, page by page, as the hardware does.

        Raises AddressError, PageFault (nothing is mapped there), ProtectionFault, OutOfMemory.
        """
        result = bytearray()
        for start, count in self._pieces(pid, address, length, READ):
            at = self.access(pid, start, READ)
            result += self.frames.data(at.frame)[at.offset : at.offset + count]
        return bytes(result)

    def write(self, pid: int, address: int, data: bytes) -> None:
        """Store bytes from a virtual address on, page by page. Raises as `read`; the page that failed is unchanged."""
        require_bytes("data", data)
        done = 0
        for start, count in self._pieces(pid, address, len(data), WRITE):
            at = self.access(pid, start, WRITE)
            self._in_frame[at.frame].dirty = True
            self.frames.data(at.frame)[at.offset : at.offset + count] = data[done : done + count]
            done += count

    def access(self, pid: int, address: int, access: Permission = READ) -> Translation:
        """Translate one address for one access, serving faults until the hardware is content."""
        process = self._process(pid)
        while True:
            try:
                translation = self.mmu.translate(process.table, address, access, asid=pid)
            except PageFault as fault:
                self._serve_missing_page(process, fault.page)
            except ProtectionFault as fault:
                entry = process.table.lookup(fault.page)
                if not (entry.copy_on_write and access in entry.permissions):
                    raise
                self._serve_copy_on_write(process, fault.page)
            else:
                # A real system sees no accesses, only the bits they leave: hence the clock. Here it sees them all.
                self.policy.on_hit(translation.frame)
                return translation

    # Faults.

    def _serve_missing_page(self, process: Process, page: int) -> None:
        content = process.contents.get(page)
        if content is None:
            raise PageFault(page, f"page {page} is not mapped in process {process.pid}: map it before you use it")
        self._note("page fault", process.pid, page, None)
        frame = self._free_frame(process.pid)
        if content.slot is None:
            data, kind = content.source, "load"
        else:
            data, kind = self.swap.data(content.slot), "swap in"
        self.frames.data(frame)[:] = bytes(data).ljust(self.format.page_size, b"\0")
        if content.slot is not None:
            self.swap.free(content.slot)
            content.slot = None
        self._place(content, frame)
        self._note(kind, process.pid, page, frame)

    def _serve_copy_on_write(self, process: Process, page: int) -> None:
        content, entry = process.contents[page], process.table.lookup(page)
        if content.ref_cnt == 1:  # everybody else has copied or gone: nobody can see the write
            self._note("write in place", process.pid, page, content.frame)
        else:
            frame = self._free_frame(process.pid, pinned={content.frame})
            self.frames.data(frame)[:] = self.frames.data(content.frame)
            copy = PageContent(content.source, dirty=True)
            self._move_mapper(process.pid, page, content, copy)
            self._place(copy, frame)
            left = f"the count of frame {content.frame} is now {content.ref_cnt}"
            self._note("copy", process.pid, page, frame, left)
        entry.copy_on_write = False
        self._forget_translation(process.pid, page)

    def _free_frame(self, pid: int, pinned: set[int] = frozenset()) -> int:
        """A frame to use, if need be by sending another page away. Raises OutOfMemory when none can go."""
        frame = self.frames.allocate()
        if frame is not None:
            return frame
        stuck = set(pinned)
        while len(stuck) < len(self._in_frame):
            victim = choose_victim(self.policy, self._in_frame, frozenset(stuck))
            if self._send_away(pid, victim):
                return self.frames.allocate()
            stuck.add(victim)  # its content is nowhere else and swap is full: try another
        raise OutOfMemory(
            f"0 of {self.frames.count} frames are free and none can be emptied: {self.swap.num_free} of "
            f"{self.swap.count} swap slots are free; end a process, or give the system more frames or swap"
        )

    def _send_away(self, pid: int, frame: int) -> bool:
        """Empty `frame`: drop what the file still holds, write the rest to swap. False: swap is full."""
        content = self._in_frame[frame]
        owner, page = min(content.mappers)
        if content.dirty:
            content.slot = self.swap.allocate()
            if content.slot is None:
                return False
            self.swap.data(content.slot)[:] = self.frames.data(frame)
        self._note("swap out" if content.dirty else "drop", owner, page, frame)
        self._set_frame(content, None)
        self._release(frame)
        return True

    # Small helpers.

    def _page_range(self, page: int, num_pages: int) -> range:
        self.format.require_page(page)
        require_whole("num_pages", num_pages, 1, self.format.num_pages - page, "stay in the address space")
        return range(page, page + num_pages)

    def _pieces(self, pid: int, address: int, length: int, access: Permission) -> list[tuple[int, int]]:
        """(address, bytes) of the part in each page, after checking that all of them may be accessed."""
        require_whole("length", length, 1, None, "access at least one byte")
        self.format.split(address)
        self.format.split(address + length - 1)
        process, pieces = self._process(pid), []
        while length:
            page, offset = self.format.split(address)
            entry = process.table.lookup(page)
            if entry is None:
                raise PageFault(page, f"page {page} is not mapped in process {pid}: map it before you use it")
            if access not in entry.permissions:
                raise ProtectionFault(page, str(access), str(entry.permissions))
            count = min(length, self.format.page_size - offset)
            pieces.append((address, count))
            address, length = address + count, length - count
        return pieces

    def _note(self, kind: str, pid: int, page: int | None, frame: int | None, detail: str = "") -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self._trace:
            self._trace(Event(kind, pid, page, frame, detail))
