"""A kernel typed in a notebook, with its helpers and constants, compiles for a GPU from an interpreting process."""

import linecache

import pytest

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported

pytest.importorskip("triton")

from minipaged.attention.own_kernel import DoesNotCompile, inspect_own, kernel_source

CELL = '''
import triton
import triton.language as tl
from triton.language import exp as e_to_the
from minipaged.attention.triton.softmax import softmax_update as update

K = tl.constexpr(16)
HALF = tl.constexpr(0.5)

@triton.jit
def double(x):
    return x + x

@triton.jit
def square_kernel(out_ptr, n, BLOCK: tl.constexpr):
    """A square matrix of scores."""
    i = tl.arange(0, BLOCK)
    a = tl.load(out_ptr + i[:, None] * K + tl.arange(0, K)[None, :])
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    m, l, acc = update(m, m * 0, a, tl.dot(a, tl.trans(a)), double(a), "ieee")
    tl.store(out_ptr + i, e_to_the(HALF * tl.sum(acc, axis=1)), mask=i < n)
'''
SIGNATURE = {"out_ptr": "*fp32", "n": "i32"}


def typed(source: str):
    """The kernel of a cell, as IPython runs it: its text is known to linecache only."""
    name = f"<cell {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    return namespace["square_kernel"]


def test_helpers_and_constants_come_along():
    source = kernel_source(typed(CELL))
    for part in ("K = tl.constexpr(16)", "HALF = tl.constexpr(0.5)", "def double(x)", "update = softmax_update"):
        assert source.count(part) == 1
    assert source.index("def softmax_update") < source.index("def square_kernel")


def test_it_compiles():
    report = inspect_own(typed(CELL), SIGNATURE, {"BLOCK": 16}, target="sm80", text="ptx")
    assert report.registers > 0
    assert ".target sm_80" in report.text


def test_the_compiler_s_own_words():
    with pytest.raises(DoesNotCompile, match=r"(?s)tl\.dot\(a.*K >= 16"):
        inspect_own(typed(CELL.replace("constexpr(16)", "constexpr(8)")), SIGNATURE, {"BLOCK": 16})


def test_what_is_left_out_is_named():
    with pytest.raises(ValueError, match="argument 'n' has no type"):
        inspect_own(typed(CELL), {"out_ptr": "*fp32"}, {"BLOCK": 16})
    with pytest.raises(ValueError, match="target 'sm42' is unknown"):
        inspect_own(typed(CELL), SIGNATURE, {"BLOCK": 16}, target="sm42")
