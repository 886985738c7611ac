"""`minipaged bench attention`: paged attention in place, beside gathering first and beside contiguous attention."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minipaged.attention.bench import (
    INTERPRETER_SHAPES,
    NO_GPU,
    bench_attention,
    bench_cpu,
    bench_gpu,
    format_rows,
    parse_work,
)
from minipaged.bench.output import check_output


def _heads(text: str) -> tuple[int, int]:
    """ "8/2" → (8, 2): query heads, KV heads. Raises ValueError with the text."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if match is None or int(match[1]) % int(match[2]):
        raise ValueError(
            f"--heads is {text!r}, but must be query heads/KV heads, the first a multiple of the second, as in 8/2"
        )
    return int(match[1]), int(match[2])


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="minipaged bench attention", description=__doc__)
    add = parser.add_argument
    add("work", nargs="*", help="work items such as q2k, 8q1s1k, 2q2k_32q1s1k; default: the tables")
    add("--device", choices=("cpu", "interpreter", "cuda"), default="cpu")
    add("--heads", default="8/2", help="query heads/KV heads of the work items (default 8/2)")
    add("--head-dim", type=int, default=64, help="numbers in a head (default 64)")
    add("--threads", type=int, default=1, help="for the work items (default 1; the tables take 1 and 2)")
    add("--repeats", type=int, default=30, help="pairs of measurements (default 30)")
    add("--json", type=Path, help="write all measurements and the machine to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when the table was printed. The GPU's own table is printed as JSON."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        heads, kv_heads = _heads(arguments.heads)
        shapes = [(work, heads, kv_heads, arguments.head_dim) for work in arguments.work]
        for work in arguments.work:
            parse_work(work)
        for name in ("head_dim", "threads", "repeats"):
            if getattr(arguments, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}, but must be at least 1")
        if arguments.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(NO_GPU)
    except ValueError as error:
        parser.error(str(error))
    if arguments.json:
        check_output(parser, "--json", arguments.json, ".json")
    if arguments.device == "cuda" and not shapes:
        found = bench_gpu(arguments.repeats)
        print(json.dumps(found, indent=2))
    else:
        rows = measure(arguments, shapes)
        print(format_rows(rows))
        found = {"rows": [asdict(row) for row in rows]}
    if arguments.json:
        from minipaged.bench.command import machine

        settings: dict[str, Any] = {"device": arguments.device, "repeats": arguments.repeats}
        arguments.json.write_text(json.dumps({"machine": machine(), "settings": settings, **found}, indent=1) + "\n")
    return 0


def measure(arguments: argparse.Namespace, shapes: list[tuple[str, int, int, int]]) -> list:
    """The CPU's tables, or what was asked for, with the backend that the device has."""
    if arguments.device == "cpu" and not shapes:
        return bench_cpu(repeats=arguments.repeats)
    name = {"cpu": "cpu", "interpreter": "triton", "cuda": "triton"}[arguments.device]
    place, dtype = ("cuda", torch.bfloat16) if arguments.device == "cuda" else ("cpu", torch.float32)
    return bench_attention(
        shapes or INTERPRETER_SHAPES, [name], threads=arguments.threads, device=place, dtype=dtype,
        repeats=arguments.repeats,
    )  # fmt: skip
