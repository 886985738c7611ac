"""A question to be answered in writing, before its answers open. What is written stays, in a local file.

    ask = DrivingQuestion("month_0", "Name at least three problems of …", ["Reservation: …", "…"])
    ask                      # a box to write in; the answers open after something was saved, or on request

Without widgets the same works by calls: `ask.write("…")`, then `print(ask.answers())`. The text is kept in the folder
MINIPAGED_HOME (default: `.minipaged` in the home folder), one file a question; nothing leaves the machine.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

import ipywidgets

from minipaged.course.progress import home
from minipaged.course.widgets import WIDGET_VIEW
from minipaged.course.words import counted


def notes_file(key: str) -> Path:
    """Where the text for the question `key` is kept."""
    if not re.fullmatch(r"[a-z0-9_]+", key):
        raise ValueError(f"key {key!r} names a file: use lower-case letters, digits and underscores")
    return home() / f"driving_question_{key}.txt"


def read_notes(key: str) -> str:
    """What was written, or "" when nothing was."""
    try:
        return notes_file(key).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def write_notes(key: str, text: str) -> Path:
    """Keep `text`, in place of what was written before: whole or not at all. Raises OSError where that fails."""
    path = notes_file(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="driving-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


class DrivingQuestion(ipywidgets.VBox):
    """A box to write in, and answers that open afterwards.

    Args:
        key: the file's name; the same key shows the same text again in a later cell, notebook or session.
        question: shown above the box.
        answers: one line each, shown when they open.
        at_least: how many lines the question asks for; fewer may be saved, but the reader is told.
    """

    def __init__(self, key: str, question: str, answers: Sequence[str], at_least: int = 3) -> None:
        if not answers:
            raise ValueError("a driving question needs at least one answer")
        self.key, self.question, self.at_least = key, question, at_least
        self._answers, self.opened = list(answers), False
        self.box = ipywidgets.Textarea(
            read_notes(key),
            placeholder="One problem a line. Write before you look.",
            layout={"width": "95%", "height": "110px"},
            tooltip="your answers, one a line",
        )
        self.save = ipywidgets.Button(description="Save and compare", icon="check", layout={"width": "170px"})
        self.skip = ipywidgets.Button(description="Open without writing", layout={"width": "190px"})
        self.message = ipywidgets.HTML(layout={"min_height": "28px"})
        self.shown = ipywidgets.HTML()
        super().__init__([
            ipywidgets.HTML(f"<b>{escape(question)}</b>"), self.box,
            ipywidgets.HBox([self.save, self.skip]), self.message, self.shown,
        ])  # fmt: skip
        self.save.on_click(lambda _: self._save())
        self.skip.on_click(lambda _: self.open_answers())

    def write(self, text: str) -> None:
        """Keep `text` and open the answers. Raises ValueError for an empty text."""
        if not text.strip():
            raise ValueError("nothing is written yet: give at least one line, or open the answers without writing")
        write_notes(self.key, text)
        self.box.value = text
        lines = sum(bool(line.strip()) for line in text.splitlines())
        more = f" The question asks for {self.at_least}: is there another?" if lines < self.at_least else ""
        self._say(f"Saved: {counted(lines, 'line')}.{more}")
        self.open_answers()

    def answers(self) -> str:
        """The answers as text, once something was written or `open_answers()` was called.

        Raises ValueError before that.
        """
        if not (self.opened or read_notes(self.key).strip()):
            raise ValueError('write your own first, write("…"), or call open_answers() to see them without')
        return "\n".join(f"{i}. {answer}" for i, answer in enumerate(self._answers, 1))

    def _save(self) -> None:
        try:
            self.write(self.box.value)
        except (ValueError, OSError) as error:
            self._say(f"Not saved: {error}")

    def open_answers(self) -> None:
        """Open the answers, also without having written."""
        self.opened = True
        items = "".join(f"<li>{escape(answer)}</li>" for answer in self._answers)
        self.shown.value = f"<p>Compare, and mark what you missed:</p><ol>{items}</ol>"

    def _say(self, words: str) -> None:
        self.message.value = f'<span role="status">{escape(words)}</span>'

    def __repr__(self) -> str:
        """The same on every machine, whatever was written: strict nbval compares it."""
        return f"{self.question} (With a running kernel, here is a box to write in; what you save stays.)"

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs):
        live = super()._repr_mimebundle_(include=include, exclude=exclude)
        return {"text/plain": repr(self), WIDGET_VIEW: live[WIDGET_VIEW]}, {}
