"""Looking into a simulation: what lies where, step by step. `simulate(..., watch=Recorder(system))` fills it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from minipaged.fragmentation.accounting import Parts
from minipaged.fragmentation.systems import Running, Span, System
from minipaged.os_paging.errors import require_whole


class Sample(NamedTuple):
    """The memory at the beginning of one step.

    `spans` are empty when the recorder was told to leave the layout out. `refused`: slots that the request in front of
    the queue asks for in one piece; 0 when nobody waits, and for paging.
    """

    step: int
    running: int
    parts: Parts
    spans: list[Span]
    refused: int

    @property
    def unowned(self) -> int:
        """Slots that belong to nobody, of use or not."""
        return self.parts.total - sum(slots for _, slots, _ in self.spans)


class Recorder:
    """A `watch` that keeps one sample every `every` steps (at the next event), or at every event with `every=0`."""

    def __init__(self, system: System, every: int = 0, layout: bool = True) -> None:
        require_whole("every", every, 0, None, "give the steps between two samples, or 0 for a sample at every event")
        self.system = system
        self.every = every
        self.layout = layout
        self.samples: list[Sample] = []

    def __call__(self, step: int, running: list[Running], parts: Parts) -> None:
        if self.samples and step < self.samples[-1].step + self.every:
            return
        if self.samples and step == self.samples[-1].step:
            self.samples.pop()  # two events in one step: the later one is what the step begins with
        spans = self.system.layout(running) if self.layout else []
        self.samples.append(Sample(step, len(running), parts, spans, getattr(self.system, "refused", 0)))


def holes(sample: Sample) -> list[tuple[int, int]]:
    """The stretches that belong to nobody, as (first slot, slots), by address; neighbours are one hole."""
    end, found = 0, []
    for start, slots, _ in sample.spans:
        if start > end:
            found.append((end, start - end))
        end = max(end, start + slots)
    if sample.parts.total > end:
        found.append((end, sample.parts.total - end))
    return found


def time_average(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    """The mean of `value` over all steps from the first sample to the last; each lasts until the next one."""
    steps = samples[-1].step - samples[0].step if samples else 0
    if not steps:
        raise ValueError(f"{len(samples)} samples over {steps} steps given; an average over time needs at least 1 step")
    return sum(value(now) * (after.step - now.step) for now, after in pairwise(samples)) / steps


def time_share(samples: Sequence[Sample], condition: Callable[[Sample], bool]) -> float:
    """For how much of the time `condition` holds, from 0 to 1."""
    return time_average(samples, lambda sample: float(condition(sample)))
