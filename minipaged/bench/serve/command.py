"""`minipaged bench serve`: a workload against any OpenAI-compatible server (minipaged's own, vLLM, SGLang)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minipaged.bench.output import check_output
from minipaged.bench.serve.client import ServerProblem
from minipaged.bench.serve.metrics import Slo
from minipaged.bench.serve.plan import DEFAULT_REQUESTS, TOKEN_IDS, WORKLOADS
from minipaged.bench.serve.run import run_workload


def build_parser() -> argparse.ArgumentParser:
    """The command line; the defaults are those of `run_workload`."""
    parser = argparse.ArgumentParser(prog="minipaged bench serve", description=__doc__)
    parser.add_argument("--base-url", required=True, help="where the server listens: http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--api-key", help="sent as a bearer token")

    group = parser.add_argument_group("what is sent")
    add = group.add_argument
    add("--workload", default="A", help=f"{', '.join(WORKLOADS)}, or a trace: FILE.csv, FILE.jsonl (default A)")
    add("--requests", type=int, help=f"how many (default {DEFAULT_REQUESTS}; of a trace, all)")
    add("--rate", type=float, help="requests a second, Poisson arrivals; inf: at once (default: as the workload says)")
    add("--seed", type=int, default=0, help="of lengths, prompts and arrivals. The same seed sends the same prompts: a "
        "second run on one server finds them in its prefix cache")  # fmt: skip
    add("--scale", type=float, default=1.0, help="multiply all lengths, to fit the context of a small model")
    add("--unique-prompts", action="store_true", help="the workload's lengths, but no shared beginnings")
    add("--max-concurrency", type=int, help="requests in flight at most")
    add("--ignore-eos", action=argparse.BooleanOptionalAction, help="go on after the end-of-sequence token, so that "
        "outputs are as long as the workload says (default: where the server accepts it)")  # fmt: skip
    add("--retries", type=int, default=0, help="send again after 429 or 503, as the server says (default 0)")
    add("--timeout", type=float, default=600.0, help="seconds without a byte until a request fails (default 600)")
    add("--token-ids", type=int, nargs=2, metavar=("FIRST", "LAST"), default=(TOKEN_IDS[0], TOKEN_IDS[-1]),
        help="prompts are drawn from these token ids (default %(default)s)")  # fmt: skip

    group = parser.add_argument_group("what is reported")
    add = group.add_argument
    add("--slo-ttft-ms", type=float, help="goodput counts requests whose time to first token is at most this")
    add("--slo-tpot-ms", type=float, help="… and whose time per output token is")
    add("--slo-e2el-ms", type=float, help="… and whose whole latency is")
    add("--metrics-interval", type=float, default=0.1, help="seconds between looks at /metrics (default 0.1; 0: never)")
    add("--json", type=Path, metavar="OUT.json", help="write settings, summary, every request and sample to this file")
    add("--picture", type=Path, metavar="OUT.png", help="draw the run over time")
    add("--no-progress", action="store_true", help="no progress bar (there is none without a terminal, either)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0: all requests completed; 1: some failed, the table names them; 2: the run could not begin; 130: interrupted."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for option, path, ending in (("--json", args.json, ".json"), ("--picture", args.picture, ".png")):
        if path:
            check_output(parser, option, path, ending)
    try:
        result = run_workload(
            args.base_url,
            args.workload,
            rate=args.rate,
            requests=args.requests,
            seed=args.seed,
            scale=args.scale,
            unique=args.unique_prompts,
            model=args.model,
            api_key=args.api_key,
            max_concurrency=args.max_concurrency,
            ignore_eos=args.ignore_eos,
            retries=args.retries,
            slo=Slo(args.slo_ttft_ms, args.slo_tpot_ms, args.slo_e2el_ms),
            token_ids=_token_ids(*args.token_ids),
            timeout=args.timeout,
            metrics_interval=args.metrics_interval,
            progress=not args.no_progress and sys.stderr.isatty(),
        )
    except (ValueError, OSError, ServerProblem) as error:
        print(f"minipaged bench serve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("minipaged bench serve: interrupted; a part of a run is no measurement", file=sys.stderr)
        return 130
    print(result)
    if args.json:
        result.save(args.json)
    if args.picture:
        args.picture.write_bytes(result.picture().png)
        print(f"\npicture: {args.picture}")
    return 1 if result.summary.failed else 0


def _token_ids(first: int, last: int) -> range:
    if not 0 <= first < last:
        raise ValueError(f"--token-ids is {first} {last}; give a first id of at least 0, and a last one above it")
    return range(first, last + 1)
