"""Month 7's picture: which rank holds which heads of which block."""

from __future__ import annotations

from collections.abc import Sequence

from minipaged.course.canvas import GREY, WIDTH, Canvas, Sketch, picture
from minipaged.parallel import ParallelLayout

HIGH, GAP = 0.26, 0.12


@picture
def draw_ranks(layout: ParallelLayout, block_ids: Sequence[int], title: str = "") -> tuple[Canvas, str]:
    """A row a rank: the request's physical blocks in the table's order, each cut into its KV heads; filled: held here.

    The numbers of the blocks are the same in every row: there is one block table.
    """
    config, ranks = layout.config, range(layout.num_ranks)
    left, top = 2.1, 0.55 if title else 0.2
    wide = min(1.5, (WIDTH - left - 0.2) / len(block_ids) - 0.2)
    tall = HIGH * config.num_kv_heads
    row = tall + 0.5
    sketch = Sketch(WIDTH, top + row * layout.num_ranks + 0.4, title)
    lines = [title or "Which rank holds what"]
    lines.append(f"One block table for all ranks: physical blocks {', '.join(map(str, block_ids))}.")
    for rank, facts in zip(ranks, layout.rows(), strict=True):
        y = top + row * rank + 0.3
        sketch.text(0.15, y + tall / 2 - 0.1, f"rank {rank}", weight="bold")
        sketch.text(0.15, y + tall / 2 + 0.1, f"query heads {facts['query heads']}", size=8)
        held = layout.kv_heads(rank)
        for place, block_id in enumerate(block_ids):
            x = left + place * (wide + 0.2)
            sketch.number(x + wide / 2, y - 0.16, block_id)
            for head in range(config.num_kv_heads):
                here = head in held
                box = (x, y + head * HIGH, wide, HIGH)
                sketch.box(*box, "token" if here else "free", dashed=not here, **({} if here else {"edge": GREY}))
                words, colour = f"KV head {head}", "#000000" if here else GREY
                sketch.text(x + wide / 2, y + (head + 0.5) * HIGH, words, size=7.5, ha="center", colour=colour)
        whose = f"query heads {facts['query heads']}; of every block KV head {facts['KV heads']}"
        lines.append(f"rank {rank}: {whose}")
    sketch.text(0.15, top + row * layout.num_ranks + 0.2, "filled: in this rank's memory; dashed: elsewhere", size=8)
    return sketch.canvas, "\n".join(lines)
