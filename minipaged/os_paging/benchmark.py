"""How fast the simulator counts faults, beside the straightforward way: `python -m minipaged.os_paging.benchmark`."""

import time
from collections import OrderedDict
from collections.abc import Sequence

from minipaged.os_paging.simulate import count_faults
from minipaged.os_paging.traces import eighty_twenty


def straightforward_lru(trace: Sequence[int], num_frames: int) -> int:
    """LRU faults with one OrderedDict and nothing else: the yardstick for speed, and a second opinion on the count."""
    frames: OrderedDict[int, None] = OrderedDict()
    faults = 0
    for page in trace:
        if page in frames:
            frames.move_to_end(page)
            continue
        faults += 1
        if len(frames) == num_frames:
            frames.popitem(last=False)
        frames[page] = None
    return faults


def benchmark(length: int = 1_000_000, num_frames: int = 1_000, num_pages: int = 5_000) -> dict[str, tuple[int, float]]:
    """Faults and seconds of processor time (one core), by name, on one 80-20 trace."""
    trace = eighty_twenty(num_pages, length)
    results = {}
    for name in ("OrderedDict LRU", "lru", "opt", "fifo", "clock"):
        start = time.process_time()
        if name == "OrderedDict LRU":
            faults = straightforward_lru(trace, num_frames)
        else:
            faults = count_faults(trace, num_frames, name)
        results[name] = faults, time.process_time() - start
    return results


if __name__ == "__main__":
    for name, (faults, seconds) in benchmark().items():
        print(f"{name:<16} {faults:>8,} faults  {seconds:.2f} s")
