"""The command line of `minipaged bench`."""

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from minipaged.bench.output import check_output

# Benchmarks that bring their own command line: main(argv) of these modules.
OWN_COMMANDS = {
    "attention": "minipaged.bench.attention",
    "compare": "minipaged.bench.compare",
    "fragmentation": "minipaged.bench.fragmentation",
    "generate": "minipaged.bench.generate",
    "paging": "minipaged.bench.paging",
    "serve": "minipaged.bench.serve",
}


def machine() -> dict[str, str | int | None]:
    """What a reader needs to know to compare: processor, cores, Python and the packages that do the work."""
    facts: dict[str, str | int | None] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }
    for package in ("minipaged", "torch", "triton", "numpy", "numba"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    return facts


def _processor() -> str:
    """The processor's name; Linux keeps it in a file, others answer through `platform`."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def bench_kv(argv: Sequence[str]) -> int:
    """`minipaged bench kv`."""
    from minipaged.bench import kv

    parser = argparse.ArgumentParser(prog="minipaged bench kv", description=kv.__doc__)
    parser.add_argument("--against", choices=sorted(kv.PEER_SCRIPTS), help="a peer to measure beside, in alternation")
    parser.add_argument("--python", help="the interpreter in which the peer is installed")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each row (default 3)")
    parser.add_argument("--json", type=Path, help="write all measurements and the machine to this file")
    args = parser.parse_args(argv)
    if bool(args.against) != bool(args.python):
        parser.error("--against and --python go together: name the peer, and the interpreter where it is installed")
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}; it must be at least 1")
    if args.json:
        check_output(parser, "--json", args.json, ".json")
    try:
        peer = kv.Peer(args.against, args.python) if args.against else None
    except (OSError, RuntimeError) as error:
        print(f"minipaged bench kv: the peer could not be started: {error}", file=sys.stderr)
        return 2
    try:
        results = kv.run(args.rounds, peer)
    except RuntimeError as error:
        print(f"minipaged bench kv: {error}", file=sys.stderr)
        return 2
    finally:
        if peer:
            peer.close()
    print(kv.table(results))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "seconds": results}, indent=1) + "\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; the rest of the arguments is its own."""
    argv = list(sys.argv[1:] if argv is None else argv)
    names = ["kv", *OWN_COMMANDS]
    if not argv or argv[0] not in names:
        asked = f"unknown benchmark {argv[0]!r}; " if argv and argv[0] not in ("-h", "--help") else ""
        wanted = bool(argv) and not asked
        usage = f"{asked}usage: minipaged bench {{{','.join(names)}}} [options]"
        print(usage, file=sys.stdout if wanted else sys.stderr)
        return 0 if wanted else 2
    if argv[0] == "kv":
        return bench_kv(argv[1:])
    return importlib.import_module(OWN_COMMANDS[argv[0]]).main(argv[1:])
