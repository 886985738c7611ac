"""A kernel's source inside a lesson: with colours in a notebook, as plain text elsewhere."""

from __future__ import annotations

import difflib
import inspect
import textwrap


class Source:
    """Text that a cell shows highlighted. Everywhere else, and in the language "text", it is the text itself."""

    def __init__(self, text: str, language: str = "python"):
        self.text, self.language = text.strip("\n"), language

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str | None:
        return None if self.language == "text" else f"```{self.language}\n{self.text}\n```"


def show(*kernels) -> Source:
    """The source of kernels (``triton.jit`` functions, interpreted or not) or of plain functions."""
    return Source("\n\n".join(_lines_of(kernel) for kernel in kernels))


def what_changed(old, new, around: int = 1) -> Source:
    """The lines in which the body of ``new`` differs from that of ``old``, with ``around`` equal lines about them."""
    before, after = (_lines_of(kernel).split("\n") for kernel in (old, new))
    lines = list(difflib.unified_diff(before, after, n=around, lineterm=""))[2:]
    return Source("\n".join("⋯" if line.startswith("@@") else line for line in lines), "diff")


def _lines_of(kernel) -> str:
    """Source without its docstring's indentation of a nested function, and without a decorator's noise."""
    return textwrap.dedent(inspect.getsource(getattr(kernel, "fn", kernel))).rstrip()
