"""Reference strings with known habits, for races between policies. All seeded."""

import random

from minipaged.os_paging.errors import require_whole

BELADY = (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)  # FIFO: 9 faults with 3 frames, 10 with 4


def _checked(num_pages: int, length: int) -> None:
    require_whole("num_pages", num_pages, 1, None, "a trace touches at least one page")
    require_whole("length", length, 0, None, "a trace cannot be shorter than nothing")


def no_locality(num_pages: int, length: int, seed: int = 0) -> list[int]:
    """Every page equally likely, whatever came before: no policy can learn anything."""
    _checked(num_pages, length)
    return random.Random(seed).choices(range(num_pages), k=length)


def eighty_twenty(num_pages: int, length: int, seed: int = 0) -> list[int]:
    """80 % of the references go to 20 % of the pages: a few hot pages, many cold ones."""
    _checked(num_pages, length)
    rng, hot = random.Random(seed), max(1, num_pages // 5)
    cold = range(hot, num_pages) if num_pages > hot else range(hot)
    return [rng.randrange(hot) if rng.random() < 0.8 else rng.choice(cold) for _ in range(length)]


def loop(num_pages: int, length: int, seed: int = 0) -> list[int]:
    """0, 1, 2, …, num_pages - 1, and again: a scan over the same data. `seed` changes nothing."""
    _checked(num_pages, length)
    return [i % num_pages for i in range(length)]


def phases(num_pages: int, length: int, seed: int = 0, working_set: int = 10, phase: int = 500) -> list[int]:
    """A program in phases: for `phase` references it stays in `working_set` pages, then it moves to others."""
    _checked(num_pages, length)
    require_whole("working_set", working_set, 1, num_pages, "a working set is part of the pages")
    require_whole("phase", phase, 1, None, "a phase has at least one reference")
    rng, trace = random.Random(seed), []
    while len(trace) < length:
        trace += rng.choices(rng.sample(range(num_pages), working_set), k=min(phase, length - len(trace)))
    return trace


def hot_and_scan(num_pages: int, length: int, seed: int = 0, hot: int = 10) -> list[int]:
    """Half of the references go to `hot` pages, the other half walk through all the rest, page after page."""
    _checked(num_pages, length)
    require_whole("hot", hot, 1, num_pages, "the hot pages are part of the pages")
    rng, rest, walked, trace = random.Random(seed), max(1, num_pages - hot), 0, []
    for _ in range(length):
        if rng.random() < 0.5:
            trace.append(rng.randrange(hot))
        else:
            trace.append(num_pages - rest + walked % rest)
            walked += 1
    return trace


def take_turns(num_programs: int, length: int, seed: int = 0, working_set: int = 10, turn: int = 50) -> list[int]:
    """Programs that take turns of `turn` references; each uses `working_set` pages of its own, at random."""
    require_whole("num_programs", num_programs, 1, None, "at least one program runs")
    _checked(working_set, length)
    require_whole("turn", turn, 1, None, "a turn has at least one reference")
    rng = random.Random(seed)
    return [i // turn % num_programs * working_set + rng.randrange(working_set) for i in range(length)]


TRACES = {
    "no locality": no_locality,
    "80-20": eighty_twenty,
    "loop": loop,
    "phases": phases,
    "hot and scan": hot_and_scan,
}
