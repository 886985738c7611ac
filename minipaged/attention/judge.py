"""Judges an attention or a cache write that somebody wrote: under the referee, against float64, out of harm's way.

    verdict = judge_attend(my_attend)          # my_attend(query, k_cache, v_cache, metadata, scale) -> output
    verdict = judge_write(my_write)            # my_write(key, value, k_cache, v_cache, slot_mapping)
    verdict = judge_attend("my_kernel.py:attend")

The cases run in a process of its own, with a time limit each, so that a crash or an endless loop becomes a message. The
cases are small and mean: shuffled block ids, NaN in every slot that holds no token, lengths around a block's edge,
groups of query heads, a block so far away that its offset needs 64 bits.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import mmap
import multiprocessing
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from minipaged.attention.metadata import AttentionMetadata
from minipaged.attention.referee import Referee, RefereeReport
from minipaged.attention.reference import paged_attention, write_slots

FENCE = 4096  # elements that belong to nobody, to each side of a tensor
TOLERANCE = 1e-5  # of float32 results, relative to the largest true value


@dataclass
class Verdict:
    """``passed``, and if not: what went wrong in which case, in words."""

    passed: bool
    message: str
    case: str = ""
    report: RefereeReport | None = None

    def __str__(self) -> str:
        return self.message


@dataclass
class Case:
    """A small batch. ``told`` says what makes it mean."""

    told: str
    query: Tensor
    k_cache: Tensor
    v_cache: Tensor
    metadata: AttentionMetadata
    written: Tensor  # bool [num_blocks, block_size]

    @property
    def scale(self) -> float:
        return self.query.shape[-1] ** -0.5


MakeCase = partial  # of a function that makes a Case; its first argument tells what makes the case mean


def sparse_storage(numel: int) -> Tensor:
    """float32 zeros of which only the pages that are touched take memory, so there may be more than the machine has."""
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux; named in Python from 3.13 on
    pages = mmap.mmap(-1, 4 * numel, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    return torch.frombuffer(pages, dtype=torch.float32)


def fenced(tensor: Tensor) -> Tensor:
    """A contiguous copy that lies alone: what an address too far reaches is poison, and no other tensor."""
    poison = float("nan") if tensor.is_floating_point() else -77
    alone = torch.full((tensor.numel() + 2 * FENCE,), poison, dtype=tensor.dtype)
    inside = alone[FENCE : FENCE + tensor.numel()].view(tensor.shape)
    return inside.copy_(tensor)


def make_case(
    told: str,
    seq_lens: list[int],
    query_lens: list[int] | None = None,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 4,
    far: int = 0,
    seed: int = 0,
) -> Case:
    """Shuffled physical ids, NaN where no token is. ``far``: elements between two blocks, more than they need."""
    generator = torch.Generator().manual_seed(seed)
    query_lens = query_lens or [1] * len(seq_lens)
    needed = [-(-n // block_size) for n in seq_lens]
    num_blocks = sum(needed) + 2
    ids = list(range(num_blocks))
    random.Random(seed).shuffle(ids)
    tables = [[ids.pop() for _ in range(n)] for n in needed]
    slots = [
        [table[pos // block_size] * block_size + pos % block_size for pos in range(n)]
        for table, n in zip(tables, seq_lens, strict=True)
    ]
    written = torch.zeros(num_blocks * block_size, dtype=torch.bool)
    written[[slot for row in slots for slot in row]] = True
    written = written.view(num_blocks, block_size)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    caches = []
    for _ in range(2):
        stride = max(far, block_size * num_kv_heads * head_dim)
        fence = 2**31 if far else FENCE  # so far does an offset of 32 bits fall short when it wraps around
        storage = sparse_storage(stride * num_blocks + 2 * fence)
        cache = storage.as_strided(shape, (stride, num_kv_heads * head_dim, head_dim, 1), fence)
        cache.fill_(float("nan"))
        cache[written] = torch.randn(int(written.sum()), num_kv_heads, head_dim, generator=generator)
        caches.append(cache)
    new = [slot for row, n, q in zip(slots, seq_lens, query_lens, strict=True) for slot in row[n - q :]]
    metadata = AttentionMetadata.build(tables, seq_lens, query_lens, new)
    for name in ("block_tables", "seq_lens", "query_start_loc"):
        setattr(metadata, name, fenced(getattr(metadata, name)))
    query = fenced(torch.randn(sum(query_lens), num_heads, head_dim, generator=generator))
    return Case(told, query, *caches, metadata, written)


def decode_cases() -> list[MakeCase]:
    make = partial(partial, make_case)  # a case is made where it runs, in the child
    return [
        make("one sequence of one full block", [4]),
        make("lengths 1, B − 1, B and B + 1", [1, 3, 4, 5]),
        make("8 query heads on 2 KV heads", [9, 6], num_heads=8),
        make("7 query heads on 1 KV head, head size 24", [10], num_heads=7, num_kv_heads=1, head_dim=24),
        make("blocks of 1 token", [3, 1], block_size=1),
        make("a context of 70 tokens beside one of 2", [70, 2], block_size=16),
        make("blocks 2³⁰ elements apart: offsets pass 2³¹", [5, 4], far=2**30),
    ]


def prefill_cases() -> list[MakeCase]:
    make = partial(partial, make_case)
    return [
        *decode_cases(),
        make("whole prompts", [5, 4], [5, 4]),
        make("a prompt, a chunk, a decode and a sequence without new tokens", [6, 9, 5, 3], [6, 4, 1, 0]),
    ]


def judge_attend(candidate: Callable | str, prefill: bool = False, timeout: float = 60) -> Verdict:
    """Judge ``candidate(query, k_cache, v_cache, metadata, scale) -> output``; stops at the first case that fails.

    ``candidate`` may be "file.py:function". ``prefill``: also cases with more than one query token a sequence.
    """
    return _in_own_process(_run_attend, candidate, prefill_cases() if prefill else decode_cases(), timeout)


def judge_write(candidate: Callable | str, timeout: float = 60) -> Verdict:
    """Judge ``candidate(key, value, k_cache, v_cache, slot_mapping)``, which writes in place and returns nothing."""
    cases = {
        "one token in slot 0": [0],
        "the last slot of a block and the first of another": [3, 16],
        "the last slot of the cache": [23, 5],
        "−1 means: do not write": [7, -1, 12],
    }
    return _in_own_process(_run_write, candidate, [partial(_write_case, *case) for case in cases.items()], timeout)


def _write_case(told: str, slots: list[int]) -> Case:
    case = make_case(told, [1])
    case.metadata.slot_mapping = torch.tensor(slots)
    case.k_cache, case.v_cache = (fenced(torch.full((6, 4, 2, 16), float("nan"))) for _ in range(2))
    return case


def _run_attend(candidate: Callable, case: Case) -> Verdict:
    # Before the candidate runs, so that one which changes its inputs does not change the truth with them.
    truth, _ = paged_attention(
        case.query, case.k_cache, case.v_cache, case.metadata, case.scale, compute_dtype=torch.float64
    )
    inputs = {
        "query": case.query.clone(),
        "k_cache": case.k_cache[case.written],  # indexing copies
        "v_cache": case.v_cache[case.written],
    }
    referee = Referee()
    referee.watch("query", case.query, read_only=True)
    referee.watch("k_cache", case.k_cache, case.written, read_only=True)
    referee.watch("v_cache", case.v_cache, case.written, read_only=True)
    for name in ("block_tables", "seq_lens", "query_start_loc"):
        referee.watch(name, getattr(case.metadata, name), read_only=True)
    with referee:
        out = candidate(case.query, case.k_cache, case.v_cache, case.metadata, case.scale)
    after = (case.query, case.k_cache[case.written], case.v_cache[case.written])
    changed = [name for (name, old), new in zip(inputs.items(), after, strict=True) if not torch.equal(old, new)]
    return _verdict(case, referee.report(), [("output", out, truth)], changed)


def _run_write(candidate: Callable, case: Case) -> Verdict:
    slots = case.metadata.slot_mapping
    key, value = torch.randn(2, len(slots), *case.k_cache.shape[2:], generator=torch.Generator().manual_seed(0))
    truth = case.k_cache.clone(), case.v_cache.clone()
    write_slots(key, value, *truth, slots)
    inputs = {"key": fenced(key), "value": fenced(value), "slot_mapping": fenced(slots)}
    referee = Referee()
    for name, tensor in inputs.items():
        referee.watch(name, tensor, read_only=True)
    for name, tensor in (("k_cache", case.k_cache), ("v_cache", case.v_cache)):
        referee.watch(name, tensor, written=False)
    with referee:
        candidate(inputs["key"], inputs["value"], case.k_cache, case.v_cache, inputs["slot_mapping"])
    before = {"key": key, "value": value, "slot_mapping": slots}
    changed = [name for name, old in before.items() if not torch.equal(old, inputs[name])]
    got = [("k_cache", case.k_cache, truth[0]), ("v_cache", case.v_cache, truth[1])]
    return _verdict(case, referee.report(), got, changed, unwritten="was not written")


def _verdict(
    case: Case,
    report: RefereeReport,
    results: list[tuple[str, object, Tensor]],
    changed: Sequence[str] = (),
    unwritten: str = "is nan",
) -> Verdict:
    """``unwritten``: what is said of a NaN. Where the truth is NaN, nothing may be written."""
    problems = [str(finding) for finding in report.findings]
    problems += [f"{name} is an input, but it was changed" for name in changed]
    for name, got, truth in results:
        if not isinstance(got, Tensor) or got.shape != truth.shape:
            shape = list(got.shape) if isinstance(got, Tensor) else type(got).__name__
            problems.append(f"{name} is {shape}, but a tensor {list(truth.shape)} is needed")
            continue
        close = (got.double() - truth.double()).abs() <= TOLERANCE * truth.nan_to_num(0.0).abs().max()
        wrong = ~(close | (got.isnan() & truth.isnan()))
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            is_now = unwritten if got[at].isnan() else f"is {float(got[at]):.4f}"
            right = "must not be written" if truth[at].isnan() else f"must be {float(truth[at]):.4f}"
            problems.append(
                f"{name}{list(at)} {is_now}, but {right}; {int(wrong.sum())} of {wrong.numel()} elements are wrong"
            )
    if not problems:
        return Verdict(True, f"correct and clean: {case.told}", case.told, report)
    return Verdict(False, f"case “{case.told}”:\n" + "\n".join(problems), case.told, report)


def _in_own_process(run: Callable, candidate: Callable | str, cases: list[MakeCase], timeout: float) -> Verdict:
    """Fork, run the cases there, and bring the verdicts home: the first that fails, or the last.

    Raises TypeError for a candidate that cannot be called, ValueError for a timeout that is not positive.

    ``timeout``: seconds a case. A function of a notebook comes along by itself, with all it refers to.
    """
    if not isinstance(candidate, str) and not callable(candidate):
        raise TypeError(f"candidate is a {type(candidate).__name__}, but a function or file.py:function is needed")
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout}, but the seconds for one case must be greater than 0")
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, run, candidate, cases), daemon=True)
    child.start()
    send.close()
    try:
        for case in cases:
            verdict = _verdict_of(case, child, receive, timeout)
            if not verdict.passed:
                break
        return verdict
    finally:
        child.kill()
        child.join()
        receive.close()


def _verdict_of(case: MakeCase, child: multiprocessing.Process, receive: Connection, timeout: float) -> Verdict:
    try:
        if receive.poll(timeout):
            return receive.recv()
        message = f"no result after {timeout:g} s: an endless loop?"
    except EOFError:
        child.join()
        code = child.exitcode
        how = (
            f"signal {-code} (11 is a segmentation fault: an address far outside)" if code < 0 else f"exit code {code}"
        )
        message = f"the process ended with {how}"
    return Verdict(False, f"case “{case.args[0]}”:\n{message}", case.args[0])


def _child(send: Connection, run: Callable, candidate: Callable | str, cases: list[MakeCase]) -> None:
    faulthandler.disable()  # a crash is reported by the parent
    torch.set_num_threads(1)  # torch's worker threads do not live on in a forked process
    for case in cases:
        try:
            verdict = run(load(candidate) if isinstance(candidate, str) else candidate, case())
        except Exception as error:
            lines = traceback.format_exception(error)
            verdict = Verdict(False, f"case “{case.args[0]}”:\n{''.join(lines[-3:]).strip()}", case.args[0])
        send.send(verdict)


def load(place: str) -> Callable:
    """The function at "file.py:function". Raises ValueError or FileNotFoundError with the place."""
    path, colon, name = place.rpartition(":")
    if not colon:
        raise ValueError(f"{place!r} does not name a function: write it as file.py:function")
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    specification = importlib.util.spec_from_file_location(f"judged_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"{path} has no function {name!r}")
    return getattr(module, name)
