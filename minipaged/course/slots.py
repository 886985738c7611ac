"""Pictures of slots: one by one, as long stretches to scale, and as a sequence cut into logical blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minipaged.course.canvas import STATES, WIDTH, Canvas, Sketch, label, legend_height, picture
from minipaged.course.words import counted

Slot = str | tuple[str, str] | None  # a token's text, or (text, state), or None for a free slot
SLOT_HEIGHT = 0.30
ROW = 0.40  # from one block to the next


def as_slot(slot: Slot, state: str = "token") -> tuple[str, str]:
    """(text, state) of a slot, whichever way it was given."""
    words, state = ("", "free") if slot is None else (slot, state) if isinstance(slot, str) else slot
    if state not in STATES:
        raise ValueError(f"unknown slot state {state!r}; the states are {', '.join(STATES)}")
    return words, state


def needed_width(words: Iterable[str]) -> float:
    """Inches for the longest of some token texts."""
    return max([0.30, *(0.16 + 0.083 * len(label(word)) for word in words if word)])


def spell(slots: Iterable[tuple[str, str]]) -> str:
    """Slots in words: `Four | score | (free) | (free)`."""
    return " | ".join(label(words) if words else f"({state})" for words, state in slots)


def put_block(sketch: Sketch, x: float, y: float, slots: Iterable[tuple[str, str]], slot_width: float) -> None:
    for i, (words, state) in enumerate(slots):
        shown = label(words) if words and slot_width > 0.25 else ""
        sketch.slot(x + i * slot_width, y, slot_width, SLOT_HEIGHT, shown, state)


@picture
def draw_slots(rows: Mapping[str, Sequence[Slot]], title: str = "") -> tuple[Canvas, str]:
    """Slots one by one, in named rows. For a row of more than about 60 slots use `draw_spans`.

    rows: {"Request A": ["Four", "score", ("", "reserved"), None]}; a slot is a text, (text, state)
    or None (free).
    """
    table = {name: [as_slot(slot) for slot in slots] for name, slots in rows.items()}
    longest = max(map(len, table.values()), default=0)
    left = 0.3 + 0.085 * max(map(len, table), default=0)
    room = (WIDTH - left - 0.15) / max(longest, 1)
    if room < 0.11:
        raise ValueError(f"a row of {longest} slots is too long to draw one by one (at most 60): use draw_spans")
    wide = min(needed_width(words for slots in table.values() for words, _ in slots), room)
    states = {state for slots in table.values() for _, state in slots}
    top = 0.5 if title else 0.15
    foot = legend_height(states, WIDTH)
    sketch = Sketch(WIDTH, top + ROW * len(table) + foot + 0.05, title)
    lines = [title] if title else []
    for i, (name, slots) in enumerate(table.items()):
        sketch.text(0.15, top + i * ROW + SLOT_HEIGHT / 2, name, weight="bold")
        put_block(sketch, left, top + i * ROW, slots, wide)
        lines.append(f"{name}: {spell(slots)}")
    sketch.legend(top + ROW * len(table) + 0.15, states)
    return sketch.canvas, "\n".join(lines)


@picture
def draw_spans(rows: Mapping[str, Sequence[tuple]], title: str = "", unit: str = "slots") -> tuple[Canvas, str]:
    """Long stretches of memory to scale, in named rows.

    rows: {"Request A": [("token", 300), ("reserved", 100, "later")]}. A span is (state, length) or
    (state, length, words); the words stand in the span where they fit, else the length does.
    """
    spans = {name: [(*span, "")[:3] for span in row] for name, row in rows.items()}
    for state, length, _ in [span for row in spans.values() for span in row]:
        as_slot(("", state))
        if length < 0:
            raise ValueError(f"a span of {length} {unit} cannot be drawn: lengths start at 0")
    total = max((sum(length for _, length, _ in row) for row in spans.values()), default=0)
    if total <= 0:
        raise ValueError("nothing to draw: every row is empty")
    left = 0.3 + 0.085 * max(map(len, spans))
    scale = (WIDTH - left - 0.35) / total
    states = {state for row in spans.values() for state, length, _ in row if length}
    top = 0.5 if title else 0.15
    bottom = top + 0.5 * len(spans)
    sketch = Sketch(WIDTH, bottom + 0.35 + legend_height(states, WIDTH), title)
    lines = [title] if title else []
    for i, (name, row) in enumerate(spans.items()):
        x, y = left, top + 0.5 * i
        sketch.text(0.15, y + 0.19, name, weight="bold")
        for state, length, words in row:
            sketch.box(x, y, length * scale, 0.38, state)
            shown = next((s for s in (words, f"{length:,}") if s and 0.075 * len(s) + 0.08 < length * scale), "")
            sketch.text(x + length * scale / 2, y + 0.19, shown, ha="center", halo=True, size=8.5)
            x += length * scale
        lines.append(f"{name}: " + ", ".join(f"{n:,} {w or STATES[s].words}" for s, n, w in row if n))
    for mark in (0, total // 2, total):
        sketch.text(left + mark * scale, bottom + 0.06, f"{mark:,}", size=8, ha="center", colour="#444444")
    sketch.text(0.15, bottom + 0.06, unit, size=8, colour="#444444")
    sketch.legend(bottom + 0.37, states)
    return sketch.canvas, "\n".join([*lines, f"Total length {total:,} {unit}."])


@picture
def draw_sequence(
    tokens: Sequence[str],
    block_size: int,
    title: str = "",
    states: Mapping[int, str] | None = None,
    physical: Sequence[int] | None = None,
) -> tuple[Canvas, str]:
    """A sequence as the request sees it: tokens in order, cut into logical blocks of `block_size`.

    states: {position: state} where a token is not simply `token`. physical: each block's physical number.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; a block needs at least one slot")
    slots = [as_slot((words, (states or {}).get(i, "token"))) for i, words in enumerate(tokens)]
    slots += [("", "tail")] * (-len(slots) % block_size)
    blocks = [slots[i : i + block_size] for i in range(0, len(slots), block_size)]
    wide = min(needed_width(words for words, _ in slots), (WIDTH - 0.4) / block_size)
    gap = 0.22
    per_row = max(1, int((WIDTH - 0.3 + gap) / (wide * block_size + gap)))
    used = {state for _, state in slots}
    top, high = (0.55 if title else 0.2), (0.95 if physical else 0.62)
    bottom = top + high * -(-len(blocks) // per_row)
    sketch = Sketch(WIDTH, bottom + legend_height(used, WIDTH, bool(physical)) + 0.05, title)
    lines = [f"{title or 'A sequence'} ({counted(len(tokens), 'token')}, block size {block_size})"]
    for i, block in enumerate(blocks):
        x, y = 0.15 + (i % per_row) * (wide * block_size + gap), top + high * (i // per_row)
        sketch.text(x, y, f"logical {i}", size=8, colour="#444444")
        put_block(sketch, x, y + 0.13, block, wide)
        where = ""
        if physical:
            sketch.arrow(x + wide * block_size / 2, y + 0.45, x + wide * block_size / 2, y + 0.58)
            sketch.number(x + wide * block_size / 2, y + 0.70, physical[i])
            where = f" → physical {physical[i]}"
        lines.append(f"logical {i}{where}: {spell(block)}")
    sketch.legend(bottom + 0.15, used, bool(physical))
    return sketch.canvas, "\n".join(lines)
