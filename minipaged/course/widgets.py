"""Interactive pictures: a `Stepper` through a list of pictures, and an `Explorer` with several controls.

Both change the value of one Image and of one HTML text (never an Output widget, which flickers and fails strict
nbval), keep a fixed height, and redraw when a control is released. In a page without a kernel, and in print, one
picture stands in their place, with its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets

from minipaged.course.canvas import Figure

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
UNITS = {unit.lower(): unit for unit in ("KiB", "MiB", "GiB", "ms")}
CAPTION_CHARACTERS = 75
"""So many fit into a line beside JupyterLab's open file browser, on a window of 1280 pixels."""


class _Pictured(ipywidgets.VBox):
    """An image, its text, and a fixed frame around both; the base of the two widgets."""

    def __init__(self, controls: Sequence[ipywidgets.Widget], first: Figure, height: int):
        self.first = first
        self.figure = first
        self.image = ipywidgets.Image(value=first.png, format="png", layout={"width": f"{first.width}px"})
        self.image.layout.object_fit = "contain"
        self.image.layout.object_position = "left top"
        self.image.layout.height = f"{height}px"
        self.image.layout.max_width = "100%"
        self.text = ipywidgets.HTML(layout={"display": "none"})
        self._say(first.text)
        self.words = ipywidgets.Checkbox(False, description="this picture in words", indent=False)
        self.words.observe(self._fold, names="value")
        super().__init__([*controls, self.image, self.words, self.text])
        self.layout.min_height = f"{height + 90}px"

    def _show(self, figure: Figure) -> None:
        self.figure = figure
        self.image.value = figure.png
        self._say(figure.text)

    def _say(self, words: str) -> None:
        """The picture in words, below it while the box is ticked: what is open stays open from step to step."""
        self.text.value = f'<pre aria-live="polite" style="line-height:1.35">{escape(words)}</pre>'

    def _fold(self, change: dict) -> None:
        self.text.layout.display = None if change["new"] else "none"

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs):
        """The live widget, and for readers without a kernel one picture and its text."""
        data, metadata = self.first._repr_mimebundle_()
        live = super()._repr_mimebundle_(include=include, exclude=exclude)
        return {**data, WIDGET_VIEW: live[WIDGET_VIEW]}, metadata


class Stepper(_Pictured):
    """Step through pictures, with a slider and buttons.

    Keyboard: Tab reaches the slider (arrow keys, Home, End) and the buttons (Enter, Space).

    Args:
        frame: a function from a step, 0 to `num_steps - 1`, to a `Figure`; or the list of figures itself.
        num_steps: how many steps there are (only with a function).
        captions: one line for each step, shown above the picture (optional).
        name: the slider's label, and the name that a screen reader says.
        still: the step that a page without a kernel shows; −1 is the last one.

    All pictures are drawn at the start: they are few, the frame takes the height of the tallest, stepping is
    immediate, and a step that cannot be drawn fails here and not under the reader's hand.
    """

    def __init__(
        self,
        frame: Callable[[int], Figure] | Sequence[Figure],
        num_steps: int | None = None,
        captions: Sequence[str] | None = None,
        name: str = "step",
        still: int = 0,
    ):
        self.frames = list(map(frame, range(num_steps or 0))) if callable(frame) else list(frame)
        if not self.frames:
            raise ValueError(f"a stepper needs at least one picture; num_steps is {num_steps!r}")
        if captions is not None and len(captions) != len(self.frames):
            raise ValueError(f"{len(captions)} captions for {len(self.frames)} pictures; give one for each")
        self.captions = list(captions or [])
        last = len(self.frames) - 1
        self.slider = ipywidgets.IntSlider(
            0,
            0,
            last,
            description=name,
            continuous_update=False,
            readout=True,
            tooltip=f"{name}: 0 to {last}",
        )
        self.back = ipywidgets.Button(description="Back", icon="arrow-left", tooltip="one step back")
        self.next = ipywidgets.Button(description="Next", icon="arrow-right", tooltip="one step on")
        self.start = ipywidgets.Button(description="Start", tooltip="to the first step")
        for button in (self.back, self.next, self.start):
            button.layout.width = "90px"
        longest = max((len(f"Step {last} of {last}: {caption}") for caption in self.captions), default=0)
        lines = max(1, -(-longest // CAPTION_CHARACTERS))
        self.caption = ipywidgets.HTML(layout={"height": f"{10 + 22 * lines}px"})
        controls = [ipywidgets.HBox([self.slider, self.back, self.next, self.start]), self.caption]
        super().__init__(controls, self.frames[still], max(figure.height for figure in self.frames))
        self.slider.observe(lambda change: self._to(change["new"]), names="value")
        self.back.on_click(lambda _: self._move(self.slider.value - 1))
        self.next.on_click(lambda _: self._move(self.slider.value + 1))
        self.start.on_click(lambda _: self._move(0))
        self._to(0)

    def _move(self, step: int) -> None:
        self.slider.value = min(max(step, 0), len(self.frames) - 1)

    def _to(self, step: int) -> None:
        self._show(self.frames[step])
        self.back.disabled, self.next.disabled = step == 0, step == len(self.frames) - 1
        words = f"Step {step} of {len(self.frames) - 1}"
        words += f": {self.captions[step]}" if self.captions else ""
        self.caption.value = f'<div style="line-height:22px"><b>{escape(words)}</b></div>'


class Explorer(_Pictured):
    """Several controls and one picture: `Explorer(draw, block_size=[1, 4, 16], tokens=(1, 200))`.

    Args:
        draw: a function of the controls' values, by name, that returns a `Figure`.
        height: the height of the picture in pixels; by default the first picture's.
        controls: for each argument of `draw`: `(low, high)` or `(low, high, start)` for a slider over whole numbers
            (over fractions where one of them is a float), a list of choices, True or False for a box to tick, or
            any ipywidgets widget with a `value`.

    Values that `draw` refuses (ValueError) leave the picture as it is; the reason stands below it.
    """

    def __init__(self, draw: Callable[..., Figure], height: int | None = None, **controls: Any):
        if not controls:
            raise ValueError("an explorer needs at least one control, for example block_size=[1, 4, 16]")
        self.draw = draw
        self.controls = {name: _control(name, spec) for name, spec in controls.items()}
        self.message = ipywidgets.HTML(layout={"min_height": "28px"})
        first = draw(**self.values)
        super().__init__([*self.controls.values(), self.message], first, height or first.height)
        for control in self.controls.values():
            control.observe(self._redraw, names="value")

    @property
    def values(self) -> dict[str, Any]:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, _change=None) -> None:
        try:
            figure = self.draw(**self.values)
        except ValueError as refusal:
            self.message.value = f'<span role="alert">Not possible: {escape(str(refusal))}</span>'
            return
        self.message.value = ""
        self._show(figure)


def _label(name: str) -> str:
    """An argument's name as a label: `block_size` is "block size", `memory_gib` is "memory (GiB)"."""
    *words, last = name.split("_")
    return f"{' '.join(words)} ({UNITS[last]})" if words and last in UNITS else name.replace("_", " ")


def _control(name: str, spec: Any) -> ipywidgets.Widget:
    """The widget for one argument of an explorer."""
    words = {"description": _label(name), "style": {"description_width": "initial"}}
    if isinstance(spec, ipywidgets.Widget):
        return spec
    if isinstance(spec, bool):
        return ipywidgets.Checkbox(spec, indent=False, **words)
    if isinstance(spec, list) and spec:
        return ipywidgets.Dropdown(options=spec, value=spec[0], **words)
    if isinstance(spec, tuple) and len(spec) in (2, 3) and spec[0] < spec[1]:
        low, high, start = (*spec, spec[0])[:3]
        if any(isinstance(value, float) for value in spec):
            step = (high - low) / 100
            return ipywidgets.FloatSlider(start, min=low, max=high, step=step, continuous_update=False, **words)
        return ipywidgets.IntSlider(start, min=low, max=high, continuous_update=False, **words)
    raise ValueError(
        f"control {name!r} is {spec!r}; give (low, high), (low, high, start), a list of choices, True or False, "
        "or a widget"
    )
