"""python -m minipaged.course.notebook_tools …"""

import argparse
import sys
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools import build, exercises, lint, percent, sync
from minipaged.course.paths import course_root


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m minipaged.course.notebook_tools", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new-from-py", help="a notebook from a percent-format script")
    new.add_argument("script", type=Path)
    new.add_argument("out", type=Path)
    back = commands.add_parser("to-py", help="a notebook's sources and tags as a percent-format script")
    back.add_argument("notebook", type=Path)
    back.add_argument("script", type=Path)
    make = commands.add_parser("exercises", help="write exercises/ from solutions/")
    make.add_argument("solutions", type=Path, nargs="*")
    run = commands.add_parser("build", help="exercises, then run and normalise lessons and solutions (make notebooks)")
    run.add_argument("notebooks", type=Path, nargs="*", help="only these; default: all")
    run.add_argument("--refresh", action="store_true", help="run the cells tagged `measured` anew")
    look = commands.add_parser("lint", help="what is wrong with the form of lessons and solutions")
    look.add_argument("notebooks", type=Path, nargs="*", help="only these; default: all")
    commands.add_parser("sync", help="are the exercises what the solutions generate?")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    root = course_root()
    problems: list[str] = []
    if args.command == "new-from-py":
        print(f"{args.out}: {'written' if percent.from_py(args.script, args.out) else 'unchanged'}")
    elif args.command == "to-py":
        percent.to_py(args.notebook, args.script)
    elif args.command == "exercises":
        for path in exercises.write_exercises(root, args.solutions or None):
            print(f"{path.parent.name}/{path.name}: written")
    elif args.command == "build":
        for path in build.build(root, args.notebooks, refresh=args.refresh):
            print(f"{path.parent.name}/{path.name}: changed")
    elif args.command == "lint":
        for path in args.notebooks or build.notebooks_in(root):
            problems += lint.lint_file(path.resolve())
    else:
        problems = sync.out_of_step(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
