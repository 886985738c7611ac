"""What the engine counts. Nothing here decides anything."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from minipaged.kv_cache import KVCacheManager
from minipaged.serving.protocols import Scheduler, SchedulerOutput
from minipaged.serving.request import Request

HISTORY = 100_000  # steps kept one by one; the totals go on


class StepStats(NamedTuple):
    """One step. ``used_blocks`` are physical, ``logical_blocks`` the entries of all block tables.

    Without sharing every table entry would be a block of its own: the difference is the memory saved.
    """

    step: int
    num_running: int
    num_waiting: int
    num_tokens: int
    used_blocks: int
    logical_blocks: int
    shared_blocks: int
    num_copies: int
    num_preempted: int
    total_time: float
    model_time: float

    @property
    def saved_blocks(self) -> int:
        return self.logical_blocks - self.used_blocks


@dataclass
class EngineStats:
    """Totals since the engine was made (or since ``reset``). Times in seconds, usage from 0 to 1.

    Prefix hits count once a request, at its first admission: a hit after a preemption repeats work, it saves none.
    """

    num_blocks: int = 0
    block_size: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_generated_tokens: int = 0
    num_finished_requests: int = 0
    num_preemptions: int = 0
    num_forks: int = 0
    num_forked_blocks: int = 0  # table entries that forks took over from their parents
    num_copied_blocks: int = 0
    num_swapped_out_blocks: int = 0
    num_swapped_in_blocks: int = 0
    num_swap_fallbacks: int = 0  # the swap space was full: computed again instead
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    schedule_time: float = 0.0
    prepare_time: float = 0.0
    model_time: float = 0.0
    sample_time: float = 0.0
    history: deque[StepStats] = field(default_factory=lambda: deque(maxlen=HISTORY), repr=False)

    def reset(self) -> None:
        """Start counting anew; the pool's size stays."""
        fresh = EngineStats(num_blocks=self.num_blocks, block_size=self.block_size)
        for item in fields(self):
            setattr(self, item.name, getattr(fresh, item.name))

    @property
    def overhead_time(self) -> float:
        """The engine's own part: schedule, prepare, sample and keep the books."""
        return self.schedule_time + self.prepare_time + self.sample_time

    @property
    def overhead(self) -> float:
        """The engine's own part of all time, 0 to 1."""
        total = self.overhead_time + self.model_time
        return self.overhead_time / total if total else 0.0

    @property
    def peak_usage(self) -> float:
        return max((step.used_blocks for step in self.history), default=0) / max(1, self.num_blocks)

    @property
    def mean_usage(self) -> float:
        """Averaged over steps."""
        used = sum(step.used_blocks for step in self.history)
        return used / max(1, len(self.history) * self.num_blocks)

    @property
    def peak_shared_blocks(self) -> int:
        return max((step.shared_blocks for step in self.history), default=0)

    @property
    def peak_saved_blocks(self) -> int:
        return max((step.saved_blocks for step in self.history), default=0)

    @property
    def memory_saved(self) -> float:
        """The share of blocks that sharing saved, over all steps (the paper's Fig. 15), 0 to 1."""
        logical = sum(step.logical_blocks for step in self.history)
        return sum(step.saved_blocks for step in self.history) / logical if logical else 0.0

    def as_dict(self) -> dict[str, float]:
        """All totals and the derived figures, by name."""
        derived = ("overhead", "peak_usage", "mean_usage", "peak_shared_blocks", "peak_saved_blocks", "memory_saved")
        names = [item.name for item in fields(self) if item.name != "history"]
        return {name: getattr(self, name) for name in (*names, *derived)}

    def lines(self) -> list[str]:
        """For people: what ``minipaged generate --stats`` prints."""
        hits = f"{self.prefix_hit_tokens} of {self.prefix_query_tokens} prompt tokens"
        swapped = f"{self.num_swapped_out_blocks} out, {self.num_swapped_in_blocks} in"
        if self.num_swap_fallbacks:
            swapped += f", {self.num_swap_fallbacks} times no room: computed again"
        rows = [
            ("steps", f"{self.num_steps}"),
            ("tokens computed", f"{self.num_scheduled_tokens}"),
            ("tokens generated", f"{self.num_generated_tokens}"),
            ("prefix cache hits", hits),
            ("preemptions", f"{self.num_preemptions}"),
            ("blocks swapped", swapped),
            ("forks", f"{self.num_forks}"),
            (
                "blocks shared",
                f"{self.num_forked_blocks} by forks; {self.peak_shared_blocks} in use by several at the peak of a step",
            ),
            ("copies made", f"{self.num_copied_blocks} (copy-on-write)"),
            (
                "memory saved",
                f"{100 * self.memory_saved:.1f} % of the blocks that separate requests would use "
                f"({self.peak_saved_blocks} blocks at the peak)",
            ),
            (
                "pool",
                f"{self.num_blocks} blocks of {self.block_size} tokens, "
                f"used {100 * self.mean_usage:.1f} % on average, {100 * self.peak_usage:.1f} % at the peak",
            ),
            (
                "time",
                f"model {self.model_time:.3f} s, engine {self.overhead_time:.3f} s "
                f"({100 * self.overhead:.1f} % overhead)",
            ),
        ]
        return [f"{name:<18} {value}" for name, value in rows]


def record_step(
    stats: EngineStats,
    output: SchedulerOutput,
    num_copies: int,
    scheduler: Scheduler,
    manager: KVCacheManager,
    scheduled: float,
) -> tuple:
    """Count a step, while everything it used is still in use. ``scheduled``: when its requests were chosen.

    Returns the fields of StepStats but the times.
    """
    num_tokens = output.total_num_scheduled_tokens
    stats.num_steps += 1
    stats.num_scheduled_tokens += num_tokens
    stats.num_copied_blocks += num_copies
    stats.num_preemptions += len(output.preempted)
    stats.num_swapped_out_blocks += len(output.swap_out)
    stats.num_swapped_in_blocks += len(output.swap_in)
    stats.num_swap_fallbacks += output.num_swap_fallbacks
    for request in output.admitted:
        _count_admission(stats, request, scheduled)
    tables = [manager.block_table(request.request_id).blocks for request in scheduler.running]
    logical = sum(map(len, tables))
    used = manager.num_usable_blocks - manager.num_free_blocks
    shared = 0
    if logical > used:  # else there is nothing to look for
        blocks = {block.block_id: block for table in tables for block in table}
        shared = sum(block.ref_cnt > 1 for block in blocks.values())
    running, waiting = len(scheduler.running), len(scheduler.waiting)
    return stats.num_steps, running, waiting, num_tokens, used, logical, shared, num_copies, len(output.preempted)


def _count_admission(stats: EngineStats, request: Request, scheduled: float) -> None:
    group = request.group
    if group.times.first_scheduled is None:
        group.times.first_scheduled = scheduled
    if request.num_preemptions == 0:
        stats.prefix_query_tokens += request.num_tokens
        stats.prefix_hit_tokens += request.num_computed_tokens
        if group.num_cached_tokens is None:
            group.num_cached_tokens = request.num_computed_tokens
