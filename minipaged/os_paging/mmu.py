"""The memory management unit: what the hardware does with every single address."""

from dataclasses import dataclass

from minipaged.os_paging.addresses import AddressFormat
from minipaged.os_paging.errors import PageFault, ProtectionFault
from minipaged.os_paging.page_table import READ, WRITE, PageTableProtocol, Permission
from minipaged.os_paging.tlb import TLB


@dataclass(frozen=True)
class Translation:
    """One translation, with every intermediate value."""

    address: int  # virtual
    page: int
    offset: int
    frame: int
    physical: int
    tlb_hit: bool | None  # None: there is no TLB
    walk: tuple[tuple[str, int], ...]  # (array, index) of each page-table access; empty after a TLB hit

    def lines(self) -> list[str]:
        """The translation in words, one step a line."""
        width = max(len(bin(self.page)), len(bin(self.offset)))
        steps = [
            f"virtual  {self.address:#x}",
            f"page     {self.page:<6} {self.page:#0{width}b}",
            f"offset   {self.offset:<6} {self.offset:#0{width}b}",
        ]
        if self.tlb_hit is not None:
            steps.append(f"TLB      {'hit' if self.tlb_hit else 'miss'}")
        steps += [f"read     {array}[{index}]" for array, index in self.walk]
        return [*steps, f"frame    {self.frame}", f"physical {self.physical:#x} (frame * page size + offset)"]


class MMU:
    """Translates addresses through a page table, with or without a TLB. It never changes a mapping.

    It only *reports* a missing page or a forbidden access; whether that can be served is for the operating system.
    """

    def __init__(self, format: AddressFormat, tlb: TLB | None = None):
        self.format = format
        self.tlb = tlb

    def translate(
        self, table: PageTableProtocol, address: int, access: Permission = READ, asid: int = 0
    ) -> Translation:
        """Where virtual `address` lies. `access`: READ, WRITE or EXECUTE; `asid`: whose table it is.

        Raises AddressError outside the space, PageFault when the page is not present, ProtectionFault when its entry
        does not allow the access.
        """
        page, offset = self.format.split(address)
        cached = self.tlb.lookup(asid, page) if self.tlb else None
        walk = [] if cached else table.walk(page)
        entry = table.lookup(page)
        if entry is None or (cached is None and not entry.present):
            raise PageFault(page)
        permissions = cached.permissions if cached else entry.effective
        if access not in permissions:
            raise ProtectionFault(page, str(access), str(permissions))
        frame = cached.frame if cached else entry.frame
        if self.tlb and not cached:
            self.tlb.insert(asid, page, frame, permissions)
        # Hardware keeps these two bits in the TLB and writes them through to the table; here they go there at once.
        entry.accessed = True
        entry.dirty |= access is WRITE
        physical = self.format.join(frame, offset)
        hit = None if self.tlb is None else cached is not None
        return Translation(address, page, offset, frame, physical, hit, tuple(walk))
