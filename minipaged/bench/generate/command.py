"""`minipaged bench generate`: decode tokens a second on the CPU, beside another engine and the machine's limit."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minipaged.bench.generate.checkpoint import DTYPES, SHAPES, make_checkpoint
from minipaged.bench.generate.run import PEER_SCRIPTS, run, table
from minipaged.bench.output import check_output


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="minipaged bench generate", description=__doc__)
    add = parser.add_argument
    add("--model", default="standard", help=f"{', '.join(SHAPES)} (random weights), or a checkpoint folder")
    add("--dtype", choices=list(DTYPES), default="float32")
    add("--batches", type=int, nargs="+", default=[1, 8, 32], help="sequences at a time (default 1 8 32)")
    add("--threads", type=int, default=1, help="of every engine (default 1)")
    add("--rounds", type=int, default=5, help="measurements of each row, in alternation (default 5)")
    add("--against", choices=sorted(PEER_SCRIPTS), help="an engine to measure beside")
    add("--python", help="the interpreter in which it is installed (transformers: this one)")
    add("--block-size", type=int, default=32, help="of the paged engines (default 32: vLLM's CPU attention wants it)")
    add("--json", type=Path, help="write all measurements and the machine to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when the table was printed, 2 when an engine could not be measured."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for name, values in (
        ("batches", args.batches),
        ("threads", [args.threads]),
        ("rounds", [args.rounds]),
        ("block-size", [args.block_size]),
    ):
        if min(values) < 1:
            parser.error(f"--{name} is {min(values)}; it must be at least 1")
    if args.python and not args.against:
        parser.error("--python says where a peer is installed: name the peer with --against")
    if args.against == "vllm" and not args.python:
        parser.error("--against vllm needs --python: the interpreter in which vLLM is installed")
    if args.json:
        check_output(parser, "--json", args.json, ".json")
    if args.model not in SHAPES and not (Path(args.model) / "config.json").is_file():
        parser.error(f"--model is {args.model!r}; give one of {', '.join(SHAPES)}, or a folder with a config.json")
    with tempfile.TemporaryDirectory() as temporary:
        try:
            folder = Path(args.model)
            if args.model in SHAPES:
                folder = Path(temporary)
                make_checkpoint(folder, SHAPES[args.model], args.dtype)
            results, rows = run(
                folder,
                against=args.against,
                python=args.python or sys.executable,
                dtype=args.dtype,
                threads=args.threads,
                batches=sorted(set(args.batches)),
                rounds=args.rounds,
                block_size=args.block_size,
                progress=sys.stderr.isatty(),
            )
        except (RuntimeError, ValueError, OSError) as error:
            print(f"minipaged bench generate: {error}", file=sys.stderr)
            return 2
    print(f"{args.model} model, {args.dtype}, {args.threads} thread(s), greedy, prompts of 16 tokens included\n")
    print(table(results, rows))
    if args.json:
        from minipaged.bench.command import machine

        setting = {"model": args.model, "dtype": args.dtype, "threads": args.threads, "rounds": args.rounds}
        setting["block_size"] = args.block_size
        lengths = {row: asked["lengths"] for row, asked in rows.items()}
        written = {"machine": machine(), "settings": setting, "lengths": lengths, **results}
        args.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0
