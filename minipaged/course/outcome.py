"""What a check found, and the card that shows it: the same content as text and as HTML, the same bytes each run."""

import html
from dataclasses import dataclass

from minipaged.course.framework import Exercise

PASSED, FAILED, NOT_ATTEMPTED, ERROR = "passed", "failed", "not attempted", "error"
STATUSES = (PASSED, FAILED, NOT_ATTEMPTED, ERROR)
_COLOURS = {PASSED: "#2e7d32", FAILED: "#c62828", NOT_ATTEMPTED: "#6d6d6d", ERROR: "#b35900"}
_MARKS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", ERROR: "!"}


@dataclass(frozen=True)
class Outcome:
    """One of four: passed, failed, not attempted, error.

    Attributes:
        rows: (label, text) pairs of the card, in order: rule, case, expected, got, think, …
    """

    exercise: Exercise
    status: str
    rows: tuple[tuple[str, str], ...] = ()

    @property
    def passed(self) -> bool:
        return self.status == PASSED

    def row(self, label: str) -> str:
        """The text of a row, empty when the card has no such row."""
        return dict(self.rows).get(label, "")

    @property
    def headline(self) -> str:
        return f"{_MARKS[self.status]} {self.exercise.id} {self.exercise.title}: {self.status}"

    def __repr__(self) -> str:
        """The card as text."""
        width = max((len(label) for label, _ in self.rows), default=0)
        lines = [self.headline]
        for label, text in self.rows:
            first, *more = text.splitlines() or [""]
            lines.append(f"  {label:<{width}}  {first}")
            lines.extend(f"  {'':<{width}}  {line}" for line in more)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The card as HTML. It takes the page's own text colour, so it reads on light and dark themes."""
        colour = _COLOURS[self.status]
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left;vertical-align:top;padding:0 1em 0 0;font-weight:600">'
            f'{html.escape(label)}</th><td style="text-align:left;white-space:pre-wrap;font-family:monospace">'
            f"{html.escape(text)}</td></tr>"
            for label, text in self.rows
        )
        return (
            f'<div style="border-left:6px solid {colour};padding:.4em 1em;margin:.3em 0">'
            f"<strong>{html.escape(self.headline)}</strong><table>{rows}</table></div>"
        )
