"""The errors of this room, and the checks that raise them before anything has changed.

Two families. A *fault* is what the hardware reports while a program runs; an operating system may be able to serve
it. The other errors are mistakes of the caller: nobody can serve them, so their messages name the value, the limit
and the way out.
"""


class AddressError(ValueError):
    """An address, page or offset that lies outside its space."""


class AllocationError(ValueError):
    """A size that memory could never hold, or an address that is not an allocation."""


class PolicyError(ValueError):
    """A replacement policy that is unknown, or that chose a page which may not leave."""


class PageFault(Exception):
    """The page is not in memory. The operating system may bring it in and repeat the access."""

    def __init__(self, page: int, message: str | None = None):
        self.page = page
        super().__init__(message or f"page {page} is not in memory: map it, or let the system load it")


class ProtectionFault(Exception):
    """The page is mapped, but not for this kind of access."""

    def __init__(self, page: int, access: str, allowed: str):
        self.page, self.access, self.allowed = page, access, allowed
        super().__init__(
            f"{access} of page {page} is not permitted: its entry allows {allowed}; "
            f"map the page with the permission to {access}"
        )


class OutOfMemory(Exception):
    """No frame is free, and no page can leave to make one free. Nothing has changed."""


def require_whole(name: str, value: int, low: int, high: int | None, way_out: str, error=ValueError) -> int:
    """Return `value`, or raise `error` unless it is an int, low <= value <= high (`high` None: no limit)."""
    # bool is an int to Python, but True bytes or page False are surely mistakes.
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__}): {way_out}")
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise error(f"{name} is {value}, but must be {limit}: {way_out}")
    return value


def require_bytes(name: str, value: bytes) -> None:
    """Raise TypeError unless `value` is bytes or a bytearray."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f'{name} must be bytes, got {value!r} ({type(value).__name__}): write b"…", or text.encode()')


def require_power_of_two(name: str, value: int, low: int = 1) -> int:
    """Return `value`, or raise ValueError unless it is a power of two and at least `low`."""
    require_whole(name, value, low, None, "use a power of two such as 4096")
    if value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        raise ValueError(
            f"{name} is {value}, which is no power of two: use {below} or {2 * below}, "
            "so that an address splits with a shift and a mask"
        )
    return value
