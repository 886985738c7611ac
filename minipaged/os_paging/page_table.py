"""Page tables: the level of indirection. Contiguous for the program, anywhere in memory.

A table answers one question, "where is page p?", with an entry or with None. The one-level table is an array with an
entry for every page of the space; the two-level table has an array of arrays and leaves out those that are empty.

Source: OSTEP chapters 18 and 20.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag
from typing import Protocol

from minipaged.os_paging.addresses import AddressFormat
from minipaged.os_paging.errors import AddressError, require_power_of_two, require_whole


class Permission(Flag):
    """What a program may do with a page. One access needs one of them."""

    NOTHING = 0
    READ = 1
    WRITE = 2
    EXECUTE = 4

    def __str__(self) -> str:
        return " and ".join(member.name.lower() for member in Permission if member in self) or "nothing"


READ, WRITE, EXECUTE = Permission.READ, Permission.WRITE, Permission.EXECUTE


@dataclass
class PageTableEntry:
    """One page's entry. The hardware reads frame and permissions and sets the last two bits."""

    permissions: Permission = READ | WRITE
    frame: int | None = None  # None: not present, an access faults
    copy_on_write: bool = False  # shared after fork: reads go through, the first write must copy
    shared: bool = False  # shared on purpose: writes are meant to be seen by all, fork does not copy
    accessed: bool = False
    dirty: bool = False  # written since it was loaded: it may not be dropped without saving it

    @property
    def present(self) -> bool:
        """Is the page in a frame?"""
        return self.frame is not None

    @property
    def effective(self) -> Permission:
        """What the hardware permits now: copy-on-write takes WRITE away until the copy is made."""
        return self.permissions & ~WRITE if self.copy_on_write else self.permissions


class PageTableProtocol(Protocol):
    """What the memory unit and the operating system need of a page table."""

    def lookup(self, page: int) -> PageTableEntry | None: ...
    def walk(self, page: int) -> list[tuple[str, int]]: ...
    def map(self, page: int, entry: PageTableEntry) -> None: ...
    def unmap(self, page: int) -> PageTableEntry: ...
    def items(self) -> Iterator[tuple[int, PageTableEntry]]: ...


def _require_entry(table: PageTableProtocol, page: int, entry: PageTableEntry) -> None:
    """Raises AddressError when `page` has an entry already, and what is no good entry is refused."""
    if table.lookup(page) is not None:
        raise AddressError(f"page {page} is mapped already: unmap it first")
    if not isinstance(entry, PageTableEntry):
        raise TypeError(f"a page is mapped to a PageTableEntry, not to {entry!r}: write PageTableEntry(frame=…)")
    if entry.frame is not None:
        require_whole("frame", entry.frame, 0, None, "frames count from 0, and None means: not present", AddressError)


def _cannot_unmap(page: int) -> AddressError:
    return AddressError(f"page {page} is not mapped: unmap only what was mapped")


class PageTable:
    """One level: an array with one entry for every page. One memory access finds an entry."""

    levels = 1

    def __init__(self, format: AddressFormat, entry_bytes: int = 4):
        self.format = format
        self.entry_bytes = require_power_of_two("entry_bytes", entry_bytes)
        # A dict holds the array's filled entries; memory_bytes counts the array as the hardware would store it.
        self._entries: dict[int, PageTableEntry] = {}

    def lookup(self, page: int) -> PageTableEntry | None:
        """The entry of `page`, or None when nothing is mapped there. Raises AddressError outside the space."""
        return self._entries.get(self.format.require_page(page))

    def walk(self, page: int) -> list[tuple[str, int]]:
        """The memory accesses that find the entry, as (array, index)."""
        return [("page table", self.format.require_page(page))]

    def map(self, page: int, entry: PageTableEntry) -> None:
        """Put an entry for `page`. Raises AddressError outside the space, for a frame below 0, or when the page has an
        entry already; TypeError for what is no entry."""
        _require_entry(self, page, entry)
        self._entries[page] = entry

    def unmap(self, page: int) -> PageTableEntry:
        """Take the entry of `page` out and return it. Raises AddressError when there is none."""
        if self.lookup(page) is None:
            raise _cannot_unmap(page)
        return self._entries.pop(page)

    def items(self) -> Iterator[tuple[int, PageTableEntry]]:
        """(page, entry) of every mapped page, in order."""
        yield from sorted(self._entries.items())

    @property
    def memory_bytes(self) -> int:
        """What the table itself takes: an entry for every page of the space, mapped or not."""
        return self.format.num_pages * self.entry_bytes


class TwoLevelPageTable:
    """A directory of small tables; a table exists only where something is mapped. Two accesses find an entry.

    `table_bits`: bits of the page number that index a small table (default: so many that a small table fills one page).
    """

    levels = 2

    def __init__(self, format: AddressFormat, entry_bytes: int = 4, table_bits: int | None = None):
        self.format = format
        self.entry_bytes = require_power_of_two("entry_bytes", entry_bytes)
        if format.page_bits < 2:
            raise ValueError(
                f"the page number has {format.page_bits} bit, but two levels need at least 2: "
                f"take smaller pages than {format.page_size} bytes, more address bits than {format.address_bits}, "
                "or a PageTable of one level"
            )
        if table_bits is None:
            fill_a_page = (format.page_size // entry_bytes).bit_length() - 1
            table_bits = max(1, min(fill_a_page, format.page_bits - 1))
        way_out = "leave at least one bit of the page number for each level"
        self.table_bits = require_whole("table_bits", table_bits, 1, format.page_bits - 1, way_out)
        self._directory: dict[int, dict[int, PageTableEntry]] = {}

    def split(self, page: int) -> tuple[int, int]:
        """(index in the directory, index in the small table) of a page number."""
        self.format.require_page(page)
        return page >> self.table_bits, page & ((1 << self.table_bits) - 1)

    def lookup(self, page: int) -> PageTableEntry | None:
        """The entry of `page`, or None when nothing is mapped there. Raises AddressError outside the space."""
        outer, inner = self.split(page)
        return self._directory.get(outer, {}).get(inner)

    def walk(self, page: int) -> list[tuple[str, int]]:
        """The memory accesses that find the entry, as (array, index); a missing small table ends the walk early."""
        outer, inner = self.split(page)
        steps = [("directory", outer)]
        return [*steps, (f"table {outer}", inner)] if outer in self._directory else steps

    def map(self, page: int, entry: PageTableEntry) -> None:
        """Put an entry for `page`. Raises AddressError outside the space, for a frame below 0, or when the page has an
        entry already; TypeError for what is no entry."""
        _require_entry(self, page, entry)
        outer, inner = self.split(page)
        self._directory.setdefault(outer, {})[inner] = entry

    def unmap(self, page: int) -> PageTableEntry:
        """Take the entry of `page` out and return it. Raises AddressError when there is none."""
        if self.lookup(page) is None:
            raise _cannot_unmap(page)
        outer, inner = self.split(page)
        entry = self._directory[outer].pop(inner)
        if not self._directory[outer]:
            del self._directory[outer]  # an empty small table costs nothing
        return entry

    def items(self) -> Iterator[tuple[int, PageTableEntry]]:
        """(page, entry) of every mapped page, in order."""
        for outer, table in sorted(self._directory.items()):
            for inner, entry in sorted(table.items()):
                yield outer << self.table_bits | inner, entry

    @property
    def num_tables(self) -> int:
        """Small tables that exist now."""
        return len(self._directory)

    @property
    def memory_bytes(self) -> int:
        """What the directory and the existing small tables take."""
        directory = 1 << (self.format.page_bits - self.table_bits)
        return (directory + self.num_tables * (1 << self.table_bits)) * self.entry_bytes
