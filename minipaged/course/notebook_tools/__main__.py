"""python -m minipaged.course.notebook_tools …"""

import argparse
import sys
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools import exercises, percent
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
    args = parser.parse_args(argv)
    try:
        if args.command == "new-from-py":
            print(f"{args.out}: {'written' if percent.from_py(args.script, args.out) else 'unchanged'}")
        elif args.command == "to-py":
            percent.to_py(args.notebook, args.script)
        else:
            for path in exercises.write_exercises(course_root(), args.solutions or None):
                print(f"{path}: written")
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
