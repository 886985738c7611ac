"""Answers kept with the tests: wrong ones, each with the hint it must print, and right ones written another way."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """A wrong answer. `code` defines the names that the exercise's check cell uses; the card must come out as
    *failed* (or as `status`), and its think line must contain `hint`."""

    exercise: str
    why: str
    hint: str
    code: str
    status: str = "failed"


@dataclass(frozen=True)
class Alternative:
    """A right answer that is not the solution's. It must pass."""

    exercise: str
    how: str
    code: str
