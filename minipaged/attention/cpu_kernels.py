"""The Numba kernels of ``cpu.py``. Built once for each head size and group, so that the compiler knows both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from minipaged.attention.cpu_vectors import adds, dots, width_for

TILE = 32  # tokens a step: enough to amortise a softmax update, and its K and V stay in the nearest caches
CACHE_LINE = 16  # float32 in 64 bytes
LOG2_E = np.float32(1.4426950408889634)
LN_2 = np.float32(0.6931471805599453)

# Sums may be reordered (else none is vectorised), but NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}
OPTIONS = {"nogil": True, "fastmath": FAST, "error_model": "numpy", "cache": True}


@intrinsic
def prefetch(typingctx, array, index):
    """Ask the CPU to bring ``array[index]`` into its nearest cache. Only a hint: any address is allowed."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [args[1]]), byte)
        builder.call(function, [address, word(0), word(3), word(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, index), codegen


@njit(**{**OPTIONS, "fastmath": FAST | {"nnan"}})
def largest(start, x):
    """The largest of ``start`` and ``x``. Only a maximum that may ignore NaN is vectorised, hence its own function."""
    for i in range(len(x)):
        start = max(start, x[i])
    return start


@njit(**OPTIONS)
def exp2(x):
    """2ˣ for x ≤ 0, float32, without a branch or a call, so that a loop over it is vectorised.

    x = n + f with |f| ≤ ½: the Taylor series of 2^f to the 7th power is right to 6 · 10⁻⁹, and 2ⁿ is written
    straight into the exponent's bits. Below 2⁻¹²⁶ the result stays 2⁻¹²⁶, which no sum in float32 notices.
    """
    x = np.float32(-126.0) if x < np.float32(-126.0) else x  # this way round NaN stays NaN
    n = np.floor(x + np.float32(0.5))
    y = (x - n) * LN_2
    series = np.float32(1 / 720) + y * np.float32(1 / 5040)
    series = np.float32(1 / 24) + y * (np.float32(1 / 120) + y * series)
    series = np.float32(1 / 2) + y * (np.float32(1 / 6) + y * series)
    series = np.float32(1) + y * (np.float32(1) + y * series)
    return series * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(**OPTIONS)
def find_slots(table, block_size, start, stop, stride_block, stride_slot, offsets):
    """Where the tokens ``start … stop − 1`` lie in the flat cache. This is all that paging adds.

    It walks along the table: one division a tile, for a division a token would be felt.
    """
    index = start // block_size
    offset = start - index * block_size
    for j in range(stop - start):
        offsets[j] = np.int64(table[index]) * stride_block + offset * stride_slot
        offset += 1
        if offset == block_size:
            index, offset = index + 1, 0


def build_attend(head_dim: int, group: int, parallel: bool = False) -> Callable:
    """The attention kernel for KV heads of ``head_dim`` that each serve ``group`` query heads.

    It does jobs: int64 [jobs, 4], each (first row, last row, first KV head, last KV head). If it is ``parallel``, each
    has a thread of its own, as far as there are some.
    """
    D, G = head_dim, group
    # How many query heads use a vector of K, or of V, while it is in a register. V's need more registers: the weights.
    FOR_K, FOR_V = next((n, min(n, 2)) for n in (4, 2, 1) if G % n == 0)
    WIDTH = width_for(D)

    def attend(
        jobs, query, k, v, out, lse, tables, rows, seqs, firsts, lengths, scale, block_size,
        k_stride_block, k_stride_slot, k_stride_head, v_stride_block, v_stride_slot, v_stride_head,
    ):  # fmt: skip
        for job in prange(len(jobs)):
            first_row, last_row, first_head, last_head = jobs[job]
            heads = (last_head - first_head) * G
            q = np.empty((heads, D), np.float32)
            scores = np.zeros((heads, TILE), np.float32)
            m = np.empty(heads, np.float32)
            total = np.empty(heads, np.float32)
            acc = np.empty((heads, D), np.float32)
            k_at, k_next, v_at = np.zeros(TILE, np.int64), np.zeros(TILE, np.int64), np.zeros(TILE, np.int64)

            for r in range(first_row, last_row):
                row, table, first, length = rows[r], tables[seqs[r]], firsts[r], lengths[r]
                for h in range(heads):
                    for d in range(D):  # 2^(x · log₂ e) is e^x: the factor goes into q, once
                        q[h, d] = query[row, first_head * G + h, d] * scale * LOG2_E
                m[:] = -np.inf
                total[:] = 0
                acc[:] = 0
                find_slots(table, block_size, first, min(first + TILE, length), k_stride_block, k_stride_slot, k_next)

                for start in range(first, length, TILE):
                    stop = min(start + TILE, length)
                    count = stop - start
                    k_at, k_next = k_next, k_at
                    find_slots(table, block_size, stop, min(stop + TILE, length), k_stride_block, k_stride_slot, k_next)
                    find_slots(table, block_size, start, stop, v_stride_block, v_stride_slot, v_at)

                    # Four tokens at a time: what they share is then loaded once for four. The last four are filled up
                    # with the last token, at weight 0: never with a slot that may be unwritten.
                    for j in range(count, (count + 3) // 4 * 4):
                        k_at[j], v_at[j] = k_at[count - 1], v_at[count - 1]

                    # Scores, for all heads of a token, because they lie side by side in memory.
                    for j in range(0, count, 4):
                        for h in range(last_head - first_head):
                            at = (first_head + h) * v_stride_head
                            for i in range(j, j + 4):
                                for d in range(0, D, CACHE_LINE):
                                    prefetch(v, at + v_at[i] + d)
                            at = (first_head + h) * k_stride_head
                            k0, k1, k2, k3 = at + k_at[j], at + k_at[j + 1], at + k_at[j + 2], at + k_at[j + 3]
                            for x in range(h * G, h * G + G, FOR_K):
                                dots(FOR_K, WIDTH, q, x, k, k0, k1, k2, k3, scores, j)

                    # The online softmax: weights of this tile, correction of what was summed before.
                    for h in range(heads):
                        m_new = largest(m[h], scores[h, :count])
                        correction = exp2(m[h] - m_new)
                        tile_total = np.float32(0)
                        for j in range(count):
                            scores[h, j] = exp2(scores[h, j] - m_new)
                            tile_total += scores[h, j]
                        m[h] = m_new
                        total[h] = total[h] * correction + tile_total
                        for d in range(D):
                            acc[h, d] *= correction

                    scores[:, count:] = 0
                    # Values.
                    for j in range(0, count, 4):
                        for h in range(last_head - first_head):
                            for i in range(j, j + 4):
                                at = k_next[i] + (first_head + h) * k_stride_head
                                for d in range(0, D, CACHE_LINE):
                                    prefetch(k, at + d)
                            at = (first_head + h) * v_stride_head
                            v0, v1, v2, v3 = at + v_at[j], at + v_at[j + 1], at + v_at[j + 2], at + v_at[j + 3]
                            for x in range(h * G, h * G + G, FOR_V):
                                adds(FOR_V, WIDTH, acc, x, v, v0, v1, v2, v3, scores, j)

                for h in range(heads):
                    for d in range(D):
                        out[row, first_head * G + h, d] = acc[h, d] / total[h]
                    lse[row, first_head * G + h] = (m[h] + np.log2(total[h])) * LN_2

    if parallel:
        attend.__qualname__ += "_parallel"  # Numba keeps what it compiled by name, and this is not the same
    return njit(**OPTIONS, parallel=parallel)(attend)


def build_write(head_dim: int) -> Callable:
    """The kernel that stores new rows of K and V in their slots."""
    D = head_dim

    @njit(**OPTIONS)
    def write(
        new_k, new_v, k, v, block_size,
        k_stride_block, k_stride_slot, k_stride_head, v_stride_block, v_stride_slot, v_stride_head, slots,
    ):  # fmt: skip
        for t in range(len(slots)):
            if slots[t] < 0:
                continue
            block, offset = divmod(slots[t], block_size)
            k_at = block * k_stride_block + offset * k_stride_slot
            v_at = block * v_stride_block + offset * v_stride_slot
            for h in range(new_k.shape[1]):
                for d in range(D):
                    k[k_at + h * k_stride_head + d] = new_k[t, h, d]
                    v[v_at + h * v_stride_head + d] = new_v[t, h, d]

    return write
