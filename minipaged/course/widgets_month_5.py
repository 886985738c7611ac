"""The widgets of Month 5: step through a schedule, and a dashboard that watches an engine."""

from __future__ import annotations

from minipaged.course.figures_month_5 import draw_schedules
from minipaged.course.month_5 import Schedule
from minipaged.course.widgets import Stepper


def schedule_stepper(schedule: Schedule, title: str = "") -> Stepper:
    """Step through a schedule; every step adds a column, and the line above says what was decided and why.

    A page without a kernel shows the last step: it contains all that came before.
    """
    captions = ["nobody has come yet", *(_decisions(schedule, step) for step in range(1, schedule.num_steps + 1))]
    figures = [
        draw_schedules([schedule], title, numbers=True, pool=True, upto=step)
        for step in range(schedule.num_steps + 1)
    ]
    stepper = Stepper(figures, captions=captions, name="step")
    stepper.first = stepper.frames[-1]
    return stepper


def _decisions(schedule: Schedule, step: int) -> str:
    """One line: who enters, who must go, who waits, and the first reason."""
    cells = {name: row[step] for name, row in schedule.rows.items() if step in row}
    said = []
    for name, cell in cells.items():
        if cell.kind in ("preempted", "swapped"):
            said.append(f"{name} must go ({cell.reason})")
        elif cell.reason.endswith("cached"):  # the scheduler's note on who was admitted
            said.append(f"{name} enters with {cell.num_tokens} tokens")
    first = next(((name, cell) for name, cell in cells.items() if cell.kind == "waits"), None)
    if first and "behind" not in first[1].reason:
        said.append(f"{first[0]} waits ({first[1].reason})")
    return "; ".join(said) or "all that run go on"
