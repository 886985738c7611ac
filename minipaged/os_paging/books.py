"""The books of an operating system's memory: who maps what, and where it is. Every change of a mapping happens here.

Four records have to tell one story: the page tables, the contents behind the pages, the frames and swap slots, and the
translations that the TLB has copied. `check_integrity` proves that they do.
"""

from dataclasses import dataclass, field

from minipaged.os_paging.errors import AddressError
from minipaged.os_paging.memory import Frames, PageContent, Swap
from minipaged.os_paging.page_table import PageTableEntry, PageTableProtocol
from minipaged.os_paging.replacement import ReplacementPolicy
from minipaged.os_paging.tlb import TLB


@dataclass(eq=False)
class Process:
    """An address space: a page table, and the content behind every mapped page, in memory or not."""

    pid: int
    table: PageTableProtocol
    contents: dict[int, PageContent] = field(default_factory=dict)


class MemoryBooks:
    """Processes, frames and swap, and the few operations that change who maps what."""

    def __init__(self, frames: Frames, swap: Swap, policy: ReplacementPolicy, tlb: TLB | None):
        self.frames = frames
        self.swap = swap
        self.policy = policy
        self.processes: dict[int, Process] = {}
        self._tlb = tlb
        self._in_frame: dict[int, PageContent] = {}

    def ref_cnt(self, pid: int, page: int) -> int:
        """How many page-table entries map the content of this page. Raises AddressError when it is not mapped."""
        contents = self._process(pid).contents
        if page not in contents:
            raise AddressError(f"page {page} of process {pid} is not mapped: it has no reference count")
        return contents[page].ref_cnt

    def _process(self, pid: int) -> Process:
        if pid not in self.processes:
            alive = ", ".join(map(str, self.processes)) or "none"
            raise ValueError(f"there is no process {pid!r}: alive are {alive}")
        return self.processes[pid]

    def _attach(self, process: Process, page: int, content: PageContent, entry: PageTableEntry) -> None:
        process.table.map(page, entry)
        process.contents[page] = content
        content.mappers.add((process.pid, page))

    def _detach(self, process: Process, page: int) -> None:
        process.table.unmap(page)
        self._forget_translation(process.pid, page)
        content = process.contents.pop(page)
        content.mappers.remove((process.pid, page))
        if content.ref_cnt:
            return
        if content.frame is not None:
            self._release(content.frame)
        if content.slot is not None:
            self.swap.free(content.slot)

    def _move_mapper(self, pid: int, page: int, old: PageContent, new: PageContent) -> None:
        old.mappers.remove((pid, page))
        new.mappers.add((pid, page))
        self.processes[pid].contents[page] = new

    def _place(self, content: PageContent, frame: int) -> None:
        self._in_frame[frame] = content
        self._set_frame(content, frame)
        self.policy.on_load(frame)

    def _set_frame(self, content: PageContent, frame: int | None) -> None:
        """Tell every page-table entry that maps this content, and every cached translation (a TLB shootdown)."""
        content.frame = frame
        for pid, page in content.mappers:
            entry = self.processes[pid].table.lookup(page)
            entry.frame, entry.dirty, entry.accessed = frame, False, False
            self._forget_translation(pid, page)

    def _release(self, frame: int) -> None:
        del self._in_frame[frame]
        self.policy.on_remove(frame)
        self.frames.free(frame)

    def _forget_translation(self, pid: int, page: int) -> None:
        if self._tlb:
            self._tlb.invalidate(pid, page)

    def check_integrity(self) -> None:
        """Prove that page tables, contents, frames and swap tell one story; else AssertionError with the rule."""
        mapped: dict[PageContent, set] = {}
        for process in self.processes.values():
            for page, entry in process.table.items():
                content = process.contents[page]
                mapped.setdefault(content, set()).add((process.pid, page))
                if entry.frame != content.frame:
                    raise AssertionError(f"process {process.pid} page {page}: entry and content name other frames")
        for content, mappers in mapped.items():
            if content.mappers != mappers:
                raise AssertionError(f"counted {content.mappers}, but mapped by {mappers}")
            if content.frame is not None and content.slot is not None:
                raise AssertionError(f"content is in frame {content.frame} and in slot {content.slot}")
        for store, taken in (
            (self.frames, [c.frame for c in mapped if c.frame is not None]),
            (self.swap, [c.slot for c in mapped if c.slot is not None]),
        ):
            if len(taken) != len(set(taken)) or len(taken) + store.num_free != store.count:
                raise AssertionError(f"{store.place}s: {sorted(taken)} in use, {store.num_free} of {store.count} free")
            if any(store.is_free(place) for place in taken):
                raise AssertionError(f"a {store.place} is free and in use")
        if {frame: content for content in mapped if (frame := content.frame) is not None} != self._in_frame:
            raise AssertionError("the map from frames to contents is out of date")
