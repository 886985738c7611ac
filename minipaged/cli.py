"""The command `minipaged`. Each subcommand imports only what it needs."""

import argparse
import importlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

import minipaged

ELSEWHERE = {
    "generate": ("minipaged.serving.generate_cli", "text from a prompt, through the paged cache"),
    "serve": ("minipaged.serving.serve_cli", "an OpenAI-compatible server"),
    "bench": ("minipaged.bench", "benchmarks"),
    "inspect-kernel": ("minipaged.attention.inspect", "compile a kernel for a GPU and read what came out"),
}
"""Commands with a command line of their own: {name: (module with main(argv), help)}."""


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 fine, 1 the answer is no (a check failed, a problem was found), 2 a wrong call."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in ELSEWHERE:
        return _run_elsewhere(argv[0], argv[1:])
    args = _parser().parse_args(argv)
    if "run" not in args:
        _parser().print_help()
        return 2
    from minipaged.course.errors import CourseError

    try:
        return args.run(args)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error.filename or 'this machine'}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130  # as a shell has it
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="minipaged", description="Learn PagedAttention: the course's command.")
    parser.add_argument("--version", action="version", version=f"minipaged {minipaged.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=words, description=words)
        command.set_defaults(run=run)
        return command

    add("doctor", _doctor, "is this machine set up? each problem with its cure")
    lab = add("lab", _lab, "open JupyterLab on START_HERE")
    lab.add_argument("notebook", nargs="?", default="notebooks/START_HERE.ipynb", help="another notebook to open")
    lab.add_argument("--port", type=int, default=8888)
    lab.add_argument("--no-browser", action="store_true")
    lab.add_argument("--allow-root", action="store_true", help="as root, in a container: JupyterLab refuses otherwise")
    check = add("check", _check, "check an exercise's answer (2.1), or a month's (2)")
    check.add_argument("exercise")
    hint = add("hint", _hint, "the next hint of an exercise; after the third, its solution")
    hint.add_argument("exercise")
    hint.add_argument("--number", type=int, help="show hint 1, 2 or 3 again")
    add("status", _status, "months, exercises, and what comes next")
    reset = add("reset", _reset, "put an exercise back to its stub; the old answer is kept aside")
    reset.add_argument("exercise")
    grade = add("grade", _grade, "run the exercise notebooks and print a table")
    grade.add_argument("months", type=int, nargs="*", metavar="MONTH", help="default: all")
    grade.add_argument("--timeout", type=float, default=60, help="seconds a cell may take (default 60)")
    grade.add_argument("--summary", type=Path, metavar="FILE", help="append the table to FILE, too, as Markdown")
    grade.add_argument("--badges", type=Path, metavar="FOLDER", help="write a badge a month, month_N.svg, into FOLDER")
    grade.add_argument("--submissions", type=Path, metavar="FOLDER", help="grade a class: a folder a learner")
    grade.add_argument("--csv", type=Path, metavar="FILE", help="with --submissions: where the table goes (grades.csv)")
    grade.add_argument("--memory", type=float, metavar="GIB", help="with --submissions: memory of a process (8)")
    add("update-exercises", _update, "today's exercise notebooks, with your answers kept")
    for name, (_, words) in ELSEWHERE.items():
        commands.add_parser(name, help=words, add_help=False)
    return parser


def _run_elsewhere(name: str, argv: list[str]) -> int:
    module = ELSEWHERE[name][0]
    try:
        command = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            print(f"error: this version of minipaged has no `{name}` yet", file=sys.stderr)
        else:
            print(f"error: `minipaged {name}` needs the package {error.name}: pip install -c constraints.txt "
                  f"{error.name}", file=sys.stderr)
        return 2
    return command(argv) or 0


def _doctor(args: argparse.Namespace) -> int:
    from minipaged.course import doctor

    return doctor.main([])


def _lab(args: argparse.Namespace) -> int:
    from minipaged.course import doctor
    from minipaged.course.errors import CourseError
    from minipaged.course.paths import course_root

    if not 1 <= args.port <= 65535:
        raise CourseError(f"--port is {args.port}; allowed is 1 to 65535 (8888 is JupyterLab's own)")
    findings = doctor.examine()
    print(doctor.report(findings), flush=True)
    if any(finding.status == doctor.PROBLEM for finding in findings):
        return 1
    root = course_root()
    notebook = Path(os.path.normpath(root / args.notebook))
    if not notebook.is_file() or not notebook.is_relative_to(root):
        raise CourseError(f"there is no {args.notebook} in {root}; give a notebook by its path from there")
    page = f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}"  # in the printed address, too
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", f"--port={args.port}"]
    command += [f"--LabApp.default_url={page}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0 and not args.allow_root:
        typed = sys.argv[0] if Path(sys.argv[0]).name == "minipaged" else "minipaged"  # perhaps .venv/bin/minipaged
        raise CourseError(f"you are root, so JupyterLab refuses to start; in a container: {typed} lab --allow-root")
    command += ["--no-browser"] if args.no_browser else []
    command += ["--allow-root"] if args.allow_root else []
    return run_until_stopped(command, root)


def run_until_stopped(command: list[str], folder: Path) -> int:
    """Returns the command's exit status, or 0 after Ctrl-C, which is how one leaves JupyterLab.

    SIGTERM and Ctrl-C are passed on as SIGTERM: JupyterLab then stops its kernels.
    """
    with subprocess.Popen(command, cwd=folder, env=surroundings_of_lab()) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            return 0
        finally:
            signal.signal(signal.SIGTERM, before)


def surroundings_of_lab() -> dict[str, str]:
    """In JupyterLab's terminals `minipaged` is this environment's; long lines of code are wrapped, and no news are
    asked for. What a learner sets in JupyterLab goes before that."""
    first = {"PATH": Path(sys.executable).parent, "JUPYTER_CONFIG_PATH": Path(__file__).parent / "course" / "data"}
    before = {name: os.pathsep.join(filter(None, [str(path), os.environ.get(name)])) for name, path in first.items()}
    return {**os.environ, **before}


def _check(args: argparse.Namespace) -> int:
    from minipaged.course.errors import CourseError
    from minipaged.course.framework import exercises_of, get_exercise, months
    from minipaged.course.from_files import check_from_notebook

    if args.exercise.isdecimal():
        wanted = [exercise.id for exercise in exercises_of(int(args.exercise))]
        if not wanted:
            there = ", ".join(map(str, months()))
            raise CourseError(f"month {args.exercise} has no exercises; the months that have some: {there}")
    else:
        wanted = [get_exercise(args.exercise).id]
    results = [check_from_notebook(exercise_id) for exercise_id in wanted]
    return 0 if all(results) else 1


def _hint(args: argparse.Namespace) -> int:
    from minipaged.course import hint

    hint(args.exercise, args.number)
    return 0


def _status(args: argparse.Namespace) -> int:
    from minipaged.course.paths import course_root
    from minipaged.course.status import status_text

    print(status_text(course_root()))
    return 0


def _reset(args: argparse.Namespace) -> int:
    from minipaged.course.from_files import reset_exercise

    print(reset_exercise(args.exercise))
    return 0


def _grade(args: argparse.Namespace) -> int:
    from minipaged.course.errors import CourseError
    from minipaged.course.notebook_tools import badges, grade
    from minipaged.course.paths import course_root

    if not 0 < args.timeout < math.inf:
        raise CourseError(f"--timeout is {args.timeout:g}; give the seconds that a cell may take: a number above 0")
    root = course_root()
    if args.submissions is not None:
        if args.summary or args.badges:
            raise CourseError("--summary and --badges are for your own exercises; a class's table goes to --csv")
        return _grade_submissions(args, root)
    for option in ("csv", "memory"):
        if getattr(args, option) is not None:
            raise CourseError(f"--{option} goes with --submissions FOLDER, which grades a class")
    if args.summary is not None:
        _opened("--summary", args.summary, "a").close()  # asked before the notebooks run, which takes minutes
    if args.badges is not None and args.badges.exists() and not args.badges.is_dir():
        raise CourseError(f"--badges: {args.badges} is a file; give a folder, which need not exist yet")
    graded = grade.grade_months(root, args.months or grade.months_with_exercises(root), args.timeout)
    print(grade.table(graded))
    if args.summary is not None:
        with _opened("--summary", args.summary, "a") as file:
            file.write(badges.markdown_table(graded))
    if args.badges is not None:
        badges.write_badges(args.badges, graded)
    grades = [one for rows in graded.values() for one in rows]
    return 0 if grades and all(one.status == grade.PASSED for one in grades) else 1


def _opened(option: str, path: Path, mode: str) -> TextIO:
    """A file to write the option's table into. Raises CourseError where that cannot be."""
    from minipaged.course.errors import CourseError

    try:
        return path.open(mode, encoding="utf-8", newline="")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CourseError(f"{option}: {path} cannot be written ({why}); name a file that can") from None


def _grade_submissions(args: argparse.Namespace, root: Path) -> int:
    from minipaged.course.errors import CourseError
    from minipaged.course.notebook_tools import submissions

    memory, path = 8.0 if args.memory is None else args.memory, args.csv or Path("grades.csv")
    if not 2 <= memory < math.inf:
        raise CourseError(f"--memory is {memory:g} GiB; give a number from 2 upwards: torch needs as much")
    found = submissions.find_submissions(root, args.submissions, args.months)
    for line in submissions.nothing_from(args.submissions, found):
        print(line)
    with _opened("--csv", path, "w") as file:
        not_passed = submissions.write_csv(file, submissions.grade_submissions(root, found, args.timeout, memory))
    print(f"{path}: {len(found)} notebooks")
    return 1 if not_passed else 0


def _update(args: argparse.Namespace) -> int:
    from minipaged.course.notebook_tools.merge import update_exercises
    from minipaged.course.paths import course_root

    changed = update_exercises(course_root())
    for path in changed:
        print(f"{path.parent.name}/{path.name}: brought up to date")
    if not changed:
        print("Your exercise notebooks are up to date.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
