"""A referee for Triton kernels: it watches every load and store of a run in the interpreter.

    referee = Referee()
    referee.watch("k_cache", k_cache, written=written)     # bool [num_blocks, block_size]: slots that hold a token
    referee.watch("out", out, written=False)
    with referee:
        kernel[grid](...)
    print(referee.report())

Loads and stores of every kind are watched: through pointers, block pointers and descriptors, and atomic operations.
It reports reads of memory that nobody wrote, addresses outside every tensor (and does not carry them out, so the
process lives on), elements written twice, stores into an input, and the bytes moved beside the least possible. Each
finding names the line of the kernel, the program, the place in the tensor, and for a cache shows a picture of the
blocks around it. A lane whose load is masked out, with no ``other`` said, holds poison: a GPU promises nothing there.
"""

from __future__ import annotations

import linecache
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

RULES = {
    "unwritten": "reads memory that nobody has written",
    "outside": "reaches outside every tensor of the kernel",
    "twice": "writes an element that was written before",
    "input": "writes into an input",
}


@dataclass
class Finding:
    """One broken rule at one line of the kernel; ``count`` elements, the first of them described by ``where``."""

    rule: str
    kind: str  # "load", "store" or "atomic"
    file: str
    line: int
    program: tuple[int, int, int]
    where: str
    count: int = 1
    picture: str = ""

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.line).strip()
        text = (
            f"{Path(self.file).name}:{self.line}: the {self.kind} {RULES[self.rule]} ({self.count} elements)\n"
            f"    {source}\n"
            f"    first: {self.where}, in program {self.program}"
        )
        return f"{text}\n{self.picture}" if self.picture else text


@dataclass
class RefereeReport:
    """What the referee saw. ``loaded`` and ``stored``: bytes by tensor; lanes of one load that share an address count
    once, as a GPU coalesces them. ``touched``: bytes of different addresses, the least that had to be moved."""

    findings: list[Finding] = field(default_factory=list)
    loaded: dict[str, int] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    touched: int = 0

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def bytes_moved(self) -> int:
        return sum(self.loaded.values()) + sum(self.stored.values())

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings] or ["no broken rule"]
        lines.append(f"bytes moved: {self.bytes_moved} (different bytes touched: {self.touched})")
        for verb, counts in (("loaded", self.loaded), ("stored", self.stored)):
            lines += [f"  {verb:6} {name:16} {count:>12}" for name, count in counts.items()]
        return "\n".join(lines)


class _Watched:
    """One tensor: its addresses, which elements are written, by which program, and which were read."""

    def __init__(self, name: str, tensor: Tensor, written: Tensor | bool, read_only: bool = False) -> None:
        self.tensor = tensor  # held, so that its memory is not given to another tensor while it is watched
        self.read_only = read_only
        self.name, self.base, self.itemsize = name, tensor.data_ptr(), tensor.element_size()
        self.shape, self.strides = tuple(tensor.shape), tensor.stride()
        self.span = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if tensor.numel() else 0
        self.end = self.base + self.span * self.itemsize
        given = np.asarray(written)
        given = given.reshape(given.shape + (1,) * (len(self.shape) - given.ndim))
        self.written = np.broadcast_to(given, self.shape).copy()
        self.read = np.zeros(self.shape, bool)
        self.writer = np.full(self.shape, -1, np.int64)  # number of the program that stored here, −1 for none

    def index(self, addresses: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Coordinates of each address, and whether it is an element at all (a strided view has gaps)."""
        rest, aligned = np.divmod(addresses.astype(np.int64) - self.base, self.itemsize)
        coordinates: list[np.ndarray] = [np.zeros_like(rest)] * len(self.shape)
        inside = (aligned == 0) & (rest >= 0) & (rest < self.span)
        for axis in sorted(range(len(self.shape)), key=lambda i: -self.strides[i]):
            if self.shape[axis] > 1 and self.strides[axis] > 0:  # an expanded axis has the stride 0
                coordinates[axis], rest = np.divmod(rest, self.strides[axis])
                inside &= coordinates[axis] < self.shape[axis]
        return tuple(np.where(inside, c, 0) for c in coordinates), inside & (rest == 0)

    def beside(self, address: int) -> str:
        """Where an address lies that is no element, but in the memory from which the tensor was cut; else nothing.

        Distances to other memory say nothing: they differ from run to run.
        """
        storage = self.tensor.untyped_storage()
        if not storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
            return ""
        whole = f"{self.name} {list(self.shape)}"
        if address < self.base:
            return f"{self.base - address} bytes before the start of {whole}"
        if address >= self.end:
            return f"{address - self.end} bytes behind the end of {whole}" if address > self.end else f"behind {whole}"
        return f"a gap inside {whole}, strides {list(self.strides)}"

    @property
    def is_cache(self) -> bool:
        return len(self.shape) == 4 and ("cache" in self.name or self.name in ("k", "v"))

    def describe(self, coordinates: tuple[int, ...]) -> str:
        place = f"{self.name}[{', '.join(map(str, coordinates))}]"
        if self.is_cache:
            place += " (block {}, slot {}, KV head {}, element {})".format(*coordinates)
        return place

    def picture(self, coordinates: tuple[int, ...], around: int = 2) -> str:
        """The blocks near the place: # written, . never written, r read, ! the place itself."""
        if not self.is_cache:
            return ""
        block, slot = coordinates[:2]
        rows = []
        for b in range(max(0, block - around), min(self.shape[0], block + around + 1)):
            marks = np.where(self.written[b].all(axis=(1, 2)), "#", ".")
            marks[self.read[b].any(axis=(1, 2)) & (marks == "#")] = "r"
            if b == block:
                marks[slot] = "!"
            rows.append(f"    block {b:>4} |{''.join(marks)}|")
        return "\n".join([*rows, "    # written, . never written, r written and read, ! here"])


class Referee:
    """Watches kernels while it is entered (``with referee: …``). One at a time; interpreter only."""

    def __init__(self) -> None:
        self._tensors: list[_Watched] = []
        self._findings: dict[tuple, Finding] = {}
        self._loaded: dict[str, int] = {}
        self._stored: dict[str, int] = {}

    def watch(self, name: str, tensor: Tensor, written: Tensor | bool = True, read_only: bool = False) -> None:
        """Name a tensor that the kernel may touch.

        ``written``: True, False, or a bool tensor of the first axes ([num_blocks, block_size] for a cache).
        ``read_only``: an input; a store into it is a finding.
        Other arguments of a kernel are watched from its launch on, and count as written; what ``torch.empty`` and
        ``torch.empty_like`` return while the referee is entered counts as unwritten.
        """
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, but the referee watches torch tensors")
        if isinstance(written, Tensor) and written.shape != tensor.shape[: written.ndim]:
            raise ValueError(
                f"written is {list(written.shape)}, but {name} is {list(tensor.shape)}: give one bool for each place "
                "of its first axes"
            )
        self._tensors.append(_Watched(name, tensor, written, read_only))

    def observe(self, kind: str, name: str, coordinates: tuple[np.ndarray, ...], program: tuple[int, int, int]) -> None:
        """Called with every load and store: a place for those who draw what a kernel touches. Nothing happens here."""

    def report(self) -> RefereeReport:
        touched = sum(int((w.read | (w.writer >= 0)).sum()) * w.itemsize for w in self._tensors)
        return RefereeReport(list(self._findings.values()), dict(self._loaded), dict(self._stored), touched)

    def __enter__(self) -> Referee:
        from triton.runtime import interpreter

        from minipaged.attention.triton.launch_kernels import interpreted

        if not interpreted():
            raise RuntimeError(
                "the referee watches Triton's interpreter, which is off in this process: set the environment variable "
                "TRITON_INTERPRET=1 before Python starts"
            )
        self._builder = builder = interpreter.interpreter_builder
        load, store, launch = builder.create_masked_load, builder.create_masked_store, interpreter.GridExecutor.__call__

        update, exchange = builder.create_atomic_rmw, builder.create_atomic_cas

        def watched_load(ptrs, mask, other, *rest, **named):
            elsewhere = _poison(ptrs) if other is None else other
            return load(ptrs, self._check("load", ptrs, mask), elsewhere, *rest, **named)

        def watched_store(ptrs, value, mask, *rest):
            return store(ptrs, value, self._check("store", ptrs, mask), *rest)

        def watched_update(operation, ptrs, value, mask, *rest):
            return update(operation, ptrs, value, self._check("atomic", ptrs, mask), *rest)

        def watched_exchange(ptrs, *rest):  # has no mask: what is not carried out goes to a place of its own
            everywhere = interpreter.TensorHandle(np.ones(ptrs.data.shape, bool), ptrs.dtype)
            elsewhere = np.zeros(1, np.uint64)
            allowed = self._check("atomic", ptrs, everywhere).data
            addresses = np.where(allowed, ptrs.data, np.uint64(elsewhere.ctypes.data))
            return exchange(interpreter.TensorHandle(addresses, ptrs.dtype), *rest)

        def watched_launch(executor, *args, **kwargs):
            for name, argument in [*zip(executor.arg_names, args, strict=False), *kwargs.items()]:
                if isinstance(argument, Tensor) and argument.numel() and not self._knows(argument):
                    self.watch(name.removesuffix("_ptr"), argument)
            return launch(executor, *args, **kwargs)

        def watched_empty(make):
            def empty(*args, **kwargs):
                tensor = make(*args, **kwargs)
                self.watch(f"scratch {list(tensor.shape)}", tensor, written=False)
                return tensor

            return empty

        self._patches = ExitStack()
        for owner, name, replacement in (
            (builder, "create_masked_load", watched_load),  # all other loads and stores end in these two
            (builder, "create_masked_store", watched_store),
            (builder, "create_atomic_rmw", watched_update),
            (builder, "create_atomic_cas", watched_exchange),
            (interpreter.GridExecutor, "__call__", watched_launch),
            (torch, "empty", watched_empty(torch.empty)),
            (torch, "empty_like", watched_empty(torch.empty_like)),
        ):
            self._patches.enter_context(patch.object(owner, name, replacement))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _knows(self, tensor: Tensor) -> bool:
        return any(w.index(np.array([tensor.data_ptr()]))[1].all() for w in self._tensors)

    def _check(self, kind: str, ptrs, mask):
        """Account for one access; returns its mask without the lanes that must not be carried out."""
        from triton.language import int1
        from triton.runtime.interpreter import TensorHandle

        # A mask computed with a scalar condition is an array of small integers, which would index instead of select.
        lanes = np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)
        addresses = np.asarray(ptrs.data)[lanes]
        unique, inverse, counts = np.unique(addresses, return_inverse=True, return_counts=True)
        good = np.zeros(len(unique), bool)
        for tensor in self._tensors if len(unique) else ():
            if unique[0] < tensor.end and unique[-1] >= tensor.base:  # K and V of one pool lie between each other
                here = np.flatnonzero(~good & (unique >= tensor.base) & (unique < tensor.end))
                good[here] = self._account(kind, tensor, unique[here], counts[here])
        if not good.all():
            first = int(unique[np.flatnonzero(~good)[0]])
            where = next(filter(None, (w.beside(first) for w in self._tensors)), "in the memory of no tensor")
            self._find("outside", kind, where, int((~good).sum()))
        if good.all():
            return mask
        carried_out = np.zeros(ptrs.data.shape, bool)
        carried_out[lanes] = good[inverse.reshape(-1)]
        return TensorHandle(carried_out, int1)

    def _account(self, kind: str, tensor: _Watched, addresses: np.ndarray, counts: np.ndarray) -> np.ndarray:
        at, good = tensor.index(addresses)
        if not good.any():
            return good
        at = tuple(c[good] for c in at)
        loads, stores = kind in ("load", "atomic"), kind in ("store", "atomic")
        for total in [self._loaded] * loads + [self._stored] * stores:
            total[tensor.name] = total.get(tensor.name, 0) + int(good.sum()) * tensor.itemsize
        self.observe(kind, tensor.name, at, self._builder.grid_idx)
        if loads:
            tensor.read[at] = True
            self._find_at("unwritten", kind, tensor, at, ~tensor.written[at])
        if stores:
            if kind == "store":  # atomic operations on one element follow each other, as they are meant to
                self._find_at("twice", kind, tensor, at, (tensor.writer[at] >= 0) | (counts[good] > 1))
            self._find_at("input", kind, tensor, at, np.full(len(at[0]), tensor.read_only))
            tensor.writer[at] = self._program_number()
            tensor.written[at] = True
        return good

    def _find_at(self, rule: str, kind: str, tensor: _Watched, at: tuple, bad: np.ndarray) -> None:
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            place = tuple(int(c[first]) for c in at)
            where = tensor.describe(place)
            if rule == "twice" and tensor.writer[place] >= 0:
                where += f", written before by program number {tensor.writer[place]}"
            self._find(rule, kind, where, int(bad.sum()), tensor.picture(place))

    def _find(self, rule: str, kind: str, where: str, count: int, picture: str = "") -> None:
        file, line = _kernel_line()
        key = (rule, file, line)
        if key in self._findings:
            self._findings[key].count += count
        else:
            self._findings[key] = Finding(rule, kind, file, line, self._builder.grid_idx, where, count, picture)

    def _program_number(self) -> int:
        (x, y, z), (_, ny, nz) = self._builder.grid_idx, self._builder.grid_dim
        return (x * ny + y) * nz + z


def _poison(ptrs):
    """What a lane holds whose load was masked out with no ``other``: NaN, or a number that is nobody's."""
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    element = ptrs.get_element_ty()
    dtype = np.dtype(_get_np_dtype(element))
    bits = np.full((*ptrs.data.shape, dtype.itemsize), 0xFF if element.is_floating() else 0x55, np.uint8)
    return TensorHandle(bits.view(dtype)[..., 0], element)


def _kernel_line() -> tuple[str, int]:
    """The innermost frame that is neither Triton's nor the referee's: the line of the kernel (or its helper)."""
    import triton

    triton_folder = str(Path(triton.__file__).parent)
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(triton_folder):
            return file, frame.f_lineno
        frame = frame.f_back
    return "unknown", 0
