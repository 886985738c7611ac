'''How an exercise is declared. Authors of a month read this page; CONTRIBUTING.md has the steps around it.

One module a month, `minipaged/course/checks/month_N.py`, declares each exercise with its check::

    from minipaged.course.framework import Expect, exercise

    @exercise(
        "2.1",
        title="How many blocks?",
        stars=1,                                   # 1 easy, 2 some thought, 3 a piece of work
        minutes=5,
        hints=(
            "How many blocks do 8 tokens need if a block holds 4?",                     # 1: a question
            "A sequence of n tokens needs n / block_size blocks, rounded up.",          # 2: the rule
            "(num_tokens + block_size - 1) // block_size",                              # 3: pseudocode
        ),
        vllm="vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager.get_num_blocks_to_allocate",
    )
    def check_num_blocks(answer: Callable[[int, int], int], expect: Expect) -> None:
        for num_tokens, blocks in ((0, 0), (1, 1), (4, 1), (5, 2), (8, 2)):             # smallest case first
            expect.returns(
                blocks, answer, num_tokens, 4,
                rule="n tokens need n / block_size blocks, rounded up.",
                hint="Look at exact multiples: 8 tokens fill 2 blocks of 4.",
            )

The check function calls the learner's answer and states what must hold, smallest case first: the first broken
expectation ends the check, and its case is the counter-example the learner sees. It needs no error handling:

* an exception out of the learner's code becomes the outcome *error*, with their line;
* NotImplementedError out of the learner's code, or an answer that is still `...` or None, becomes *not attempted*;
* an answer that is minipaged's own function or class is refused before the check runs.

An exception out of the check itself (no frame of the learner's in it) is a bug of ours and is raised as it is.
'''

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minipaged.course.errors import CourseError
from minipaged.course.expect import Expect

__all__ = ["VLLM_RELEASE", "Exercise", "Expect", "all_exercises", "exercise", "exercises_of", "get_exercise"]

VLLM_RELEASE = "0.32"
"""The release that the `vllm=` texts name files and symbols of."""

CheckFunction = Callable[[Any, Expect], None]
_ID = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class Exercise:
    """One exercise, as its month declares it.

    Attributes:
        id: "2.1": the month, a dot, the number in it.
        title: a few words, without the id.
        stars: difficulty, 1 to 3.
        minutes: how long a learner should plan for.
        hints: a question, the rule, pseudocode; given one at a time. The solution follows them.
        vllm: the file and the symbol in vLLM (release VLLM_RELEASE) that does the same; shown on a pass. For an
            exercise about the paper or the OS, say so in words.
        check: called with (answer, expect).
        plug_in: the answer runs the real engine (the month's last exercise).
        reference: dotted names of minipaged's own solution. An answer that calls one of them is refused.
        subclass_ok: a class that inherits from one of minipaged's classes is accepted.
        requires: modules the check needs beyond the package's own (for example "triton").
        own_process: seconds. Above 0 the check runs in a process of its own, so long at most: an answer that crashes
            or does not end then becomes a message.
    """

    id: str
    title: str
    stars: int
    minutes: int
    hints: tuple[str, str, str]
    vllm: str
    check: CheckFunction = field(repr=False)
    plug_in: bool = False
    reference: tuple[str, ...] = ()
    subclass_ok: bool = False
    requires: tuple[str, ...] = ()
    own_process: float = 0.0

    @property
    def month(self) -> int:
        return self.key[0]

    @property
    def key(self) -> tuple[int, int]:
        """Sorts 2.9 before 2.10."""
        return parse_id(self.id)


_registry: dict[str, Exercise] = {}


def parse_id(exercise_id: str) -> tuple[int, int]:
    """"2.10" → (2, 10). Raises CourseError for anything else."""
    match = _ID.fullmatch(exercise_id) if isinstance(exercise_id, str) else None
    if match is None:
        raise CourseError(f'an exercise is named by a text like "2.1" (month, dot, number), not {exercise_id!r}')
    return int(match[1]), int(match[2])


def exercise(
    exercise_id: str,
    *,
    title: str,
    stars: int,
    minutes: int,
    hints: tuple[str, str, str],
    vllm: str,
    plug_in: bool = False,
    reference: tuple[str, ...] = (),
    subclass_ok: bool = False,
    requires: tuple[str, ...] = (),
    own_process: float = 0.0,
) -> Callable[[CheckFunction], CheckFunction]:
    """Declare an exercise; decorates its check function. The arguments are those of Exercise."""
    parse_id(exercise_id)
    if len(hints) != 3 or not all(hints):
        raise CourseError(f"exercise {exercise_id} needs three hints (a question, the rule, pseudocode): {hints!r}")
    if stars not in (1, 2, 3):
        raise CourseError(f"exercise {exercise_id}: stars must be 1, 2 or 3, not {stars!r}")
    if minutes <= 0 or not title or not vllm:
        raise CourseError(f"exercise {exercise_id} needs a title, minutes above 0 and the `vllm` text")

    def register(check: CheckFunction) -> CheckFunction:
        known = _registry.get(exercise_id)
        if known is not None and known.check.__module__ != check.__module__:
            raise CourseError(f"exercise {exercise_id} is declared twice: {known.check.__module__}, {check.__module__}")
        _registry[exercise_id] = Exercise(
            exercise_id, title, stars, minutes, tuple(hints), vllm, check, plug_in, tuple(reference), subclass_ok,
            tuple(requires), own_process,
        )
        return check

    return register


def _load_month(month: int) -> None:
    name = f"minipaged.course.checks.month_{month}"
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(name)


def months() -> list[int]:
    """The months that have checks, in order."""
    from minipaged.course import checks

    names = (module.name for module in pkgutil.iter_modules(checks.__path__))
    return sorted(int(name.removeprefix("month_")) for name in names if name.startswith("month_"))


def get_exercise(exercise_id: str) -> Exercise:
    """The exercise with this id. Only its month's checks are imported.

    Raises:
        CourseError: no such exercise; the message lists those of the month, or the months there are.
    """
    month, _ = parse_id(exercise_id)
    found = next((known for known in exercises_of(month) if known.id == exercise_id), None)
    if found is not None:
        return found
    there = ", ".join(known.id for known in exercises_of(month))
    cure = f"month {month} has {there}" if there else f"the months with exercises are {', '.join(map(str, months()))}"
    raise CourseError(f"there is no exercise {exercise_id}; {cure}")


def exercises_of(month: int) -> list[Exercise]:
    """A month's exercises in their order; empty when the month has none."""
    _load_month(month)
    return sorted((known for known in _registry.values() if known.month == month), key=lambda known: known.key)


def all_exercises() -> list[Exercise]:
    """Every exercise of the course, in order."""
    return [known for month in months() for known in exercises_of(month)]
