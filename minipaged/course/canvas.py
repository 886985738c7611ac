"""The one look of the course's pictures: palette, hatching, the `Figure` a cell shows, a `Sketch` to draw on.

The palette is Okabe and Ito's (2008), which colour-blind readers tell apart; the states of a slot differ by
their hatching besides, so that a picture also works in grey. Pictures are PNGs on a white card, legible on a
dark theme, and each carries a text that says the same. Nothing here uses pyplot: no global state, nothing to
close.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE, WHITE = "#8A8A8A", "#EDEDED", "#FFFFFF"

SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)  # the order in which series take colours
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)))
HATCHES = ("", "//", "\\\\", "..", "xx", "--", "++")

DPI = 144  # pixels an inch in the file …
COLOURS = 64  # in the file's palette
CSS = 96  # … and on the page: sharp on a dense screen, the size of a figure in inches × 96 pixels
WIDTH = 8.6  # inches; the widest picture that fits a lesson's column

STYLE = {
    "font.family": ["DejaVu Sans"],  # ships with matplotlib, so every machine draws the same
    "font.size": 9,
    "hatch.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "figure.facecolor": WHITE,
    "axes.facecolor": WHITE,
    "savefig.facecolor": WHITE,
    "text.color": BLACK,
    "axes.labelcolor": BLACK,
    "xtick.color": BLACK,
    "ytick.color": BLACK,
    "legend.frameon": False,
    "text.usetex": False,
    "path.simplify": True,
}


@dataclass(frozen=True)
class State:
    """How a slot of one state looks, and the words for it in legends and in the text alternative."""

    colour: str
    hatch: str
    words: str


STATES = {
    "token": State(SKY, "", "holds a token's K and V"),
    "new": State(ORANGE, "||", "written in this step"),
    "shared": State(GREEN, "\\\\", "shared by several sequences"),
    "duplicate": State("#9DB7E4", "++", "a copy: another request stores the same K and V"),
    "cached": State("#BFE1F6", "--", "free, but kept for a prefix hit"),
    "tail": State(PALE, "/", "owned, not yet written"),
    "reserved": State(YELLOW, "//", "reserved: used later"),
    "internal": State(VERMILION, "xx", "internal waste: never used"),
    "external": State(PURPLE, "..", "external waste: in no one's hands"),
    "free": State(WHITE, "", "free"),
}


class Figure:
    """A finished picture: PNG bytes and a text that says what the picture shows.

    A cell that ends in a `Figure` shows the PNG; the text travels beside it, as `text/plain` (which strict
    nbval compares) and as alternative text. The bytes depend on the drawing only: no date, no version.
    """

    def __init__(self, png: bytes, text: str, width: int, height: int):
        if not text.strip():
            raise ValueError("a picture needs a text alternative: say in words what it shows")
        self.png, self.text, self.width, self.height = png, text.strip(), width, height

    @classmethod
    def render(cls, canvas: Canvas, text: str) -> Figure:
        """A matplotlib figure becomes a `Figure`. `text` says what it shows, computed from the same data."""
        inches_wide, inches_high = canvas.get_size_inches()
        raw, small = io.BytesIO(), io.BytesIO()
        FigureCanvasAgg(canvas)
        canvas.savefig(raw, format="png", dpi=DPI, metadata={"Software": None})
        # Flat colours need no 24 bits a pixel: with a palette the file is a third as large.
        image = Image.open(raw).convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        image.save(small, format="PNG", optimize=True)
        return cls(small.getvalue(), text, round(inches_wide * CSS), round(inches_high * CSS))

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"image/png": base64.b64encode(self.png).decode("ascii"), "text/plain": self.text}
        return data, {"image/png": {"width": self.width, "height": self.height, "alt": self.text}}


def picture(draw: Callable[..., tuple[Canvas, str]]) -> Callable[..., Figure]:
    """Decorator: a function that returns (matplotlib figure, text) becomes one that returns a `Figure`."""

    @functools.wraps(draw)
    def run(*args, **kwargs) -> Figure:
        with rc_context(STYLE):
            canvas, text = draw(*args, **kwargs)
            return Figure.render(canvas, text)

    run.__annotations__ = {**draw.__annotations__, "return": "Figure"}
    return run


def new_axes(width: float = WIDTH, height: float = 3.2):
    """A matplotlib figure of `width` × `height` inches with one pair of axes; its layout cuts nothing."""
    canvas = Canvas(figsize=(width, height), layout="constrained")
    canvas.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    return canvas, canvas.add_subplot()


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def drawable(text: object) -> str:
    """The text with a hollow box for every character that the font lacks. The text alternative keeps them all."""
    return "".join(char if ord(char) in _glyphs() else "▯" for char in str(text))


def label(text: str, longest: int = 12) -> str:
    """A token's text as a slot shows it: no outer spaces, visible line breaks, never empty, not too long."""
    text = str(text).replace("\n", "⏎").replace("\t", "⇥").strip(" ") or "␣"
    return text if len(text) <= longest else text[: longest - 1] + "…"


class Sketch:
    """A white card measured in inches, y downwards, with the few shapes that block pictures need."""

    def __init__(self, width: float, height: float, title: str = ""):
        self.canvas = Canvas(figsize=(width, height))
        self.axes = self.canvas.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        self.axes.axis("off")
        self.width, self.height = width, height
        if title:
            self.text(0.15, 0.22, title, size=11, weight="bold")

    def text(self, x, y, words, size=9, weight="normal", ha="left", colour=BLACK, halo=False, style="normal") -> None:
        effects = [withStroke(linewidth=2.2, foreground=WHITE)] if halo else []
        self.axes.text(
            x,
            y,
            drawable(words),
            size=size,
            weight=weight,
            ha=ha,
            va="center",
            color=colour,
            style=style,
            path_effects=effects,
            parse_math=False,
        )

    def box(self, x, y, width, height, state="free", edge=BLACK, line=0.9, dashed=False) -> None:
        """A rectangle in the colour and hatching of `state`."""
        look = STATES[state]
        self.axes.add_patch(
            Rectangle(
                (x, y),
                width,
                height,
                facecolor=look.colour,
                hatch=look.hatch,
                edgecolor=edge,
                hatchcolor="#00000066",
                linewidth=line,
                linestyle="--" if dashed else "-",
            )
        )

    def slot(self, x, y, width, height, words, state) -> None:
        """One slot of a block: a box with its token's text."""
        self.box(x, y, width, height, state, edge=GREY if state == "free" else BLACK, dashed=state == "free")
        if words:
            self.text(x + width / 2, y + height / 2, words, ha="center", halo=bool(STATES[state].hatch))

    def number(self, x, y, number, colour=BLACK) -> None:
        """A physical block number: white on a dark plate centred at (x, y)."""
        wide = 0.17 + 0.085 * len(str(number))
        self.axes.add_patch(
            FancyBboxPatch(
                (x - wide / 2, y - 0.12),
                wide,
                0.24,
                linewidth=0,
                facecolor=colour,
                boxstyle="round,pad=0,rounding_size=0.05",
            )
        )
        self.text(x, y, str(number), size=9.5, weight="bold", ha="center", colour=WHITE)

    def badge(self, x, y, count) -> None:
        """A reference count: a number in a circle."""
        self.axes.add_patch(Circle((x, y), 0.125, facecolor=WHITE, edgecolor=BLACK, linewidth=1.1))
        self.text(x, y, str(count), size=8.5, weight="bold", ha="center")

    def arrow(self, x0, y0, x1, y1, colour=BLACK, dash="-", bend=0.0) -> None:
        self.axes.add_patch(
            FancyArrowPatch(
                (x0, y0),
                (x1, y1),
                arrowstyle="-|>",
                mutation_scale=9,
                color=colour,
                linewidth=1.3,
                linestyle=dash,
                shrinkA=0,
                shrinkB=1,
                connectionstyle=f"arc3,rad={bend}",
            )
        )

    def legend(self, y: float, states: Iterable[str], number: bool = False, badge: bool = False) -> None:
        """Explain the hatchings that occur (and the plate, and the badge); the first row at height `y`."""
        for name, words, x, row in legend_items(states, self.width, number, badge):
            middle = y + LEGEND_ROW * row
            if name == "number":
                self.number(x + 0.13, middle, "7")
            elif name == "badge":
                self.badge(x + 0.13, middle, "2")
            else:
                self.box(
                    x,
                    middle - 0.09,
                    0.26,
                    0.18,
                    name,
                    GREY if name == "free" else BLACK,
                    dashed=name == "free",
                )
            self.text(x + 0.33, middle, words, size=8)


LEGEND_ROW = 0.26


def legend_items(states: Iterable[str], width: float, number: bool = False, badge: bool = False):
    """Where each item of a legend goes: [(name, words, x in inches, row)]."""
    wanted = set(states)
    items = [(name, look.words) for name, look in STATES.items() if name in wanted]
    items += [("number", "physical block number")] * number + [("badge", "reference count")] * badge
    placed, x, row = [], 0.15, 0
    for name, words in items:
        needed = 0.50 + 0.061 * len(words)
        if x + needed > width and x > 0.15:
            x, row = 0.15, row + 1
        placed.append((name, words, x, row))
        x += needed
    return placed


def legend_height(states: Iterable[str], width: float, number: bool = False, badge: bool = False) -> float:
    """Inches that the legend takes at the foot of a card `width` inches wide."""
    items = legend_items(states, width, number, badge)
    return LEGEND_ROW * (items[-1][3] + 1) + 0.1 if items else 0.0
