"""``minipaged generate "PROMPT"``: text from a prompt, through the paged cache."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from minipaged.serving.engine_options import add_batch_options, add_cache_options

if TYPE_CHECKING:
    from minipaged.serving.llm import LLM


def build_parser() -> argparse.ArgumentParser:
    """The command line. The defaults are LLM's and SamplingParams' own."""
    parser = argparse.ArgumentParser(
        prog="minipaged generate",
        description="Generate text from a prompt, through the paged KV cache. Prints the text, and nothing else.",
    )
    add = parser.add_argument
    add("prompts", metavar="PROMPT", nargs="+", help="one prompt or several, served together")
    add("--model", default="tiny", help='"tiny" (bundled), a folder in Hugging Face format, or a name on its hub')
    add("--chat", action="store_true", help="each prompt is a user's message: put it into the model's chat template")

    add_cache_options(parser)
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add("--max-tokens", type=int, default=16, help="tokens to generate at most (default 16)")
    add("--temperature", type=float, help="0 (default): always the most probable token")
    add("--top-k", type=int, help="draw from the k most probable tokens only (default 0: all)")
    add("--top-p", type=float, help="draw from the smallest set that reaches this probability (default 1: all)")
    add("--generation-config", action="store_true", help="where not given here: as generation_config.json recommends")
    add("--seed", type=int, help="repeat the same draw")
    add("--stop", action="append", help="end the text before this string (may be given several times)")
    add("--ignore-eos", action="store_true", help="go on after the end-of-sequence token")
    add("--n", type=int, default=1, help="continuations of each prompt (parallel sampling)")
    add("--sharing", choices=["fork", "prefix_cache"], default="fork", help="how n continuations share the prompt")
    add("--beam", type=int, metavar="K", help="beam search of width K instead of sampling")
    add("--length-penalty", type=float, default=1.0, help="beam search: above 0 favours longer texts")
    add("--early-stopping", action="store_true", help="beam search: end when K texts have ended")

    group = parser.add_argument_group("the batch and the output")
    add = group.add_argument
    add_batch_options(group)
    add("--stats", action="store_true", help="print after the text what the engine counted")
    add("--json", action="store_true", help="print the outputs (and the stats) as JSON")
    add("--trace", action="store_true", help="print every decision of the scheduler to stderr")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 with one line on stderr that says what is wrong and what to do."""
    args = build_parser().parse_args(argv)
    import torch  # only after the arguments were read

    from minipaged.serving.llm import LLM

    dtype = getattr(torch, args.dtype)
    return run(args, partial(LLM, args.model, dtype=dtype, attention=args.attention, device=args.device))


def run(args: argparse.Namespace, make_llm: Callable[..., LLM], name: str = "minipaged generate") -> int:
    """Make the engine, generate, print. ``make_llm`` gets what the command line says about cache and batch."""
    try:
        params = _params(args)
        llm = make_llm(
            num_blocks=args.num_blocks,
            block_size=args.block_size,
            enable_prefix_caching=not args.no_prefix_caching,
            preemption=args.preemption,
            num_cpu_blocks=args.num_cpu_blocks,
            num_disk_blocks=args.num_disk_blocks,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            enable_chunked_prefill=not args.no_chunked_prefill,
            trace=args.trace,
        )
        if args.generation_config:
            params = llm.get_default_sampling_params(**_sampling(args))
        prompts = args.prompts
        if args.chat:
            prompts = [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in prompts]
        outputs = llm.generate(prompts, params, progress=sys.stderr.isatty())
    except (ValueError, TypeError, ImportError) as error:
        notes = getattr(error, "__notes__", [])  # which of several prompts
        print(" ".join([f"{name}: {error}", *notes]), file=sys.stderr)
        return 2
    if args.trace:
        for decision in llm.engine.trace:
            print(
                f"step {decision.step:>4}  {decision.action:<8} {decision.request_id}  "
                f"{decision.num_tokens} tokens  {decision.reason}",
                file=sys.stderr,
            )
    if args.json:
        _print_json(outputs, llm.stats if args.stats else None)
        return 0
    for line in _text_lines(outputs):
        print(line)
    if args.stats:
        print("\n" + "\n".join(llm.stats.lines()))
    return 0


def _params(args: argparse.Namespace):
    from minipaged.serving.sampling import BeamSearchParams, SamplingParams

    if args.beam is not None:
        drawing = (args.temperature, args.top_k, args.top_p not in (None, 1.0), args.n != 1, args.seed is not None)
        if any(drawing) or args.stop or args.generation_config:
            raise ValueError(
                "--beam searches, it does not draw: leave out --temperature, --top-k, --top-p, --seed, --n, --stop and "
                "--generation-config"
            )
        return BeamSearchParams(
            beam_width=args.beam,
            max_tokens=args.max_tokens,
            length_penalty=args.length_penalty,
            early_stopping=args.early_stopping,
            ignore_eos=args.ignore_eos,
        )
    return SamplingParams(**_sampling(args))


def _sampling(args: argparse.Namespace) -> dict[str, object]:
    """SamplingParams' arguments. What was not given is left out: its default is SamplingParams' or the model's."""
    names = ("n", "temperature", "top_k", "top_p", "seed", "stop", "max_tokens", "ignore_eos", "sharing")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _text_lines(outputs) -> list[str]:
    """The bare text; with several continuations each has its number, with several prompts a blank line between."""
    lines = []
    for number, output in enumerate(outputs):
        if number:
            lines.append("")
        for place, completion in enumerate(output.outputs, 1):
            score = "" if completion.score is None else f" (score {completion.score:.3f})"
            label = f"{place}:{score}" if len(output.outputs) > 1 else ""
            lines.append(label + completion.text)
    return lines


def _print_json(outputs, stats) -> None:
    answer = {
        "outputs": [
            {
                "prompt": output.prompt,
                "num_prompt_tokens": len(output.prompt_token_ids),
                "num_cached_tokens": output.num_cached_tokens,
                "num_preemptions": output.num_preemptions,
                "completions": [
                    {
                        "text": completion.text,
                        "token_ids": completion.token_ids,
                        "finish_reason": completion.finish_reason,
                        "score": completion.score,
                    }
                    for completion in output.outputs
                ],
            }
            for output in outputs
        ]
    }
    if stats is not None:
        answer["stats"] = stats.as_dict()
    print(json.dumps(answer, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    sys.exit(main())
