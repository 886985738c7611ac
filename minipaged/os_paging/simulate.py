"""Run a reference string through a replacement policy: every step for the eye, or only the count for long traces."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from minipaged.os_paging.errors import PolicyError, require_whole
from minipaged.os_paging.replacement import ReplacementPolicy, make_policy

POLICY_METHODS = ("on_load", "on_hit", "on_remove", "victim")
MAX_RECORDED_FRAMES = 65_536  # each step keeps a copy of all frames


@dataclass(frozen=True)
class Pin:
    """`page` may not leave during steps `first` … `last` (both included): somebody outside relies on its frame."""

    page: int
    first: int
    last: int


@dataclass(frozen=True)
class Step:
    """One reference and the memory after it."""

    index: int
    page: int
    hit: bool
    evicted: int | None  # the page that had to leave
    frames: tuple[int | None, ...]  # the page in each frame
    pinned: frozenset[int]  # pages that were not allowed to leave
    refused: bool = False  # every frame was pinned: the page could not come in

    @property
    def outcome(self) -> str:
        """The step in words."""
        if self.hit:
            return "hit"
        if self.refused:
            return "fault, refused: every frame is pinned"
        return "fault" if self.evicted is None else f"fault, {self.evicted} leaves"


@dataclass(frozen=True)
class Simulation:
    """All steps of a run."""

    policy: str
    steps: tuple[Step, ...]

    @property
    def faults(self) -> int:
        """References whose page was not in memory."""
        return sum(not step.hit for step in self.steps)

    @property
    def hits(self) -> int:
        """References whose page was in memory."""
        return len(self.steps) - self.faults

    @property
    def evicted(self) -> list[int]:
        """The victims, in order."""
        return [step.evicted for step in self.steps if step.evicted is not None]

    def lines(self) -> list[str]:
        """The run as a table of text: one reference a line."""
        width = max((len(str(step.page)) for step in self.steps), default=1)
        return [
            f"{step.page:>{width}}  "
            + " ".join(f"[{'' if page is None else page:>{width}}]" for page in step.frames)
            + f"  {step.outcome}"
            for step in self.steps
        ]


def _checked(trace: Sequence[int], num_frames: int) -> None:
    require_whole("num_frames", num_frames, 1, None, "memory needs at least one frame")
    wrong = set(map(type, trace)) - {int}
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise TypeError(f"the trace holds {names}, but pages are ints: convert it, for example with .tolist()")
    if trace and min(trace) < 0:
        raise ValueError(f"the trace holds page {min(trace)}, but pages count from 0")


def _resolve(policy: str | ReplacementPolicy, trace: Sequence[int]) -> ReplacementPolicy:
    if isinstance(policy, str):
        return make_policy(policy, trace)
    if isinstance(policy, type):
        name = policy.__name__
        raise PolicyError(f"{name} is a class, not a replacement policy: pass an object, {name}()")
    missing = [name for name in POLICY_METHODS if not callable(getattr(policy, name, None))]
    if missing:
        raise PolicyError(
            f"{policy!r} is no replacement policy, it has no {', '.join(missing)}: give a name such as 'lru', or an "
            "object with the methods of ReplacementPolicy"
        )
    return policy


def choose_victim(policy: ReplacementPolicy, resident: Collection[int], pinned: frozenset[int]) -> int:
    """Ask the policy and check its answer. Raises PolicyError when the victim is absent or pinned."""
    victim = policy.victim(pinned)
    if victim in resident and victim not in pinned:
        return victim
    name = getattr(policy, "name", type(policy).__name__)
    if victim in pinned:
        raise PolicyError(f"policy {name} chose page {victim}, which is pinned: somebody still relies on its frame")
    raise PolicyError(f"policy {name} chose {victim!r}, which is not in memory: choose among the pages loaded")


def simulate(
    trace: Sequence[int], num_frames: int, policy: str | ReplacementPolicy = "lru", pins: Sequence[Pin] = ()
) -> Simulation:
    """Every step of `trace` through `num_frames` frames, all empty at first.

    `policy`: "fifo", "lru", "clock", "opt", or a fresh object with the methods of `ReplacementPolicy`. Raises
    ValueError or TypeError for a bad trace or frame count, PolicyError for an unknown policy or a forbidden victim.
    """
    _checked(trace, num_frames)
    way_out = "each step keeps all frames; count_faults has no such limit"
    require_whole("num_frames", num_frames, 1, MAX_RECORDED_FRAMES, way_out)
    chosen = _resolve(policy, trace)
    frames: list[int | None] = [None] * num_frames
    steps = []
    for index, page in enumerate(trace):
        pinned = frozenset(pin.page for pin in pins if pin.first <= index <= pin.last)
        hit, evicted, refused = page in frames, None, False
        if hit:
            chosen.on_hit(page)
        elif None not in frames and pinned.issuperset(frames):
            refused = True
        else:
            if None not in frames:
                evicted = choose_victim(chosen, frames, pinned)
                chosen.on_remove(evicted)
            frames[frames.index(evicted)] = page  # evicted None: the first empty frame
            chosen.on_load(page)
        steps.append(Step(index, page, hit, evicted, tuple(frames), pinned, refused))
    return Simulation(getattr(chosen, "name", type(chosen).__name__), tuple(steps))


def count_faults(trace: Sequence[int], num_frames: int, policy: str | ReplacementPolicy = "lru") -> int:
    """The faults of `simulate`, without recording steps: for traces of a million references."""
    _checked(trace, num_frames)
    chosen = _resolve(policy, trace)
    on_hit, on_load = chosen.on_hit, chosen.on_load
    resident: set[int] = set()
    nobody: frozenset[int] = frozenset()
    faults = 0
    for page in trace:
        if page in resident:
            on_hit(page)
            continue
        faults += 1
        if len(resident) == num_frames:
            victim = choose_victim(chosen, resident, nobody)
            chosen.on_remove(victim)
            resident.remove(victim)
        resident.add(page)
        on_load(page)
    return faults


def average_access_ns(fault_rate: float, memory_ns: float = 100, disk_ns: float = 10_000_000) -> float:
    """Mean nanoseconds an access when the share `fault_rate` of accesses also waits for the disk (OSTEP chapter 22)."""
    if not 0 <= fault_rate <= 1:
        raise ValueError(f"fault_rate is {fault_rate}, but must be from 0 to 1: divide the faults by all references")
    return memory_ns + fault_rate * disk_ns
