"""Month 6: answers that must fail, each with its hint, and other right answers.

Most wrong kernels are the solution with a line changed: that is how they go wrong.
"""

from minipaged.course.notebook_tools.answers import solution_of
from tests.course.answers import Alternative, Wrong


def changed(exercise: str, why: str, hint: str, *lines: tuple[str, str], status: str = "failed") -> Wrong:
    """The solution, with other text in place of some of its own: (right, wrong) pairs."""
    code = solution_of(exercise)
    for right, wrong in lines:
        assert right in code, f"{exercise} has no longer {right!r}"
        code = code.replace(right, wrong)
    return Wrong(exercise, why, hint, code, status)


ANSWERS = [
    changed("6.1", "no mask on the store", "Mask load and store", ("x + y, mask=mask", "x + y")),
    changed("6.1", "no mask on the loads", "Mask load and store", ("+ offsets, mask=mask)\n", "+ offsets)\n")),
    changed("6.1", "no mask at all", "Mask load and store", (", mask=mask", "")),
    changed("6.1", "the mask lets n through", "have no element", ("offsets < n", "offsets <= n")),
    changed("6.1", "each program adds the first elements", "begin at tl.program_id(0)", (
        "tl.program_id(0) * BLOCK + tl.arange", "tl.arange"
    )),
    changed("6.1", "the programs overlap", "begin at tl.program_id(0)", (
        "tl.program_id(0) * BLOCK + tl.arange", "tl.program_id(0) + tl.arange"
    )),
    changed("6.1", "the sum goes into y", "Which pointer is the result's", ("tl.store(out_ptr", "tl.store(y_ptr")),
    changed("6.1", "stores nothing", "nothing was stored", ("tl.store(out_ptr + offsets, x + y, mask=mask)", "x + y")),
    changed("6.1", "another signature", "signature as it was given", ("out_ptr, n, BLOCK", "out_ptr, BLOCK"), (
        "offsets < n", "offsets < BLOCK"
    )),
    Wrong("6.1", "no kernel", "@triton.jit", """
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK):
    out_ptr[:] = x_ptr + y_ptr
"""),
    Wrong("6.1", "a name that is not there", "NameError", """
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), summe)
""", status="error"),
    Alternative("6.1", "pointers first, fewer lanes than elements in a loop", """
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    x_ptr += first
    y_ptr += first
    for i in range(0, tl.minimum(BLOCK, n - first)):
        tl.store(out_ptr + first + i, tl.load(x_ptr + i) + tl.load(y_ptr + i))
"""),
    changed("6.2", "tl.arange(0, D)", "next_power_of_2", ("triton.next_power_of_2(head_dim)", "head_dim")),
    changed("6.2", "padded to a multiple of 32", "next_power_of_2", (
        "triton.next_power_of_2(head_dim)", "triton.cdiv(head_dim, 32) * 32"
    )),
    changed("6.2", "padded, not masked", "mask them out of both loads", (", mask=d < D, other=0.0", "")),
    changed("6.2", "only the query masked", "mask them out of both loads", (
        "k_ptr + n * D + d, mask=d < D, other=0.0", "k_ptr + n * D + d"
    )),
    changed("6.2", "masked, without other", "with other=0.0", (", other=0.0", "")),
    changed("6.2", "rows D_PAD apart", "mask", ("k_ptr + n * D + d", "k_ptr + n * D_PAD + d")),
    changed("6.2", "no scale", "the scale is missing", ("scale * tl.sum", "tl.sum")),
    changed("6.2", "returns nothing", "return `out`", ("    return out", "    return [out]")),
    Wrong("6.2", "torch computes it", "Let your kernel compute it", """
def scores(query, keys, scale):
    return scale * keys @ query
"""),
    Alternative("6.2", "two lanes of half the size, where() in place of a product with 0", """
@triton.jit
def dot_kernel(q_ptr, k_ptr, out_ptr, scale, D: tl.constexpr, HALF: tl.constexpr):
    n = tl.program_id(0)
    total = 0.0
    for part in tl.static_range(2):
        d = part * HALF + tl.arange(0, HALF)
        q = tl.load(q_ptr + d, mask=d < D)
        k = tl.load(k_ptr + n * D + d, mask=d < D)
        total += tl.sum(tl.where(d < D, q * k, 0.0), axis=0)
    tl.store(out_ptr + n, total * scale)


def scores(query, keys, scale):
    out = torch.zeros(len(keys))
    half = triton.next_power_of_2(triton.cdiv(query.numel(), 2))
    dot_kernel[(len(keys),)](query, keys, out, scale, D=query.numel(), HALF=half)
    return out
"""),
    changed("6.3", "the logical block as the physical one", "Read the entry", (
        "block = tl.load(table_ptr + i).to(tl.int64)", "block = i.to(tl.int64)"
    )),
    changed("6.3", "the first entry for all", "Read the entry", ("tl.load(table_ptr + i)", "tl.load(table_ptr)")),
    changed("6.3", "no cast", "Cast the block id to int64", (".to(tl.int64)", "")),
    changed("6.3", "no mask", "mask the slots", (", mask=mask", "")),
    changed("6.3", "the mask on the store only", "mask the slots", (
        "e[None, :], mask=mask)\n    tl", "e[None, :])\n    tl"
    )),
    changed("6.3", "no strides", "gaps", ("block * stride_block + slot[:, None] * stride_slot", (
        "(block * BLOCK_SIZE + slot[:, None]) * ROW"
    ))),
    changed("6.3", "rows of the logical block's slot only", "goes to the rows", ("out_ptr + pos[:, None]", (
        "out_ptr + slot[:, None]"
    ))),
    Alternative("6.3", "token by token", """
@triton.jit
def gather_kernel(
    out_ptr, cache_ptr, table_ptr, seq_len, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr, ROW: tl.constexpr
):
    i = tl.program_id(0)
    base = cache_ptr + tl.load(table_ptr + i).to(tl.int64) * stride_block
    e = tl.arange(0, ROW)
    for slot in range(0, BLOCK_SIZE):
        pos = i * BLOCK_SIZE + slot
        if pos < seq_len:
            tl.store(out_ptr + pos * ROW + e, tl.load(base + slot * stride_slot + e))
"""),
    changed("6.4", "l rescaled, acc not", "rescale both l and acc", ("acc * correction", "acc")),
    changed("6.4", "acc rescaled, l not", "rescale both l and acc", ("l_i * correction", "l_i")),
    changed("6.4", "each tile its own softmax", "l and acc go on from tile to tile", (
        "l_i * correction + ", ""), ("acc * correction + ", "")
    ),
    changed("6.4", "no maximum", "subtract the running maximum", (
        "m_new = tl.maximum(m_i, tl.max(scores, axis=0))", "m_new = 0.0"), ("tl.exp(m_i - m_new)", "1.0"),
    ),
    changed("6.4", "the tile's own maximum", "the largest score so far", (
        "m_new = tl.maximum(m_i, tl.max(scores, axis=0))", "m_new = tl.max(scores, axis=0)"
    ), ("tl.exp(m_i - m_new)", "1.0")),
    changed("6.4", "a missing score counts as 0", "not 0", ('other=-float("inf")', "other=0.0")),
    changed("6.4", "not divided", "divide acc by l", ("acc / l_i", "acc")),
    changed("6.4", "no masks", "its score is −inf", (', mask=i < n, other=-float("inf")', ""), (
        ", mask=(i < n)[:, None], other=0.0", ""
    )),
    Wrong("6.4", "the maximum first, then a second pass", "a first pass looked for the largest", """
@triton.jit
def softmax_mean_kernel(out_ptr, scores_ptr, values_ptr, n, TILE: tl.constexpr, D: tl.constexpr):
    d = tl.arange(0, D)
    largest = tl.load(scores_ptr)
    for i in range(1, n):
        largest = tl.maximum(largest, tl.load(scores_ptr + i))
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for i in range(0, n):
        weight = tl.exp(tl.load(scores_ptr + i) - largest)
        total += weight
        acc += weight * tl.load(values_ptr + i * D + d)
    tl.store(out_ptr + d, acc / total)
"""),
    Wrong("6.4", "one tile for all", "TILE of them at a time", """
@triton.jit
def softmax_mean_kernel(out_ptr, scores_ptr, values_ptr, n, TILE: tl.constexpr, D: tl.constexpr):
    i, d = tl.arange(0, 64), tl.arange(0, D)
    scores = tl.load(scores_ptr + i, mask=i < n, other=-float("inf"))
    values = tl.load(values_ptr + i[:, None] * D + d[None, :], mask=(i < n)[:, None], other=0.0)
    weights = tl.exp(scores - tl.max(scores, axis=0))
    tl.store(out_ptr + d, tl.sum(weights[:, None] * values, axis=0) / tl.sum(weights, axis=0))
"""),
    changed("6.4", "the maximum starts at 0", "m starts at −inf", ('m_i = -float("inf")', "m_i = 0.0")),
    changed("6.4", "the maximum starts at −10000", "m starts at −inf", ('m_i = -float("inf")', "m_i = -1e4")),
    Alternative("6.4", "score by score", """
@triton.jit
def softmax_mean_kernel(out_ptr, scores_ptr, values_ptr, n, TILE: tl.constexpr, D: tl.constexpr):
    d = tl.arange(0, D)
    m, total, acc = -float("inf"), 0.0, tl.zeros([D], tl.float32)
    for i in range(0, n):
        score = tl.load(scores_ptr + i)
        larger = tl.maximum(m, score)
        shrink, weight = tl.exp(m - larger), tl.exp(score - larger)
        total = total * shrink + weight
        acc = acc * shrink + weight * tl.load(values_ptr + i * D + d)
        m = larger
    tl.store(out_ptr + d, acc / total)
"""),
    changed("6.5", "also stores into the cache", "Which pointer is the result's", (
        "tl.store(out_ptr + at_query, acc / l_i)",
        "tl.store(out_ptr + at_query, acc / l_i)\n    tl.store(k_ptr + at_query, acc)",
    )),
    changed("6.5", "sequence and head swapped in the result", "of q, and of the result, begins at", (
        "tl.store(out_ptr + at_query", "tl.store(out_ptr + (head * num_heads + seq) * D + d"
    )),
    changed("6.5", "every sequence takes the first query", "its own query", (
        "(seq * num_heads + head) * D", "head * D"
    ), (
        "tl.store(out_ptr + at_query", "tl.store(out_ptr + (seq * num_heads + head) * D + d"
    )),
    changed("6.5", "V loaded without a mask", "0 · NaN", (
        "v = tl.load(v_ptr + at, mask=there[:, None], other=0.0)", "v = tl.load(v_ptr + at)"
    )),
    changed("6.5", "K loaded without a mask", "mask the load of K", (
        "k = tl.load(k_ptr + at, mask=there[:, None], other=0.0)", "k = tl.load(k_ptr + at)"
    )),
    changed("6.5", "one position too many", "positions 0 … seq_len − 1", ("+ slot < seq_len", "+ slot <= seq_len")),
    changed("6.5", "free slots weigh exp(0)", "its score is −inf", (
        "tl.where(there, scale * tl.sum(q[None, :] * k, axis=1), -float(\"inf\"))",
        "scale * tl.sum(q[None, :] * k, axis=1)",
    )),
    changed("6.5", "no scale", "the scale is missing", ("scale * tl.sum", "tl.sum")),
    changed("6.5", "every sequence reads the first table", "own row", ("seq * tables_stride + i", "i")),
    changed("6.5", "every head reads head 0", "stride_head", ("+ head * stride_head", "")),
    changed("6.5", "32-bit offsets", "cast the id", (".to(tl.int64)", "")),
    changed("6.5", "only the full blocks", "cdiv", ("tl.cdiv(seq_len, BLOCK_SIZE)", "seq_len // BLOCK_SIZE")),
    Alternative("6.5", "a tile of two blocks, all strides by pointer arithmetic", """
@triton.jit
def step(m, l, acc, scores, v):
    m_new = tl.maximum(m, tl.max(scores, axis=0))
    w = tl.exp(scores - m_new)
    shrink = tl.exp(m - m_new)
    return m_new, l * shrink + tl.sum(w, axis=0), acc * shrink + tl.sum(w[:, None] * v, axis=0)


@triton.jit
def paged_decode_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, seq_lens_ptr, scale, num_heads, stride_block, stride_slot, stride_head,
    tables_stride, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    tables_ptr += seq * tables_stride
    k_ptr += head * stride_head
    v_ptr += head * stride_head
    d = tl.arange(0, D)
    lane = tl.arange(0, 2 * BLOCK_SIZE)
    row = (seq * num_heads + head) * D + d
    q = tl.load(q_ptr + row) * scale
    n = tl.load(seq_lens_ptr + seq)
    m = -float("inf")
    l = 0.0
    acc = tl.zeros([D], tl.float32)
    for start in range(0, n, 2 * BLOCK_SIZE):
        pos = start + lane
        there = pos < n
        block = tl.load(tables_ptr + pos // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        at = (block * stride_block + pos % BLOCK_SIZE * stride_slot)[:, None] + d[None, :]
        k = tl.load(k_ptr + at, mask=there[:, None], other=0.0)
        v = tl.load(v_ptr + at, mask=there[:, None], other=0.0)
        m, l, acc = step(m, l, acc, tl.where(there, tl.sum(q[None, :] * k, axis=1), -float("inf")), v)
    tl.store(out_ptr + row, acc / l)
"""),
    changed("6.6", "modulo", "Floor-divide by the group", (
        "head = kv_head * GROUP + tl.arange(0, GROUP)", "head = tl.arange(0, GROUP) * tl.num_programs(0) + kv_head"
    )),
    changed("6.6", "the group's first head forgotten", "from j · GROUP on", (
        "kv_head * GROUP + tl.arange(0, GROUP)", "kv_head + tl.arange(0, GROUP)"
    )),
    changed("6.6", "no scale", "the scale is missing", ("scores = scale * ", "scores = ")),
    Wrong("6.6", "the keys loaded for every head", "outside of any loop over the heads", """
@triton.jit
def gqa_scores_kernel(out_ptr, q_ptr, k_ptr, scale, GROUP: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    for i in range(0, GROUP):
        head = tl.program_id(0) * GROUP + i
        k = tl.load(k_ptr + (n * tl.num_programs(0) + head // GROUP)[:, None] * D + d[None, :])
        q = tl.load(q_ptr + head * D + d)
        tl.store(out_ptr + head * N + n, scale * tl.sum(q[None, :] * k, axis=1))
"""),
    changed("6.6", "all programs read KV head 0", "k[token, KV head]", (
        "(n * tl.num_programs(0) + kv_head)", "(n * tl.num_programs(0))"
    )),
    Alternative("6.6", "a loop over the heads, keys loaded before it", """
@triton.jit
def gqa_scores_kernel(out_ptr, q_ptr, k_ptr, scale, GROUP: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    j = tl.program_id(0)
    k = tl.load(k_ptr + n[:, None] * (tl.num_programs(0) * D) + j * D + d[None, :])
    for head in range(j * GROUP, (j + 1) * GROUP):
        q = tl.load(q_ptr + head * D + d) * scale
        tl.store(out_ptr + head * N + n, tl.sum(q[None, :] * k, axis=1))
"""),
    changed("6.7", "padding is stored", "Skip padding", ("if slot >= 0:", "if slot >= -1:")),
    changed("6.7", "padding goes to slot 0", "Skip padding", (
        "slot = tl.load(slots_ptr + token)", "slot = tl.maximum(tl.load(slots_ptr + token), 0)"
    )),
    changed("6.7", "padding goes to the last slot, as in torch", "Skip padding", (
        "    if slot >= 0:", "    slot = tl.where(slot < 0, 23, slot)\n    if slot >= 0:"
    )),
    changed("6.7", "a slot too far", "Copy the ROW numbers", (
        "tl.load(slots_ptr + token)", "tl.load(slots_ptr + token) + 1"
    )),
    changed("6.7", "V forgotten", "its value to V", (
        "tl.store(v_ptr + at, tl.load(value_ptr + token * ROW + e))",
        "tl.store(k_ptr + at, tl.load(key_ptr + token * ROW + e))",
    )),
    changed("6.7", "the slot as a row", "gaps between the blocks", (
        "slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot", "slot * stride_slot"
    )),
    changed("6.7", "every program writes token 0", "row t of key and value", ("token * ROW", "0 * ROW")),
    Alternative("6.7", "a mask instead of an if", """
@triton.jit
def write_kernel(
    key_ptr, value_ptr, k_ptr, v_ptr, slots_ptr, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr, ROW: tl.constexpr
):
    e = tl.arange(0, ROW)
    token = tl.program_id(0)
    slot = tl.load(slots_ptr + token)
    there = (e < ROW) & (slot >= 0)
    block = slot // BLOCK_SIZE
    at = block * stride_block + (slot - block * BLOCK_SIZE) * stride_slot + e
    key = tl.load(key_ptr + token * ROW + e, mask=there)
    value = tl.load(value_ptr + token * ROW + e, mask=there)
    tl.store(k_ptr + at, key, mask=there)
    tl.store(v_ptr + at, value, mask=there)
"""),
    changed("6.8", "the tables as they were", "Logical order only", (
        "    new_tables[used] = new_ids[block_tables[used].long()].int()\n", ""
    )),
    changed("6.8", "the tables sorted", "Logical order only", ("return new_k, new_v, new_tables", (
        "return new_k, new_v, new_tables.sort(dim=1, descending=True).values"
    ))),
    changed("6.8", "reads where it should write", "the other way round", ("new_k[new_ids] = k_cache", (
        "new_k[:] = k_cache[new_ids]"
    ))),
    changed("6.8", "nothing moves", "its blocks must move too", ("new_v[new_ids] = v_cache", "new_v[:] = v_cache")),
    Wrong("6.8", "−1 as an index", "it stays −1", """
def move_blocks(k_cache, v_cache, block_tables, new_ids):
    inverse = new_ids.argsort()
    return k_cache[inverse], v_cache[inverse], new_ids[block_tables.long()].int()
"""),
    Wrong("6.8", "returns the caches only", "return k_cache, v_cache, tables", """
def move_blocks(k_cache, v_cache, block_tables, new_ids):
    return k_cache[new_ids.argsort()], v_cache[new_ids.argsort()]
"""),
    Alternative("6.8", "with the inverse permutation, entry by entry", """
def move_blocks(k_cache, v_cache, block_tables, new_ids):
    inverse = new_ids.argsort()
    tables = [[int(new_ids[b]) if b >= 0 else -1 for b in row] for row in block_tables.tolist()]
    return k_cache[inverse], v_cache[inverse], torch.tensor(tables, dtype=torch.int32)
"""),
    changed("6.9", "the plain mean", "Weight each part by exp(LSE)", (
        "weights = tl.exp(lse - tl.max(lse, axis=0))", "weights = tl.where(there, 1.0, 0.0)"
    )),
    changed("6.9", "log-sum-exps as weights", "Weight each part by exp(LSE)", (
        "weights = tl.exp(lse - tl.max(lse, axis=0))", "weights = tl.where(there, lse, 0.0)"
    )),
    changed("6.9", "exp without the largest", "subtract the largest", ("lse - tl.max(lse, axis=0)", "lse")),
    changed("6.9", "0 / 0 in an empty part", "An empty part has l = 0", (
        "total = tl.where(l_i == 0, 1.0, l_i)", "total = l_i"
    )),
    changed("6.9", "each part reads everything", "its own part of the blocks", (
        "range(split * per_split, tl.minimum((split + 1) * per_split, blocks))", "range(0, blocks)"
    )),
    changed("6.9", "rounded down, the rest is lost", "its own part of the blocks", (
        "tl.cdiv(blocks, num_splits)", "blocks // num_splits"
    )),
    changed("6.9", "the log-sum-exp without its maximum", "m + log(l)", ("m_i + tl.log(total)", "tl.log(total)")),
    changed("6.9", "lanes beyond the parts", "mask the loads", (', mask=there, other=-float("inf")', "")),
    changed("6.9", "the merge's rows lie SPLITS apart", "SPLITS counts padded lanes", (
        "lse_ptr + row * num_splits", "lse_ptr + row * SPLITS"
    )),
    changed("6.9", "V loaded without a mask", "0 · NaN", (
        "v = tl.load(v_ptr + at, mask=there[:, None], other=0.0)", "v = tl.load(v_ptr + at)"
    )),
    Alternative("6.9", "every num_splits-th block, merged part by part", """
@triton.jit
def split_kernel(
    part_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, seq_lens_ptr, scale, num_heads, stride_block, stride_slot,
    stride_head, tables_stride, num_splits, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
):
    row = tl.program_id(0) * num_heads + tl.program_id(1)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, D)
    n = tl.load(seq_lens_ptr + tl.program_id(0))
    q = tl.load(q_ptr + row * D + d) * scale
    m = -1e30
    l = 0.0
    acc = tl.zeros([D], tl.float32)
    for i in range(tl.program_id(2), tl.cdiv(n, BLOCK_SIZE), num_splits):
        block = tl.load(tables_ptr + tl.program_id(0) * tables_stride + i).to(tl.int64)
        there = i * BLOCK_SIZE + slot < n
        at = block * stride_block + slot[:, None] * stride_slot + tl.program_id(1) * stride_head + d[None, :]
        scores = tl.sum(q[None, :] * tl.load(k_ptr + at, mask=there[:, None], other=0.0), axis=1)
        scores = tl.where(there, scores, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=0))
        w = tl.exp(scores - m_new)
        l = l * tl.exp(m - m_new) + tl.sum(w, axis=0)
        v = tl.load(v_ptr + at, mask=there[:, None], other=0.0)
        acc = acc * tl.exp(m - m_new) + tl.sum(w[:, None] * v, axis=0)
        m = m_new
    part = row * num_splits + tl.program_id(2)
    if l > 0:
        tl.store(part_ptr + part * D + d, acc / l)
        tl.store(lse_ptr + part, m + tl.log(l))
    else:
        tl.store(part_ptr + part * D + d, acc)
        tl.store(lse_ptr + part, -float("inf"))


@triton.jit
def merge_kernel(out_ptr, part_ptr, lse_ptr, num_splits, SPLITS: tl.constexpr, D: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    largest = -1e30
    for s in range(0, num_splits):
        largest = tl.maximum(largest, tl.load(lse_ptr + row * num_splits + s))
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for s in range(0, num_splits):
        weight = tl.exp(tl.load(lse_ptr + row * num_splits + s) - largest)
        total += weight
        acc += weight * tl.load(part_ptr + (row * num_splits + s) * D + d)
    tl.store(out_ptr + row * D + d, acc / total)
"""),
    changed("6.10", "a step is one block, and tl.dot has K = 8", "The compiler wants at least 16", (
        "TILE: tl.constexpr = 32", "TILE: tl.constexpr = BLOCK_SIZE"
    )),
    changed("6.10", "a loop variable that starts as an integer", "keeps one type", (
        "l_i = tl.zeros([GROUP], tl.float32)", "l_i = 0"
    )),
    changed("6.10", "a break in the loop", "The interpreter accepts more", (
        "for start in range(0, seq_len, TILE):",
        "for start in range(0, 1000, TILE):\n        if start >= seq_len:\n            break",
    )),
    changed("6.10", "V loaded without a mask", "0 · NaN", (
        "v = tl.load(v_ptr + at, mask=there[:, None], other=0.0)", "v = tl.load(v_ptr + at)"
    )),
    changed("6.10", "32-bit offsets", "cast the id", (".to(tl.int64)", "")),
    changed("6.10", "the table loaded without a mask", "mask the load of the table", (
        "pos // BLOCK_SIZE, mask=there, other=0)", "pos // BLOCK_SIZE)"
    )),
    changed("6.10", "the heads by modulo", "KV head j serves", ("kv_head * GROUP + tl.arange(0, GROUP)", (
        "tl.arange(0, GROUP) * tl.num_programs(1) + kv_head"
    ))),
    Alternative("6.10", "products and sums instead of tl.dot, TILE as a global constant, a helper", """
TILE = tl.constexpr(16)


@triton.jit
def gathered(base, block, slot, stride_block, stride_slot, there, D: tl.constexpr):
    at = block.to(tl.int64) * stride_block + slot * stride_slot
    return tl.load(base + at[:, None] + tl.arange(0, D)[None, :], mask=there[:, None], other=0.0)


@triton.jit
def my_paged_decode_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, seq_lens_ptr, scale, num_heads, stride_block, stride_slot, stride_head,
    tables_stride, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
):
    seq = tl.program_id(0)
    j = tl.program_id(1)
    n = tl.load(seq_lens_ptr + seq)
    row = (seq * num_heads + j * GROUP + tl.arange(0, GROUP))[:, None] * D + tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + row) * scale
    m = tl.full([GROUP], -1e30, tl.float32)
    l = tl.full([GROUP], 0.0, tl.float32)
    acc = tl.full([GROUP, D], 0.0, tl.float32)
    for tile in range(0, tl.cdiv(n, TILE)):
        pos = tile * TILE + tl.arange(0, TILE)
        there = pos < n
        block = tl.load(tables_ptr + seq * tables_stride + pos // BLOCK_SIZE, mask=there, other=0)
        k = gathered(k_ptr + j * stride_head, block, pos % BLOCK_SIZE, stride_block, stride_slot, there, D)
        v = gathered(v_ptr + j * stride_head, block, pos % BLOCK_SIZE, stride_block, stride_slot, there, D)
        scores = tl.where(there[None, :], tl.sum(q[:, None, :] * k[None, :, :], axis=2), -float("inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=1))
        w = tl.exp(scores - m_new[:, None])
        l = l * tl.exp(m - m_new) + tl.sum(w, axis=1)
        acc = acc * tl.exp(m - m_new)[:, None] + tl.sum(w[:, :, None] * v[None, :, :], axis=1)
        m = m_new
    tl.store(out_ptr + row, acc / l[:, None])
"""),
]  # fmt: skip
