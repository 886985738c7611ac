"""Pictures of Month 0: the cache step by step, memory in contiguous reservations, a budget of KV bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from minipaged.course.canvas import GREY, VERMILION, WIDTH, Canvas, Sketch, label, legend_height, picture
from minipaged.course.figures import Figure, draw_slots, draw_spans
from minipaged.course.month_0_memory import GIB, SHAPES, Slot, in_units, requests_that_fit
from minipaged.course.slots import SLOT_HEIGHT
from minipaged.course.words import counted

MEMORY_ROW = 0.58
MOST_SEGMENTS = 64


def draw_cache_steps(prompt: Sequence[str], sampled: Sequence[str], max_len: int) -> Figure:
    """The contiguous cache after the prefill and after each decode step, one row a step.

    The newest sampled token never stands in the row: it was only just chosen.
    """
    tokens = [*prompt, *sampled]
    rows = {}
    for step in range(len(sampled)):
        stored = len(prompt) + step
        first_new = 0 if step == 0 else stored - 1
        slots = [(text, "new" if i >= first_new else "token") for i, text in enumerate(tokens[:stored])]
        name = f"prefill  ⇒ {label(tokens[stored])}" if step == 0 else f"decode {step} ⇒ {label(tokens[stored])}"
        rows[name] = slots + [None] * (max_len - stored)
    return draw_slots(rows, "The cache of one layer after each step, and (⇒) the token that the step chose")


def draw_2048(stored: int, later: int, reserved: int = 2048) -> Figure:
    """One request that reserved `reserved` slots, to scale: stored now, stored later, never."""
    spans = [("token", stored), ("reserved", later), ("internal", reserved - stored - later)]
    return draw_spans({"one request": spans}, f"{reserved:,} slots reserved for one request")


@picture
def draw_memory(memory: Sequence[Slot], per_row: int = 10, title: str = "") -> tuple[Canvas, str]:
    """Memory slot by slot, `per_row` slots a line, each with its token's text; whose the slots are stands above."""
    if not memory:
        raise ValueError("nothing to draw: the memory has no slots")
    left, top = 0.65, 0.62 if title else 0.32
    wide = (WIDTH - left - 0.15) / per_row
    rows = -(-len(memory) // per_row)
    states = {slot.state for slot in memory}
    bottom = top + MEMORY_ROW * rows
    sketch = Sketch(WIDTH, bottom + legend_height(states, WIDTH) + 0.05, title)
    for row in range(rows):
        start = row * per_row
        y = top + MEMORY_ROW * row
        sketch.text(0.15, y + SLOT_HEIGHT / 2, start, size=8, colour="#444444")
        line = list(enumerate(memory[start : start + per_row]))
        for i, slot in line:
            sketch.slot(left + i * wide, y, wide, SLOT_HEIGHT, slot.text and label(slot.text), slot.state)
        for owner, group in groupby(line, key=lambda item: item[1].owner):
            first = next(group)[0]
            sketch.text(left + first * wide, y - 0.11, owner or "nobody", size=8, weight="bold",
                        colour="#000000" if owner else GREY)
    sketch.legend(bottom + 0.1, states)
    return sketch.canvas, "\n".join([title or "Memory, slot by slot", *_spans_in_words(memory)])


def _spans_in_words(memory: Sequence[Slot]) -> list[str]:
    lines, at = [], 0
    for (owner, state), group in groupby(memory, key=lambda slot: (slot.owner, slot.state)):
        slots = list(group)
        texts = " ".join(slot.text.strip() for slot in slots if slot.text)
        said = f": {texts}" if texts else ""
        where = f"slots {at}–{at + len(slots) - 1}" if len(slots) > 1 else f"slot {at}"
        lines.append(f"{where}: {owner or 'nobody'}, {state}{said}")
        at += len(slots)
    return lines


@picture
def draw_kv_budget(
    model: str = "OPT-13B", dtype: str = "fp16", tokens_each: int = 2048, requests: int = 7, memory_gib: float = 12
) -> tuple[Canvas, str]:
    """The KV cache of `requests` requests of `tokens_each` slots each, beside the memory that is there for it.

    Raises ValueError for an unknown model or dtype, and for counts below 1.
    """
    if model not in SHAPES:
        raise ValueError(f"model {model!r} is unknown; choose one of {', '.join(SHAPES)}")
    if requests < 1:
        raise ValueError(f"requests is {requests}; ask for at least 1")
    per_token = SHAPES[model].kv_bytes_per_token(dtype)
    memory = int(memory_gib * GIB)
    fit = requests_that_fit(memory, per_token, tokens_each)
    each = per_token * tokens_each
    verdict = "all fit" if fit >= requests else f"{requests - fit} of the {requests} must wait" if fit else "none fits"
    facts = [
        f"{model}, {dtype}: {in_units(per_token)} of K and V for each token",
        f"{counted(tokens_each, 'slot')} for each request: {in_units(each)}; "
        f"{counted(requests, 'request')}: {in_units(each * requests)}",
        f"{counted(memory // per_token, 'slot')} in {memory_gib:g} GiB, "
        f"room for {counted(fit, 'such request')}: {verdict}",
    ]
    sketch = Sketch(WIDTH, 3.05, "A budget of KV memory")
    for i, fact in enumerate(facts):
        sketch.text(0.15, 0.55 + 0.25 * i, fact, size=10)
    left, right = 1.15, WIDTH - 0.25
    scale = (right - left) / max(memory, each * requests)
    sketch.text(0.15, 1.55, "memory", weight="bold")
    sketch.box(left, 1.38, memory * scale, 0.34)
    sketch.text(0.15, 2.05, "requests", weight="bold")
    groups = min(requests, MOST_SEGMENTS)  # more segments than that are no longer seen: draw several as one
    for i in range(groups):
        first, last = requests * i // groups, requests * (i + 1) // groups
        state = "token" if last <= fit else "external"
        sketch.box(left + first * each * scale, 1.88, (last - first) * each * scale, 0.34, state)
    sketch.axes.plot([left + memory * scale] * 2, [1.30, 2.32], color=VERMILION, linestyle="--", linewidth=1.4)
    sketch.box(0.15, 2.62, 0.26, 0.18, "token")
    sketch.text(0.48, 2.71, "fits", size=8)
    sketch.box(1.15, 2.62, 0.26, 0.18, "external")
    sketch.text(1.48, 2.71, "does not fit", size=8)
    sketch.text(2.65, 2.71, "dashed line: the end of the memory", size=8)
    return sketch.canvas, "\n".join(["A budget of KV memory", *facts])
