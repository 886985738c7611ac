"""Virtual addresses: a page number and an offset, split with a shift and a mask."""

from dataclasses import dataclass

from minipaged.os_paging.errors import AddressError, require_power_of_two, require_whole


@dataclass(frozen=True)
class AddressFormat:
    """How an address of `address_bits` bits splits into page number and offset.

    `page_size`: bytes a page, a power of two. The low log2(page_size) bits are the offset, the rest is the page number:

        AddressFormat(address_bits=16, page_size=4096).split(0x3A7C) == (0x3, 0xA7C)

    Source: OSTEP chapter 18.
    """

    address_bits: int = 16
    page_size: int = 4096

    def __post_init__(self):
        require_power_of_two("page_size", self.page_size, 2)
        way_out = "an address needs bits for the offset and at least one for the page"
        require_whole("address_bits", self.address_bits, self.offset_bits + 1, 64, way_out)

    @property
    def offset_bits(self) -> int:
        """Bits that address a byte within its page."""
        return self.page_size.bit_length() - 1

    @property
    def page_bits(self) -> int:
        """Bits that number the page."""
        return self.address_bits - self.offset_bits

    @property
    def num_pages(self) -> int:
        """Pages of the whole address space."""
        return 1 << self.page_bits

    @property
    def size(self) -> int:
        """Bytes of the whole address space."""
        return 1 << self.address_bits

    def split(self, address: int) -> tuple[int, int]:
        """(page, offset) of a virtual address. Raises AddressError outside 0 … size - 1."""
        way_out = f"an address has {self.address_bits} bits here"
        require_whole("address", address, 0, self.size - 1, way_out, AddressError)
        return address >> self.offset_bits, address & (self.page_size - 1)

    def join(self, number: int, offset: int) -> int:
        """The address of byte `offset` in page (or frame) `number`. A frame number may exceed the virtual pages."""
        require_whole("number", number, 0, None, "pages and frames count from 0", AddressError)
        way_out = "an offset stays within its page"
        require_whole("offset", offset, 0, self.page_size - 1, way_out, AddressError)
        return number << self.offset_bits | offset

    def require_page(self, page: int) -> int:
        """Return `page`, or raise AddressError when the space has no such page."""
        way_out = f"{self.address_bits} bits of address make {self.num_pages} pages of {self.page_size} bytes"
        return require_whole("page", page, 0, self.num_pages - 1, way_out, AddressError)
