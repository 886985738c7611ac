"""`minipaged bench compare OLD.json NEW.json`: which ratios have fallen?

Times say as much about a machine as about the code, so only ratios are compared: ours beside a peer (or beside the
machine's limit), as each file has them from one run in alternation. For kv, attention, generate and paging.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minipaged.results import NotAResult, Result, kind_of, ratios, read

SAME_WORK = {"generate": ("model", "dtype", "threads"), "paging": ("requests", "threads"), "attention": ("device",)}
"""The settings without which two files' rows have the same names for different work."""


class NotComparable(ValueError):
    """Two files of which no row can be set beside a row of the other. The message is for the user."""


def differences(old: Result, new: Result) -> list[str]:
    """What else is different, a line each: the machine, versions, settings."""
    lines = []
    for part in ("machine", "settings"):
        before, after = old.get(part) or {}, new.get(part) or {}
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                lines.append(f"{name}: {before.get(name)}, then {after.get(name)}")
    if _engines(old) != _engines(new):
        lines.append(f"measured: {', '.join(_engines(old))}, then {', '.join(_engines(new))}")
    return lines


def _engines(result: Result) -> list[str]:
    return list(dict.fromkeys(name for columns in result.get("seconds", {}).values() for name in columns))


def check_same_work(old: Result, new: Result, kind: str, common: Sequence[str]) -> None:
    """Raises NotComparable where rows of the same name stand for different work."""
    before, after = old.get("settings") or {}, new.get("settings") or {}
    for name in SAME_WORK.get(kind, ()):
        if before.get(name) != after.get(name):
            raise NotComparable(f"they did different work: {name} is {before.get(name)}, then {after.get(name)}")
    for row in dict.fromkeys(key.split(" | ")[0] for key in common):
        if old.get("lengths", {}).get(row) != new.get("lengths", {}).get(row):
            raise NotComparable(f"they did different work: the output lengths of {row!r} are not the same")


def compare(old: Result, new: Result, tolerance: float, names: tuple[str, str]) -> tuple[str, list[str]]:
    """(a table, the rows whose ratio fell by more than `tolerance`, a part of the old one). Raises NotComparable."""
    kinds = [kind_of(result, name) for result, name in zip((old, new), names, strict=True)]
    if kinds[0] != kinds[1]:
        raise NotComparable(f"{names[0]} is of bench {kinds[0]}, {names[1]} of bench {kinds[1]}")
    before, after = ratios(old, names[0]), ratios(new, names[1])
    common = [row for row in before if row in after]
    if not common:
        raise NotComparable("no row with a ratio is in both: were both measured beside the same peer?")
    check_same_work(old, new, kinds[0], common)
    fallen = [row for row in common if after[row] < before[row] * (1 - tolerance)]
    width = max(map(len, common))
    lines = [f"{'above 1: faster than the peer':<{width}}{'before':>9}{'after':>9}{'change':>9}"]
    for row in common:
        change = f"{100 * (after[row] / before[row] - 1):+.0f} %"
        lines.append(f"{row:<{width}}{before[row]:>9.2f}{after[row]:>9.2f}{change:>9}" + "  fell" * (row in fallen))
    told = [f"different: {line}" for line in differences(old, new)]
    told += [f"only in {name}: {row}" for name, one, other in ((names[0], before, after), (names[1], after, before))
             for row in one if row not in other]  # fmt: skip
    lines += ["", *told] if told else []
    what = "ratio" if len(common) == 1 else "ratios"
    lines += ["", f"{len(fallen)} of {len(common)} {what} fell by more than {100 * tolerance:g} %"]
    return "\n".join(lines), fallen


def main(argv: Sequence[str] | None = None) -> int:
    """0: no ratio fell; 1: at least one did; 2: the files cannot be compared."""
    parser = argparse.ArgumentParser(
        prog="minipaged bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD.json", type=Path, help="a result of an earlier run, written with --json")
    parser.add_argument("new", metavar="NEW.json", type=Path, help="the same benchmark's result now")
    parser.add_argument("--tolerance", type=float, default=0.15, help="a ratio may fall by this part (default 0.15)")
    args = parser.parse_args(argv)
    if not 0 <= args.tolerance < 1:
        parser.error(f"--tolerance is {args.tolerance}; it must be at least 0, and less than 1")
    try:
        table, fallen = compare(read(args.old), read(args.new), args.tolerance, (str(args.old), str(args.new)))
    except (NotAResult, NotComparable) as error:
        print(f"minipaged bench compare: {error}", file=sys.stderr)
        return 2
    print(table)
    return 1 if fallen else 0
