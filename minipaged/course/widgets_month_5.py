"""The widgets of Month 5: step through a schedule, and a dashboard that watches an engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from html import escape
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import ipywidgets

from minipaged.course.figures_month_5 import draw_schedules
from minipaged.course.figures_month_5_dashboard import draw_dashboard
from minipaged.course.month_5 import Schedule
from minipaged.course.widgets import Stepper, _Pictured

if TYPE_CHECKING:
    from minipaged.course.month_5_dashboard import Source
    from minipaged.scraping import MetricsSample


def schedule_stepper(schedule: Schedule, title: str = "") -> Stepper:
    """Step through a schedule; every step adds a column, and the line above says what was decided and why.

    A page without a kernel shows the last step: it contains all that came before.
    """
    captions = ["nobody has come yet", *(_decisions(schedule, step) for step in range(1, schedule.num_steps + 1))]
    figures = [
        draw_schedules([schedule], title, numbers=True, pool=True, upto=step) for step in range(schedule.num_steps + 1)
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
            said.append(f"{name} enters with {cell.num_tokens} token{'s' * (cell.num_tokens != 1)}")
    first = next(((name, cell) for name, cell in cells.items() if cell.kind == "waits"), None)
    if first and "behind" not in first[1].reason:
        said.append(f"{first[0]} waits ({first[1].reason})")
    return "; ".join(said) or "all that run go on"


class Dashboard(_Pictured):
    """Watch a running engine: usage, running, waiting, hits. Press *Watch*, then let it work.

    Args:
        source: looks at the engine or at a server (`engine_source`, `server_source`).
        example: samples for the picture that stands there before anybody watches, and in a page without a kernel.
        seconds: between two looks. most: samples that are shown; older ones scroll out.
    """

    def __init__(self, source: Source, example: Sequence[MetricsSample], seconds: float = 0.5, most: int = 240):
        self.source, self.seconds, self.most = source, seconds, most
        self.samples: list[MetricsSample] = []
        self._started = 0.0
        self.button = ipywidgets.ToggleButton(
            False, description="Watch", icon="eye", tooltip="look at the engine, live"
        )
        self.message = ipywidgets.HTML("an example; press Watch to look at the live engine", layout={"height": "28px"})
        first = draw_dashboard(example, "An example, step by step", xlabel="step")
        super().__init__([ipywidgets.HBox([self.button, self.message])], first, first.height)
        self.button.observe(self._switch, names="value")

    def tick(self) -> None:
        """One look, and the picture with it."""
        if not self.samples:
            self._started = perf_counter()
        self.samples = [*self.samples[1 - self.most :], self.source(perf_counter() - self._started)]
        now = self.samples[-1]
        figures = (("running", now.running), ("waiting", now.waiting), ("preemptions", now.preemptions))
        self.message.value = ", ".join(f"{name} {value:g}" for name, value in figures if value is not None)
        self._show(draw_dashboard(self.samples, "Live"))

    def _switch(self, change: dict) -> None:
        if change["new"]:
            self.samples = []
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self.button.value:
            try:
                self.tick()
            except Exception as problem:  # whatever it is: the reader must see it, and the thread must end
                self.message.value = f'<span role="alert">cannot look: {escape(str(problem))}</span>'
                self.button.value = False
            sleep(self.seconds)
