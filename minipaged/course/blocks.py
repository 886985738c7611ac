"""Pictures of the pool and of block tables: the three layers, as in the paper's Figures 6 to 9."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minipaged.course.canvas import BLACK, DASHES, GREY, SERIES, WIDTH, Canvas, Sketch, legend_height, picture
from minipaged.course.slots import ROW, SLOT_HEIGHT, Slot, as_slot, needed_width, put_block, spell
from minipaged.course.words import counted


def _pool_slots(block, slots: Sequence[Slot], block_size: int) -> list[tuple[str, str]]:
    """The slots of one physical block as a picture shows them; a free block keeps no text."""
    if block.ref_cnt == 0:
        return [("", "cached" if getattr(block, "block_hash", None) is not None else "free")] * block_size
    filled = [as_slot(slot, "shared" if block.ref_cnt > 1 else "token") for slot in slots]
    return filled + [("", "tail")] * (block_size - len(filled))


def _pool_words(blocks: Sequence, drawn: Mapping[int, Sequence[tuple[str, str]]], hidden: int) -> list[str]:
    free = [block.block_id for block in blocks if block.ref_cnt == 0]
    missing = f" ({hidden} not drawn)" if hidden else ""
    lines = [f"Pool of {counted(len(blocks), 'block')}, {len(free)} free{missing}:"]
    for block in blocks:
        if block.ref_cnt and block.block_id in drawn:
            lines.append(f"  physical {block.block_id}, count {block.ref_cnt}: {spell(drawn[block.block_id])}")
    return lines


@picture
def draw_pool(
    pool: Any,
    contents: Mapping[int, Sequence[Slot]],
    block_size: int,
    title: str = "",
    columns: int | None = None,
) -> tuple[Canvas, str]:
    """The physical blocks of a pool with their slots, numbers and reference counts.

    pool: a BlockPool, or a list of its blocks. contents: {physical number: texts of the written slots};
    a text may be (text, state). The rest of a block in use is drawn as owned, not yet written; a block with
    count 0 as free.
    """
    blocks = list(getattr(pool, "blocks", pool))
    drawn = {b.block_id: _pool_slots(b, contents.get(b.block_id, ()), block_size) for b in blocks}
    wide = min(needed_width(w for slots in drawn.values() for w, _ in slots), (WIDTH - 1.2) / block_size)
    one = 0.5 + wide * block_size + 0.45
    columns = columns or max(1, min(int((WIDTH - 0.2) / one), -(-len(blocks) // 4)))
    used = {state for slots in drawn.values() for _, state in slots}
    rows = -(-len(blocks) // columns)
    top = 0.5 if title else 0.15
    sketch = Sketch(WIDTH, top + rows * ROW + legend_height(used, WIDTH, True, True) + 0.05, title)
    for i, block in enumerate(blocks):
        x, y = 0.15 + one * (i // rows), top + ROW * (i % rows)
        sketch.number(x + 0.2, y + SLOT_HEIGHT / 2, block.block_id, BLACK if block.ref_cnt else GREY)
        put_block(sketch, x + 0.45, y, drawn[block.block_id], wide)
        if block.ref_cnt:
            sketch.badge(x + 0.45 + wide * block_size + 0.18, y + SLOT_HEIGHT / 2, block.ref_cnt)
    sketch.legend(top + rows * ROW + 0.15, used, True, True)
    return sketch.canvas, "\n".join([title or "A pool", *_pool_words(blocks, drawn, 0)])


@picture
def draw_block_table(
    manager: Any,
    requests: Any,
    texts: Any,
    title: str = "",
    new: Mapping[str, Iterable[int]] | None = None,
    names: Mapping[str, str] | None = None,
) -> tuple[Canvas, str]:
    """The three layers: logical blocks of each request, its block table, the pool (the paper's Figs. 6 to 9).

    manager: a KVCacheManager. requests: one CacheRequest or a list. texts: the tokenizer, or a function from a
    token id to its text, or {request_id: token texts}. The first `num_computed_tokens` tokens count as written.
    new: {request_id: positions} written in this step, drawn in another colour. names: {request_id: name in the
    picture}. A pool of more than 16 blocks is drawn without its free blocks.
    """
    requests = list(requests) if isinstance(requests, (list, tuple)) else [requests]
    size, blocks = manager.block_size, list(manager.pool.blocks)
    views, contents = [], {}
    for request in requests:
        words = _words(request, texts)
        ids, written = list(manager.block_ids(request.request_id)), request.num_computed_tokens
        fresh = set((new or {}).get(request.request_id, ()))
        rows = []
        for i, block_id in enumerate(ids):
            state = "shared" if blocks[block_id].ref_cnt > 1 else "token"
            span = range(i * size, min((i + 1) * size, written))
            slots = [(words[p], "new" if p in fresh else state) for p in span]
            contents[block_id] = max(contents.get(block_id, []), slots, key=_how_much)
            rows.append((block_id, len(slots), slots + [("", "tail")] * (size - len(slots))))
        views.append(((names or {}).get(request.request_id, request.request_id), written, rows))
    shown = [b for b in blocks if len(blocks) <= 16 or b.ref_cnt]
    drawn = {b.block_id: _pool_slots(b, contents.get(b.block_id, ()), size) for b in shown}
    return _three_layers(title, size, views, blocks, shown, drawn)


def _words(request: Any, texts: Any) -> list[str]:
    """The text of each token of a request, from a tokenizer, a function or a dictionary."""
    if hasattr(texts, "decode"):
        return [texts.decode([token]) for token in request.token_ids]
    return [texts(token) for token in request.token_ids] if callable(texts) else list(texts[request.request_id])


def _how_much(slots: Sequence[tuple[str, str]]) -> tuple[int, bool]:
    """Of two views of one block, the fuller one is drawn, and of equal ones the one that marks a new slot."""
    return len(slots), any(state == "new" for _, state in slots)


def _three_layers(title, size, views, blocks, shown, drawn) -> tuple[Canvas, str]:
    words = [w for slots in drawn.values() for w, _ in slots]
    fixed = 0.15 + 0.3 + 0.35 + 1.45 + 0.75 + 0.4 + 0.5
    # Slots of one width from step to step, so that a stepper does not jump.
    wide = min(max(needed_width(words), 0.58), (WIDTH - fixed) / (2 * size))
    table_x = 0.45 + wide * size + 0.35
    pool_x = table_x + 1.45 + 0.75 + 0.4
    width = max(pool_x + wide * size + 0.5, 5.6)
    used = {state for slots in drawn.values() for _, state in slots}
    used |= {state for _, _, rows in views for *_, slots in rows for _, state in slots}
    top = 0.85 if title else 0.5
    left_high = sum(0.34 + ROW * max(len(rows), 1) for _, _, rows in views)
    bottom = top + max(left_high, ROW * len(shown))
    sketch = Sketch(width, bottom + legend_height(used, width, True, True) + 0.05, title)
    for x, head in (
        (0.45, "logical blocks"),
        (table_x, "block table"),
        (pool_x, "physical blocks: one pool"),
    ):
        sketch.text(x, top - 0.28, head, size=9, style="italic", colour="#444444")
    at = {}
    for i, block in enumerate(shown):
        y = top + ROW * i
        at[block.block_id] = y + SLOT_HEIGHT / 2
        sketch.number(pool_x - 0.22, at[block.block_id], block.block_id, BLACK if block.ref_cnt else GREY)
        put_block(sketch, pool_x, y, drawn[block.block_id], wide)
        if block.ref_cnt:
            sketch.badge(pool_x + wide * size + 0.2, at[block.block_id], block.ref_cnt)
    lines, y = [title or "Block tables"], top
    for n, (name, written, rows) in enumerate(views):
        colour, dash = SERIES[n % len(SERIES)], DASHES[n % len(DASHES)]
        sketch.text(0.15, y + 0.12, name, weight="bold", colour=colour)
        sketch.text(table_x + 0.02, y + 0.12, "physical no.  # filled", size=8, colour="#444444")
        lines.append(f"{name}: {counted(written, 'token')} written, block size {size}, {counted(len(rows), 'block')}")
        y += 0.30
        for i, (block_id, filled, slots) in enumerate(rows):
            middle = y + SLOT_HEIGHT / 2
            sketch.text(0.30, middle, i, ha="center")
            put_block(sketch, 0.45, y, slots, wide)
            sketch.box(table_x, y, 0.75, SLOT_HEIGHT)
            sketch.box(table_x + 0.75, y, 0.70, SLOT_HEIGHT)
            sketch.number(table_x + 0.375, middle, block_id)
            sketch.text(table_x + 1.10, middle, filled, ha="center")
            if block_id in at:
                sketch.arrow(table_x + 1.47, middle, pool_x - 0.40, at[block_id], colour, dash)
            lines.append(f"  logical {i} → physical {block_id}, filled {filled} of {size}: {spell(slots)}")
            y += ROW
        y += 0.04 if rows else ROW
    sketch.legend(bottom + 0.15, used, True, True)
    return sketch.canvas, "\n".join([*lines, *_pool_words(blocks, drawn, len(blocks) - len(shown))])
