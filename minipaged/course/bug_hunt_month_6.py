"""Month 6's bug hunt: five kernels with one faulty line each. Relatives of four of them were reported against real
engines: see ``report``.

    show_suspect("A")     the source, the faulty line among the others
    hunt("A")             what the judge and its referee find: the case, the line, the blocks around it
    solution("A")         the line as it stands, and as it should

The suspects are the lesson's own kernels with one line exchanged, so everything else in them is right.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass

from minipaged.attention.judge import Verdict, judge_attend, judge_write
from minipaged.course.altered_kernels import altered
from minipaged.course.errors import CourseError
from minipaged.course.kernel_source import Source
from minipaged.course.kernels_month_6.cache import write
from minipaged.course.kernels_month_6.decode import decode
from minipaged.course.kernels_month_6.one_head import one_head_decode
from minipaged.course.kernels_month_6.split import split_decode


@dataclass(frozen=True)
class Suspect:
    """``function`` with the line ``right`` replaced by ``wrong``; ``kernels``: which parts of the module to show."""

    bug: str
    function: Callable
    kernels: tuple[str, ...]
    right: str
    wrong: str
    effect: str
    report: str  # where a relative of it was reported

    def candidate(self, name: str) -> Callable:
        return altered(self.function, self.right, self.wrong, f"suspect_{name}")


SUSPECTS = {
    "A": Suspect(
        "wrong split merge",
        split_decode,
        ("merge_kernel",),
        "weight = tl.exp(lse - tl.max(lse, axis=0))",
        "weight = tl.where(exists, 1.0, 0.0)",
        "Each split counts the same, whatever its share of the softmax, and empty splits count too.",
        "flash-attention#1217 (splits with varlen)",
    ),
    "B": Suspect(
        "query head as KV head",
        one_head_decode,
        ("one_head_kernel",),
        "kv_head = head // GROUP",
        "kv_head = head",
        "Query head 2 reads KV head 2, which is the next token's head 0; without groups nobody notices.",
        "no report: a test without groups misses it",
    ),
    "C": Suspect(
        "0 · NaN",
        decode,
        ("load_tile",),
        "v = tl.load(v_ptr + at, mask=mask, other=0.0)",
        "v = tl.load(v_ptr + at, mask=(d < D)[None, :], other=0.0)",
        "The weights of hidden keys are 0, but 0 · NaN is NaN: one unwritten slot poisons the whole row.",
        "vllm#936, vllm#641",
    ),
    "D": Suspect(
        "slot off by one",
        write,
        ("write_kernel",),
        "slot % BLOCK_SIZE * stride_slot + i",
        "(slot % BLOCK_SIZE + 1) * stride_slot + i",
        "Each token lands one slot further; the last slot of a block lands in the next physical block.",
        "vllm#53982 (slots past the table)",
    ),
    "E": Suspect(
        "int32 overflow",
        decode,
        ("load_tile",),
        "mask=readable, other=0).to(tl.int64)",
        "mask=readable, other=0)",
        "Block id × stride is computed in 32 bits, and becomes negative in a large pool.",
        "vllm#47671, vllm#50427",
    ),
}


def suspect(name: str) -> Suspect:
    """Raises CourseError for a name that none of them has."""
    if name not in SUSPECTS:
        raise CourseError(f"there is no suspect {name!r}; they are {', '.join(SUSPECTS)}")
    return SUSPECTS[name]


def show_suspect(name: str) -> Source:
    """The suspect's kernel, as its author would send it to you."""
    one = suspect(name)
    module = sys.modules[one.candidate(name).__module__]
    sources = [inspect.getsource(getattr(module, kernel).fn) for kernel in one.kernels]
    return Source("\n\n".join(sources))


def judge(name: str) -> Verdict:
    """The suspect before the judge: mean little batches, the referee watching every load and store."""
    one = suspect(name)
    return (judge_write if one.function is write else judge_attend)(one.candidate(name))


@functools.cache
def _judge_original(function: Callable) -> Verdict:
    return (judge_write if function is write else judge_attend)(function)


def judge_clean(name: str) -> Verdict:
    """The same kernel with its right line."""
    return _judge_original(suspect(name).function)


def hunt(name: str) -> Source:
    """The judge's verdict in words."""
    return Source(judge(name).message, "text")


def solution(name: str) -> Source:
    """The faulty line and the right one, and what the fault does."""
    one = suspect(name)
    return Source(f"  # {one.bug}: {one.effect}\n- {one.wrong}\n+ {one.right}", "diff")
