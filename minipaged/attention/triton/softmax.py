"""The one inner loop that the decode, split and prefill kernels share: attention over a range of a paged context."""

import triton
import triton.language as tl


@triton.jit
def softmax_update(m_i, l_i, acc, scores, values, PRECISION: tl.constexpr):
    """One step of the online softmax (``online_softmax.OnlineSoftmax.update`` in Triton).

    m_i, l_i [ROWS]; acc [ROWS, D]; scores [ROWS, TILE], −inf where hidden; values [TILE, D]. Returns the new
    m_i, l_i, acc.
    """
    m_new = tl.maximum(m_i, tl.max(scores, axis=1))
    # A row that has seen only hidden keys has m_new = −inf, and −inf − −inf is NaN: give it a finite base.
    base = tl.where(m_new == float("-inf"), 0.0, m_new)
    correction = tl.exp(m_i - base)
    weights = tl.exp(scores - base[:, None])
    l_i = l_i * correction + tl.sum(weights, axis=1)
    acc = acc * correction[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    return m_new, l_i, acc


@triton.jit
def attend_range(
    q,  # [ROWS, D_PAD], in the type of the dot products
    q_pos,  # [ROWS]: position of each row's query token in its context
    head,  # [ROWS]: query head of each row
    start,
    stop,  # the context positions to read: start … stop − 1
    m_i,
    l_i,
    acc,
    table_ptr,  # this sequence's row of the block tables
    k_ptr,
    v_ptr,  # already moved to this KV head
    k_stride_block,
    k_stride_slot,
    k_stride_dim,  # 1 in the usual layout: Triton then compiles it in, and loads 128 bits at once
    v_stride_block,
    v_stride_slot,
    v_stride_dim,
    scale,  # of the scores; k_scale of an fp8 cache is already in it
    slopes_ptr,
    soft_cap,
    window,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold the keys and values at ``start … stop − 1`` into the running softmax (m_i, l_i, acc) of every row.

    A tile is TILE tokens, not one block: each lane looks up the block of its own token, so one step gathers
    many table entries and any block size works. Physical offsets are 64-bit: block id × stride passes 2³¹ in
    a large pool.
    """
    d = tl.arange(0, D_PAD)
    lane = tl.arange(0, TILE)
    for tile_start in range(start, stop, TILE):
        pos = tile_start + lane
        readable = pos < stop
        block = tl.load(table_ptr + pos // BLOCK_SIZE, mask=readable, other=0).to(tl.int64)
        slot = (pos % BLOCK_SIZE).to(tl.int64)
        # The mask keeps unwritten slots out. Hiding their scores later is not enough for V: 0 · NaN is NaN.
        load_mask = readable[:, None] & (d < D)[None, :]
        k_offset = block * k_stride_block + slot * k_stride_slot
        k = tl.load(k_ptr + k_offset[:, None] + d[None, :] * k_stride_dim, mask=load_mask, other=0.0)
        v_offset = block * v_stride_block + slot * v_stride_slot
        v = tl.load(v_ptr + v_offset[:, None] + d[None, :] * v_stride_dim, mask=load_mask, other=0.0)
        # The conversion follows the load at once: the interpreter's bfloat16 arithmetic is wrong.
        k, v = k.to(DOT_TYPE), v.to(DOT_TYPE)

        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if SOFT_CAP:
            scores = soft_cap * (1 - 2 / (1 + tl.exp(2 * scores / soft_cap)))  # cap · tanh(score / cap)
        if ALIBI:
            slope = tl.load(slopes_ptr + head)
            scores += slope[:, None] * (pos[None, :] - q_pos[:, None]).to(tl.float32)
        visible = readable[None, :]
        if CAUSAL:
            visible = visible & (pos[None, :] <= q_pos[:, None])
        if WINDOW:
            visible = visible & (pos[None, :] > q_pos[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        m_i, l_i, acc = softmax_update(m_i, l_i, acc, scores, v, PRECISION)
    return m_i, l_i, acc
