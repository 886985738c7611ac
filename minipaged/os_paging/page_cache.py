"""The page cache: pages of files kept in memory after they were read, found by (inode, page of the file).

Source: Bovet and Cesati, Understanding the Linux Kernel, chapter 15; the latencies are round figures, not measurements.
"""

from dataclasses import dataclass

from minipaged.os_paging.errors import AddressError, require_bytes, require_power_of_two, require_whole
from minipaged.os_paging.replacement import ReplacementPolicy, make_policy

MEMORY_NS = 100
SSD_NS = 100_000


@dataclass
class Disk:
    """Files by inode number; counts the pages read and written."""

    files: dict[int, bytearray]
    page_size: int = 4096
    reads: int = 0
    writes: int = 0

    def read_page(self, inode: int, index: int) -> bytes:
        """Page `index` of a file (the last one may be short)."""
        self.reads += 1
        return bytes(self.files[inode][index * self.page_size : (index + 1) * self.page_size])

    def write_bytes(self, inode: int, offset: int, data: bytes) -> None:
        """Store bytes of a file."""
        self.writes += 1
        self.files[inode][offset : offset + len(data)] = data


class PageCache:
    """At most `capacity` file pages in memory, replaced by `policy` (by default least recently used).

    A write goes to disk and the cached copies of its pages are dropped; deleting a file drops all of its pages. (Linux
    updates the cached page and writes it back later. What matters is the same: after a write, the old bytes are never
    served again.)
    """

    def __init__(self, disk: Disk, capacity: int, policy: str | ReplacementPolicy = "lru"):
        require_power_of_two("page_size", disk.page_size, 2)
        self.disk = disk
        self.capacity = require_whole("capacity", capacity, 1, None, "a cache holds at least one page")
        self.policy = make_policy(policy) if isinstance(policy, str) else policy
        self.hits = self.misses = 0
        self._pages: dict[tuple[int, int], bytes] = {}

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(inode, page of the file) of everything cached."""
        return sorted(self._pages)

    @property
    def time_ns(self) -> int:
        """Time of all page accesses so far, at round latencies: each reads memory, a miss reads the SSD first."""
        return (self.hits + self.misses) * MEMORY_NS + self.misses * SSD_NS

    def read(self, inode: int, offset: int, length: int) -> bytes:
        """Bytes of a file, page by page through the cache. Raises AddressError outside the file."""
        pages = self._page_range(inode, offset, length)
        data = b"".join(self._page(inode, index) for index in pages)
        begin = offset - pages[0] * self.disk.page_size
        return data[begin : begin + length]

    def write(self, inode: int, offset: int, data: bytes) -> None:
        """Change bytes of a file. Raises AddressError outside the file, TypeError for what is no bytes."""
        require_bytes("data", data)
        pages = self._page_range(inode, offset, len(data))
        self.disk.write_bytes(inode, offset, data)
        for index in pages:
            self._drop((inode, index))

    def delete(self, inode: int) -> None:
        """Delete a file: another file may get the same inode number, so nothing of the old one may stay."""
        self._require_file(inode)
        for key in [key for key in self._pages if key[0] == inode]:
            self._drop(key)
        del self.disk.files[inode]

    def _page(self, inode: int, index: int) -> bytes:
        key = (inode, index)
        if key in self._pages:
            self.hits += 1
            self.policy.on_hit(key)
        else:
            self.misses += 1
            data = self.disk.read_page(inode, index)
            if len(self._pages) == self.capacity:
                self._drop(self.policy.victim(frozenset()))
            self._pages[key] = data
            self.policy.on_load(key)
        return self._pages[key]

    def _drop(self, key: tuple[int, int]) -> None:
        if self._pages.pop(key, None) is not None:
            self.policy.on_remove(key)

    def _require_file(self, inode: int) -> bytearray:
        if inode not in self.disk.files:
            known = ", ".join(map(str, sorted(self.disk.files))) or "none"
            raise AddressError(f"there is no file with inode {inode!r}: the disk has {known}")
        return self.disk.files[inode]

    def _page_range(self, inode: int, offset: int, length: int) -> range:
        size = len(self._require_file(inode))
        way_out = f"file {inode} has {size} bytes"
        require_whole("offset", offset, 0, size - 1, way_out, AddressError)
        require_whole("length", length, 1, size - offset, way_out, AddressError)
        return range(offset // self.disk.page_size, (offset + length - 1) // self.disk.page_size + 1)
