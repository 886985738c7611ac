"""`python -m minipaged.os_paging` prints a fresh problem; `--solve` adds the solution, step by step."""

import argparse
import sys

from minipaged.os_paging.allocators import ALLOCATORS
from minipaged.os_paging.problems import allocation_problem, replacement_problem, translation_problem
from minipaged.os_paging.replacement import POLICIES


def main(arguments: list[str] | None = None) -> int:
    """Print one problem; 0, or 2 with a message when an option makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m minipaged.os_paging", description="A fresh problem from a seed.")
    parser.add_argument("--problem", default="replacement", choices=["replacement", "translation", "allocation"])
    parser.add_argument("--seed", type=int, default=0, help="another seed is another problem (default 0)")
    parser.add_argument("--solve", action="store_true", help="print the solution too")
    parser.add_argument("--policy", default="lru", help=f"replacement: one of {', '.join(POLICIES)}")
    parser.add_argument("--frames", type=int, default=3, help="replacement: frames of memory (default 3)")
    parser.add_argument("--pages", type=int, default=5, help="replacement: different pages (default 5)")
    parser.add_argument("--length", type=int, default=10, help="references or operations (default 10)")
    parser.add_argument("--page-size", type=int, default=16, help="translation: bytes a page (default 16)")
    parser.add_argument("--fit", default="first fit", help=f"allocation: one of {', '.join(ALLOCATORS)}")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.problem == "replacement":
            problem = replacement_problem(chosen.policy, chosen.frames, chosen.seed, chosen.length, chosen.pages)
        elif chosen.problem == "translation":
            problem = translation_problem(chosen.seed, chosen.page_size)
        else:
            problem = allocation_problem(chosen.fit, chosen.seed, length=chosen.length)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(problem.task))
    if chosen.solve:
        print("\nSolution\n" + "\n".join(problem.solution))
    else:
        print("\nWork it out, then run the same line with --solve.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
