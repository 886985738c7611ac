"""A pytest plugin beside nbval: it notices a dead kernel at once (nbval alone waits until the cell's time is over), and
keeps the run within the memory it was given."""

import os
import time
from queue import Empty

import pytest

MEMORY_LIMIT = "MINIPAGED_MEMORY_GIB"
"""The variable with the GiB of address space that this process and its kernel may use each. Not on Windows."""


def pytest_configure(config: pytest.Config) -> None:
    from nbval.kernel import RunningKernel

    if os.environ.get(MEMORY_LIMIT):
        limit_memory(float(os.environ[MEMORY_LIMIT]))

    if RunningKernel.await_reply is not await_reply_of_a_live_kernel:
        RunningKernel.await_reply = await_reply_of_a_live_kernel


def limit_memory(gib: float) -> None:
    """Allocations beyond the limit raise MemoryError, here and in the processes started from here."""
    import resource

    limit = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def await_reply_of_a_live_kernel(self, msg_id: str, timeout: float | None = None) -> None:
    """RunningKernel.await_reply, in steps of a second between which the kernel must be alive."""
    end = time.monotonic() + (float("inf") if timeout is None else timeout)
    while True:
        try:
            message = self.get_message(stream="shell", timeout=min(1.0, max(0.0, end - time.monotonic())))
        except Empty:
            if not self.is_alive():
                raise RuntimeError("the kernel died while it ran this cell") from None
            if time.monotonic() >= end:
                raise
            continue
        if message["parent_header"].get("msg_id") == msg_id:
            if message["content"]["status"] == "aborted":
                raise RuntimeError("the kernel refused to run this cell") from None
            return
