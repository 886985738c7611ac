"""Month 3's pictures: the chain of hashes, and the free queue as the order of eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minipaged.course.canvas import BLACK, GREY, WIDTH, Canvas, Sketch, legend_height, picture
from minipaged.kv_cache import CacheRequest, KVCacheBlock, KVCacheManager

BOX, STEP, HIGH = 0.62, 0.71, 0.34


@picture
def draw_chain(chains: Mapping[str, Sequence[tuple[str, bytes]]], title: str = "") -> tuple[Canvas, str]:
    """Sequences cut into blocks, and each block's hash, made from the hash before it and the block's own tokens.

    chains: {name: [(text of the block, its hash), …]}. Blocks whose hash occurs in another row are drawn as shared.
    """
    rows = {name: list(blocks) for name, blocks in chains.items()}
    hashes = [block_hash for blocks in rows.values() for _, block_hash in blocks]
    left = 0.35 + 0.085 * max(map(len, rows))
    gap = 0.35
    wide = min(2.6, (WIDTH - left - 0.2) / max(map(len, rows.values())) - gap)
    top, high = (0.55 if title else 0.2), 1.12
    states = {"shared" if hashes.count(h) > 1 else "token" for h in hashes}
    bottom = top + high * len(rows)
    sketch = Sketch(WIDTH, bottom + legend_height(states, WIDTH) + 0.05, title)
    lines = [title or "A chain of hashes"]
    for i, (name, blocks) in enumerate(rows.items()):
        y = top + high * i
        sketch.text(0.15, y + HIGH / 2, name, weight="bold")
        said = []
        for k, (words, block_hash) in enumerate(blocks):
            x, shared = left + k * (wide + gap), hashes.count(block_hash) > 1
            sketch.box(x, y, wide, HIGH, "shared" if shared else "token")
            fits = int((wide - 0.1) / 0.075)
            shown = words if len(words) <= fits else words[: fits - 1] + "…"
            sketch.text(x + wide / 2, y + HIGH / 2, shown, ha="center", halo=True, size=8.5)
            sketch.arrow(x + wide / 2, y + HIGH, x + wide / 2, y + 0.58)
            sketch.number(x + wide / 2, y + 0.72, block_hash[:3].hex())
            if k:
                sketch.arrow(x - gap - wide / 2 + 0.36, y + 0.72, x + wide / 2 - 0.36, y + 0.72)
            said.append(f"[{words}] → {block_hash[:3].hex()}" + (" (also in another row)" if shared else ""))
        lines.append(f"{name}: " + "; then ".join(said))
    sketch.legend(bottom + 0.1, states)
    lines.append("Each hash covers the hash before it and the block's own tokens; its first six hex digits are shown.")
    return sketch.canvas, "\n".join(lines)


@picture
def draw_free_queue(
    manager: KVCacheManager,
    requests: Sequence[CacheRequest],
    contents: Mapping[int, str],
    title: str = "",
) -> tuple[Canvas, str]:
    """Who uses which block, and the free queue below it: the front is handed out, and so evicted, first.

    contents: {physical number: what the block holds or held, for example "r0·2" for logical block 2 of r0}.
    """
    queue = list(manager.pool.free_queue)
    left, top = 1.2, 0.6 if title else 0.3
    used = {"token", "shared", "cached", "free"}
    queue_y = top + 0.62 * len(requests) + 0.3
    sketch = Sketch(WIDTH, queue_y + 0.85 + legend_height(used, WIDTH, True, True) + 0.1, title)
    lines = [title or "The free queue"]
    for i, request in enumerate(requests):
        # A request without blocks keeps its row: the picture keeps its height from step to step.
        known = manager.has_blocks(request.request_id)
        y, blocks = top + 0.62 * i, manager.block_table(request.request_id).blocks if known else []
        sketch.text(0.15, y + HIGH / 2, request.request_id, weight="bold")
        if not blocks:
            sketch.text(left, y + HIGH / 2, "no blocks", colour=GREY, style="italic")
        for k, block in enumerate(blocks):
            _put(sketch, left + STEP * k, y, block, contents, "shared" if block.ref_cnt > 1 else "token")
        said = ", ".join(f"{b.block_id} (count {b.ref_cnt})" for b in blocks)
        lines.append(f"{request.request_id}: " + (f"blocks {said}" if said else "no blocks"))
    sketch.text(0.15, queue_y + HIGH / 2, "free queue", weight="bold")
    sketch.text(left, queue_y - 0.16, "front: handed out next" if queue else "empty", size=8, colour="#444444")
    for k, block in enumerate(queue):
        _put(sketch, left + STEP * k, queue_y, block, contents, "cached" if block.block_hash else "free")
    sketch.legend(queue_y + 0.95, used, True, True)
    named = [f"{b.block_id} ({'named, ' + contents.get(b.block_id, '') if b.block_hash else 'no name'})" for b in queue]
    lines.append("free queue, front first: " + (", ".join(named) or "empty"))
    return sketch.canvas, "\n".join(lines)


def _put(
    sketch: Sketch, x: float, y: float, block: KVCacheBlock, contents: Mapping[int, str], state: str
) -> None:
    """One block: its state, its number, its count where it has users, and below it what it holds."""
    sketch.box(x, y, BOX, HIGH, state, edge=GREY if state == "free" else BLACK, dashed=state == "free")
    middle, colour = (0.17, BLACK) if block.ref_cnt else (BOX / 2, GREY)
    sketch.number(x + middle, y + HIGH / 2, block.block_id, colour)
    if block.ref_cnt:
        sketch.badge(x + BOX - 0.16, y + HIGH / 2, block.ref_cnt)
    if block.ref_cnt or block.block_hash:
        sketch.text(x + BOX / 2, y + HIGH + 0.11, contents.get(block.block_id, ""), size=7.5, ha="center")
