"""What Month 6's lesson needs beside its kernels: batches, the program viewer, costs and errors to count."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from torch import Tensor

from minipaged.attention import paged_attention
from minipaged.attention.bench import bench_attention
from minipaged.attention.inspect import Report
from minipaged.attention.judge import Case, make_case
from minipaged.attention.referee import Referee
from minipaged.attention.triton.launch_kernels import choose_num_splits
from minipaged.course.canvas import Figure
from minipaged.course.charts import Table
from minipaged.course.figures_month_6 import draw_occupancy, draw_reads
from minipaged.course.kernel_trace import Trace, trace
from minipaged.course.slots import draw_slots
from minipaged.course.widgets import Explorer, Stepper
from minipaged.course.words import counted

Attend = Callable[..., Tensor]

# NVIDIA H100 SXM, from its data sheet: multiprocessors, dense bfloat16 TFLOP/s, TB/s of HBM3.
H100 = {"multiprocessors": 132, "tera_flops": 989.0, "tera_bytes": 3.35}
GPU_TILE = 64  # tokens per step that the package's kernels take there, for bfloat16 and a head size of 128


def paged_batch(seq_lens: Sequence[int], query_lens: Sequence[int] | None = None, **sizes: int) -> Case:
    """Sequences of random K and V in shuffled blocks, with NaN in every slot that holds no token.

    ``query_lens``: new tokens of each, one by default. ``sizes``: num_heads (4), num_kv_heads (2), head_dim (16),
    block_size (4), seed (0).
    """
    return make_case("", list(seq_lens), list(query_lens) if query_lens else None, **sizes)


def run(attend: Attend, batch: Case) -> Tensor:
    """The attention of a whole batch, by any function with the backends' arguments."""
    return attend(batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale)


def error(attend: Attend, batch: Case) -> float:
    """The largest difference from plain torch in float64, relative to the largest true value; NaN if any result is.

    The referee keeps the kernels inside their tensors, so that wrong ones do no harm, and give the same every time.
    """
    truth, _ = paged_attention(
        batch.query, batch.k_cache, batch.v_cache, batch.metadata, batch.scale, compute_dtype=torch.float64
    )
    with Referee(), np.errstate(invalid="ignore", divide="ignore"):  # a wrong kernel says NaN: no warning needed
        out = run(attend, batch)
    return float((out.double() - truth).abs().max() / truth.abs().max())


def small(value: float, limit: float = 1e-6) -> str:
    """An error as a lesson prints it: not its digits, which differ between machines, but what it is below."""
    return "NaN" if math.isnan(value) else f"below {limit:g}" if value < limit else f"{value:.1g}"


def kv_bytes(attend: Attend, batch: Case) -> dict[str, int]:
    """Bytes that the kernels load of K and V, and the least possible: each token's once."""
    loaded = trace(attend, batch).report().loaded
    num_kv_heads, head_dim = batch.k_cache.shape[2:]
    least = 2 * int(batch.metadata.seq_lens.sum()) * num_kv_heads * head_dim * batch.k_cache.itemsize
    return {"loaded": loaded["k_cache"] + loaded["v_cache"], "least": least}


def program_viewer(attend: Attend, batch: Case, axes: Sequence[str] = ("sequence", "KV head")) -> Stepper:
    """Step through a kernel's programs and see the block tables and the rows of K that each one loads."""
    watched = trace(attend, batch)
    names = [", ".join(f"{axis} {i}" for axis, i in zip(axes, p, strict=False)) for p in watched.programs]
    titles = [f"Program {p}: {name}" for p, name in zip(watched.programs, names, strict=True)]
    figures = [draw_reads(batch, watched, p, title) for p, title in zip(watched.programs, titles, strict=True)]
    stepper = Stepper(figures, captions=names, name="program")
    stepper.first = stepper.frames[-1]  # a page without a kernel shows the last one: it contains all before it
    return stepper


def access_table(watched: Trace, **tensors: str) -> Table:
    """Which elements of some vectors each program loaded and stored. ``tensors``: {header: the referee's name}."""
    rows = []
    for program in watched.programs:
        row = [program[0]]
        for tensor in tensors.values():
            mine = [a for a in watched.accesses if (a.program, a.tensor) == (program, tensor)]
            row.append("; ".join(f"{a.kind} {_ranges(a.coordinates[0].tolist())}" for a in mine) or "–")
        rows.append(row)
    return Table(["program", *tensors], rows)


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 3] as "0 … 3"."""
    consecutive = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} … {numbers[-1]}" if consecutive else ", ".join(map(str, numbers))


def draw_written(write: Callable, slot_mapping: Sequence[int], title: str = "", num_blocks: int = 4) -> Figure:
    """Run ``write`` for tokens 0, 1, 2 … with these slots, and draw where in the cache (blocks of 4) each one landed.

    The referee watches, so that a store outside of the cache is not carried out.
    """
    k_cache, v_cache = torch.full((2, num_blocks, 4, 1, 2), float("nan"))
    tokens = torch.arange(float(len(slot_mapping)))[:, None, None].expand(-1, 1, 2)
    with Referee():
        write(tokens, tokens, k_cache, v_cache, torch.tensor(slot_mapping))
    rows = k_cache[:, :, 0, 0].tolist()
    named = {f"block {b}": [None if x != x else (f"token {x:.0f}", "new") for x in row] for b, row in enumerate(rows)}
    return draw_slots(named, title=title)


def draw_visible(batch: Case, names: Sequence[str], title: str = "") -> Figure:
    """For each query token of a batch: the positions it sees, its own among them. ``names``: of the sequences."""
    rows: dict[str, list] = {}
    lengths, news = batch.metadata.seq_lens.tolist(), batch.metadata.query_lens.tolist()
    for name, length, new in zip(names, lengths, news, strict=True):
        for pos in range(length - new, length):
            states = ["new" if p >= length - new else "token" for p in range(pos + 1)]
            rows[f"{name}, position {pos}"] = [(str(p), state) for p, state in enumerate(states)]
    return draw_slots(rows, title=title)


def split_lengths(num_seqs: int, context: int, num_kv_heads: int = 8, splits: int | None = None) -> list[int]:
    """The length in tiles of every program of a decode step; ``splits`` None: as many as the package's rule chooses."""
    tiles = -(-context // GPU_TILE)
    if splits is None:
        splits = choose_num_splits(num_seqs * num_kv_heads, tiles, H100["multiprocessors"])
    share = -(-tiles // splits)
    lengths = [min(share, tiles - share * split) for split in range(splits) if tiles > share * split]
    return lengths * (num_seqs * num_kv_heads)


def draw_splits(sequences: int, context: int) -> Figure:
    """One decode step on an H100's multiprocessors, without splits and with those that the package's rule chooses."""
    cases = {"one program per KV head": split_lengths(sequences, context, splits=1)}
    with_splits = split_lengths(sequences, context)
    each = len(with_splits) // (sequences * 8)
    cases[f"{each} splits each" if each > 1 else "the rule chooses no splits"] = with_splits
    title = f"{counted(sequences, 'sequence')} of {context} tokens, 8 KV heads, 132 multiprocessors"
    return draw_occupancy(cases, H100["multiprocessors"], sequences, title)


def split_explorer() -> Explorer:
    """Choose how many sequences decode and how long their contexts are."""
    return Explorer(draw_splits, sequences=[2, 1, 4, 8, 16, 32], context=[32768, 512, 2048, 8192, 131072])


def intensity(attend: Attend, batch: Case, itemsize: int = 2) -> float:
    """Operations per byte: 4 · D for each pair (query head, visible key), over the distinct bytes a kernel touches.

    These are the least that memory must deliver, if caches catch what is loaded again. The referee counts them in
    float32; they are scaled to elements of ``itemsize`` bytes.
    """
    report = trace(attend, batch).report()
    num_heads, head_dim = batch.query.shape[1:]
    pairs = 0
    for length, new in zip(batch.metadata.seq_lens.tolist(), batch.metadata.query_lens.tolist(), strict=True):
        pairs += sum(range(length - new + 1, length + 1))
    return 4 * head_dim * num_heads * pairs / (report.touched * itemsize / 4)


def compiler_table(reports: Sequence[Report], first: str = "kernel", names: Sequence[str] = ()) -> Table:
    """What the compiler made of some kernels; ``names`` (with their header ``first``) instead of the kernels' own."""
    rows = []
    for report, name in zip(reports, names or [r.kernel for r in reports], strict=True):
        loads = ", ".join(f"{n} of {bits} bits" for bits, n in report.loads.items())
        matrix = ", ".join(f"{n} {m.split('.row')[0].split('.f32')[0]}" for m, n in report.matrix.items())
        rows.append([name, report.target, report.registers, report.spills, report.shared, loads, matrix or "none"])
    head = [first, "target", "registers", "spills", "shared memory", "loads from global memory", "matrix instructions"]
    return Table(head, rows)


def ptx_table(text: str, wanted: Mapping[str, str]) -> Table:
    """For each {what: part of an instruction}: how often it occurs in the PTX, and its first line (cut to 64 signs)."""
    lines = [line.split("//")[0].strip() for line in text.splitlines()]
    rows = []
    for what, part in wanted.items():
        hits = [" ".join(line.split()) for line in lines if part in line and not line.startswith(".")]
        first = hits[0] if hits else "–"
        rows.append([what, len(hits), f"`{first if len(first) <= 64 else first[:63] + '…'}`"])
    return Table(["what", "times", "first line"], rows)


def paging_costs(repeats: int = 12) -> Table:
    """Decode on this CPU, one thread: in place and with a gather, beside contiguous attention; and a ragged batch.

    In a process of its own: a notebook's has a past, and fresh memory costs a copy more there.
    """
    equal = [("8q1s1k", 8, 2, 64), ("32q1s256", 8, 2, 64)]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        measured = pool.submit(bench_attention, equal, ["cpu", "gather"], repeats=repeats).result()
        ragged = [("28q1s64_4q1s1600", 8, 2, 64)]
        measured += pool.submit(bench_attention, ragged, ["cpu"], baseline="padded", repeats=repeats).result()
    rows = [
        [r.work, "in place" if r.candidate == "cpu" else r.candidate, f"{r.ms:.2f}",
         f"{r.baseline_ms:.2f}" + " (padded)" * (r.baseline == "padded"), f"{r.ratio:.2f}"]
        for r in measured
    ]  # fmt: skip
    return Table(["work", "paged", "ms", "contiguous, ms", "ratio"], rows)


def gpu_table(repeats: int = 30) -> str:
    """What ``minipaged bench attention --device cuda`` prints, where there is a GPU; else that there is none.

    In a process of its own, in which kernels are compiled: a lesson's are interpreted.
    """
    if not torch.cuda.is_available():
        return "No GPU on this machine: nothing was measured here. With one, this cell runs the benchmark on it."
    command = [sys.executable, "-m", "minipaged", "bench", "attention", "--device", "cuda", "--repeats", str(repeats)]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


__all__ = [
    "GPU_TILE",
    "H100",
    "Trace",
    "access_table",
    "compiler_table",
    "draw_splits",
    "draw_visible",
    "draw_written",
    "error",
    "gpu_table",
    "intensity",
    "kv_bytes",
    "paged_batch",
    "paging_costs",
    "program_viewer",
    "ptx_table",
    "run",
    "small",
    "split_explorer",
    "split_lengths",
    "trace",
]
