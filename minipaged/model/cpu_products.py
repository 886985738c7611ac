"""Matrix products with few rows, for the decode steps of an engine on a CPU.

A decode step of one request multiplies each weight matrix with one row, a step of eight requests with eight. The time
is then that of reading the weights, and a library made for large matrices can lose half of it. This product reads each
weight once, and uses it for all rows while it is in the nearest cache.
"""

from __future__ import annotations

from numba import njit

from minipaged.attention.cpu_kernels import OPTIONS
from minipaged.attention.cpu_vectors import B_ROWS, dots

WIDTH = 16


def is_able(outputs: int, inputs: int) -> bool:
    """Is a weight [outputs, inputs] of a size that ``product`` takes? Those of real models are."""
    return outputs % B_ROWS == 0 and inputs % WIDTH == 0


@njit(**OPTIONS)
def product(x, weight, out):
    """out = x · weightᵀ: x [T, K], weight [N, K], out [T, N], all contiguous. Four rows of the weight at a time."""
    rows, size = x.shape
    flat = weight.reshape(-1)
    for n in range(0, len(weight), B_ROWS):
        w0, w1, w2, w3 = n * size, (n + 1) * size, (n + 2) * size, (n + 3) * size
        t = 0
        while t + 4 <= rows:
            dots(4, WIDTH, x, t, flat, w0, w1, w2, w3, out, n)
            t += 4
        if t + 2 <= rows:
            dots(2, WIDTH, x, t, flat, w0, w1, w2, w3, out, n)
            t += 2
        if t < rows:
            dots(1, WIDTH, x, t, flat, w0, w1, w2, w3, out, n)
