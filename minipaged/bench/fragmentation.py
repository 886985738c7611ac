"""`minipaged bench fragmentation`: the paper's Fig. 2, simulated, beside the published bars."""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from minipaged.bench.output import check_output
from minipaged.fragmentation import PAPER, POOL_SLOTS, Paged, Result, compare, simulate
from minipaged.os_paging.allocators import ALLOCATORS
from minipaged.workloads import mean_lengths, sharegpt_like

PARTS = ("tokens", "reservation", "internal", "external", "free")


def table(results: dict[str, Result]) -> str:
    """Percent of the pool by part, simulated, and in brackets the paper's; then the mean number of requests."""
    lines = [f"{'system':<8}" + "".join(f"{part:>16}" for part in PARTS) + f"{'requests':>10}"]
    for name, result in results.items():
        cells = []
        for part in PARTS:
            published = PAPER[name].get(part)
            beside = f" ({published:.1f})" if published is not None else ""
            cells.append(f"{result.shares[part]:.1f}{beside}".rjust(16))
        lines.append(f"{name:<8}" + "".join(cells) + f"{result.mean_running:>10.1f}")
    return "\n".join(lines)


def scaling(counts: Sequence[int], sigma: float, seed: int) -> str:
    """Time and memory of the paged simulation for growing traces, beside the tokens that were generated.

    `grown` is by how much the run raised the process's peak memory; the trace itself is made before.
    """
    lines = [f"{'requests':>10}{'generated tokens':>18}{'seconds':>10}{'µs a token':>12}{'grown, MiB':>12}"]
    for count in filter(None, counts):
        requests = sharegpt_like(count, sigma, seed=seed)
        tokens = sum(request.output_tokens for request in requests)
        peak, start = peak_memory(), time.perf_counter()
        simulate(requests, Paged(POOL_SLOTS))
        seconds, grown = time.perf_counter() - start, (peak_memory() - peak) / 2**20
        lines.append(f"{count:>10,}{tokens:>18,}{seconds:>10.1f}{1e6 * seconds / tokens:>12.2f}{grown:>12.1f}")
    return "\n".join(lines)


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes; 0 where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024  # Linux counts KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when the bars were printed, 2 when the arguments ask for the impossible."""
    parser = argparse.ArgumentParser(prog="minipaged bench fragmentation", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="requests in the trace (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the lengths (default 0)")
    parser.add_argument("--sigma", type=float, default=1.0, help="spread of the log-normal lengths (default 1.0)")
    parser.add_argument("--allocator", choices=list(ALLOCATORS), default="buddy", help="for the three that reserve")
    parser.add_argument("--png", type=Path, default=Path("fragmentation.png"), help="the picture (fragmentation.png)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument(
        "--scaling", action="store_true", help="instead: the cost of the paged system as the trace grows"
    )
    args = parser.parse_args(argv)
    if args.requests < 1:
        parser.error(f"--requests is {args.requests}; it must be at least 1")
    if not 0 <= args.sigma < math.inf:
        parser.error(f"--sigma is {args.sigma}; a spread is at least 0, and finite")
    if args.scaling and args.json:
        parser.error(f"--json is {args.json}, but --scaling only prints a table; leave one of them away")
    for option, path, ending in (("--png", args.png, ".png"), ("--json", args.json, ".json")):
        if path and not args.scaling:
            check_output(parser, option, path, ending)
    if args.scaling:
        print(scaling([args.requests // 100, args.requests // 10, args.requests], args.sigma, args.seed))
        return 0
    requests = sharegpt_like(args.requests, args.sigma, seed=args.seed)
    results = compare(requests, allocator=args.allocator)
    idle = [name for name, result in results.items() if not result.saturated_steps]
    if idle:
        systems = ", ".join(idle)
        print(
            f"{args.requests} requests never fill the pool of {systems}, so nobody waits: nothing to average; "
            "give more --requests, or a smaller --sigma",
            file=sys.stderr,
        )
        return 2
    prompt, output = mean_lengths(requests)
    print(f"{args.requests} requests of {prompt:.0f} + {output:.0f} tokens (means), {POOL_SLOTS:,} slots a system")
    print("percent of the slots, averaged over the steps in which a request waits: simulated (the paper's Fig. 2)\n")
    print(table(results))
    from minipaged.course.month_4 import bars  # matplotlib only when a picture is drawn

    args.png.write_bytes(bars(results).png)
    print(f"\npicture: {args.png}")
    if args.json:
        figures = {name: vars(result) for name, result in results.items()}
        settings = {"requests": args.requests, "seed": args.seed, "sigma": args.sigma, "allocator": args.allocator}
        args.json.write_text(json.dumps({"settings": settings, "results": figures, "paper": PAPER}, indent=1) + "\n")
    return 0
