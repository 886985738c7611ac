"""``minipaged serve [MODEL]``: an OpenAI-compatible server on the paged engine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from minipaged.serving.engine_options import add_batch_options, add_cache_options

KEY_VARIABLE = "MINIPAGED_API_KEY"


def build_parser() -> argparse.ArgumentParser:
    """The command line. The names are vLLM's where vLLM has the option; the defaults are the engine's own."""
    parser = argparse.ArgumentParser(
        prog="minipaged serve",
        description="Serve a model over HTTP, as OpenAI's API has it: /v1/completions, /v1/chat/completions, "
        "/v1/models; also /health and /metrics. Ctrl-C ends it, once running requests have finished.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", default="tiny", help='"tiny" (bundled, the default), or a folder')
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    add("--port", type=int, default=8000, help="port (default 8000; 0: any free one, which is then printed)")
    add("--served-model-name", metavar="NAME", help="the name that clients use (default: the model's)")
    add("--api-key", metavar="KEY", help=f"ask for this key under /v1 (default: ${KEY_VARIABLE}, or no key)")
    add("--max-queue", type=int, default=1024, help="prompts that may wait; more get 429 (default 1024)")
    add("--max-body", type=int, default=4 * 2**20, help="bytes of one request; more get 413 (default 4 MiB)")
    add("--grace-period", type=float, default=30.0, help="seconds to finish when asked to stop (default 30)")

    add_cache_options(parser)
    group = parser.add_argument_group("the batch")
    add_batch_options(group)
    add = group.add_argument
    add("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs", help="who goes first (default fcfs)")
    add("--seed", type=int, default=0, help="for requests that bring no seed (default 0)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after an orderly end, 1 if the engine broke, 2 if it could not start."""
    args = build_parser().parse_args(argv)
    try:
        from minipaged.serving.server.app import create_app
        from minipaged.serving.server.limits import ServerConfig
        from minipaged.serving.server.process import open_socket, serve
    except ModuleNotFoundError as error:
        print(
            f"minipaged serve: the package {error.name} is not installed; install what the server needs: "
            "pip install -c constraints.txt -e '.[server]'",
            file=sys.stderr,
        )
        return 2
    try:
        config = ServerConfig(
            model_name=_name_of(args.model) if args.served_model_name is None else args.served_model_name,
            api_key=args.api_key if args.api_key is not None else os.environ.get(KEY_VARIABLE),
            max_queue=args.max_queue,
            max_body=args.max_body,
            grace_period=args.grace_period,
        )
        sock = open_socket(args.host, args.port)
        llm = _make_llm(args)
        llm.engine.runner.warm_up()  # or the first request would wait for compilers
        app = create_app(llm, config)
    except KeyboardInterrupt:  # while the model was loading or warming up
        return 130
    except (ValueError, TypeError, ImportError) as error:
        print(f"minipaged serve: {error}", file=sys.stderr)
        return 2
    return serve(app, sock)


def _make_llm(args: argparse.Namespace):
    import torch

    from minipaged.serving.llm import LLM

    return LLM(
        args.model,
        dtype=getattr(torch, args.dtype),
        attention=args.attention,
        device=args.device,
        num_blocks=args.num_blocks,
        block_size=args.block_size,
        enable_prefix_caching=not args.no_prefix_caching,
        preemption=args.preemption,
        num_cpu_blocks=args.num_cpu_blocks,
        num_disk_blocks=args.num_disk_blocks,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        enable_chunked_prefill=not args.no_chunked_prefill,
        policy=args.scheduling_policy,
        seed=args.seed,
    )


def _name_of(model: str) -> str:
    """A folder's own name; where it lies is nobody's business."""
    return Path(model).resolve().name if os.sep in model else model


if __name__ == "__main__":
    sys.exit(main())
