"""``torchrun --nproc-per-node 2 -m minipaged.parallel.generate "PROMPT"``: text from a prompt, on several ranks.

Prints what ``minipaged generate`` prints, and takes the same options. Only rank 0 prints.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from minipaged.serving import generate_cli

NAME = "minipaged.parallel.generate"


def build_parser():
    """The options of ``minipaged generate``, and two of several ranks."""
    parser = generate_cli.build_parser()
    parser.prog = f"torchrun --nproc-per-node N -m {NAME}"
    parser.description = (
        "Generate text on N ranks, each with its heads of every block. Prints the text, and nothing else."
    )
    add = parser.add_argument_group("the ranks").add_argument
    add("--patience", type=float, default=10.0, help="seconds that ranks wait for one before the run ends (default 10)")
    add(
        "--tensor-parallel-attention",
        metavar="MODULE:CLASS",
        help="your own class for the attention layers (see the Protocol TensorParallelAttention)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 with one line on stderr; a rank that fails later ends all with status 1."""
    args = build_parser().parse_args(argv)
    import torch

    from minipaged.parallel.engine import Shard, serve
    from minipaged.parallel.group import join_from_torchrun
    from minipaged.parallel.watch import RankError

    torch.set_num_threads(1)
    try:
        group = join_from_torchrun(args.device, args.patience)
    except ValueError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    try:
        own = _imported(args.tensor_parallel_attention) if args.tensor_parallel_attention else None
        dtype = getattr(torch, args.dtype)
        shard = Shard.load(group, args.model, dtype=dtype, attention=args.attention, own_attention=own)
    except (ValueError, TypeError, ImportError) as error:  # the same on every rank, so nobody waits for an answer
        if group.rank == 0:
            print(f"{NAME}: {error}", file=sys.stderr)
        group.close()
        return 2
    try:
        status, _ = serve(group, shard, lambda make_llm: generate_cli.run(args, make_llm, NAME))
    except RankError as error:
        print(f"{NAME}: on rank {group.rank}: the run ends: {error}", file=sys.stderr)
        return 1
    except BaseException as error:
        group.fail(error)
        raise
    group.close()
    return status or 0


def _imported(path: str) -> type:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportError(f"--tensor-parallel-attention {path!r}: {error}; give MODULE:CLASS") from error


if __name__ == "__main__":
    sys.exit(main())
