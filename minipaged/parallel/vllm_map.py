"""The map from minipaged's names to vLLM's, and its check against vLLM's source: no vLLM has to run, or be installed.

python -m minipaged.parallel.vllm_map                      # the table; checked where vLLM is installed
python -m minipaged.parallel.vllm_map --source FOLDER      # checked against the source in FOLDER/vllm
python -m minipaged.parallel.vllm_map pool                 # only the rows that contain a word
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from minipaged.parallel.vllm_names import GROUPS, RELEASE

PACKAGE = Path(__file__).parents[1]


class Row(NamedTuple):
    """A name here and the name there, each with its file; ``there`` is empty where vLLM has no such thing."""

    group: str
    file: str
    name: str
    vllm_file: str
    vllm_name: str
    note: str


def rows(word: str = "") -> list[Row]:
    """The map, or the rows of it in which a word occurs, in any case."""
    found = []
    for group, lines in GROUPS.items():
        for here, there, note in lines:
            file, _, name = here.partition(" ")
            vllm_file, _, vllm_name = there.partition(" ")
            row = Row(group, file, name, vllm_file, vllm_name, note)
            if word.lower() in " ".join(row).lower():
                found.append(row)
    return found


def problems(root: Path, column: str = "vllm") -> list[str]:
    """Every name of a column ("vllm" or "minipaged") that the sources below ``root`` do not define."""
    found = []
    for row in rows():
        file, name = (row.vllm_file, row.vllm_name) if column == "vllm" else (row.file, row.name)
        if not name:
            continue
        if not (root / file).is_file():
            found.append(f"{file} does not exist (for {name})")
        elif not defines(root / file, name):
            found.append(f"{file} does not define {name}")
    return found


def defines(file: Path, name: str) -> bool:
    """Does a source file define this class, function, constant, Class.member, option or metric?"""
    is_text = name.startswith("--") or ":" in name or (name.islower() and "." not in name)
    return name in _names(file) or (is_text and f'"{name}"' in file.read_text(encoding="utf-8"))


@functools.cache
def _names(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = set(_targets(tree.body))
    for name, node in classes.items():
        found |= {name} | {f"{name}.{member}" for member in _members(node, classes)}
    return frozenset(found)


def _members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Methods, class attributes, and what methods store in self; of base classes in the same file, too."""
    found = set(_targets(node.body))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            found.add(inner.attr)
    for base in node.bases:
        known = classes.get(ast.unparse(base).partition("[")[0])
        if known is not None and known is not node:
            found |= _members(known, classes)
    return found


def _targets(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def markdown() -> str:
    """The map as tables, one a group."""
    parts = []
    for group in GROUPS:
        lines = [f"### {group}", "", "| minipaged | vLLM | what differs |", "|---|---|---|"]
        for row in rows():
            if row.group == group:
                there = f"`{row.vllm_name}` in `{row.vllm_file}`" if row.vllm_name else "—"
                lines.append(f"| `{row.name}` in `{row.file}` | {there} | {row.note} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def source_folder(given: Path | None) -> Path | None:
    """The folder ``vllm`` of the sources: below the given folder, or installed; None: there is none."""
    if given is not None:
        return given / "vllm" if (given / "vllm").is_dir() else given
    spec = importlib.util.find_spec("vllm")  # found, not imported: no GPU is needed
    return Path(spec.origin).parent if spec and spec.origin else None


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table. Exit status 1 where a name has gone from the sources that were checked, 2 where none are."""
    parser = argparse.ArgumentParser(prog="python -m minipaged.parallel.vllm_map", description=__doc__.splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="only rows that contain this")
    parser.add_argument("--source", type=Path, help="a folder that contains vllm/ (default: the installed vLLM)")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/to_the_cluster.md")
    args = parser.parse_args(argv)
    if args.markdown:
        print(markdown(), end="")
        return 0
    root = source_folder(args.source)
    if args.source is not None and not (root / "v1").is_dir():
        print(f"{args.source} holds no source of vLLM: give the folder that contains vllm/", file=sys.stderr)
        return 2
    if args.source is None or args.word:
        for row in rows(args.word):
            there = f"{row.vllm_name} ({row.vllm_file})" if row.vllm_name else "no such thing"
            print(f"{row.name} ({row.file}) -> {there}" + (f": {row.note}" if row.note else ""))
    if root is None:
        print(f"not checked: vLLM is not installed here. The map is that of vLLM {RELEASE}; give --source FOLDER")
        return 0
    gone = problems(root)
    print("\n".join(gone) or f"all {sum(bool(row.vllm_name) for row in rows())} names are in this source of vLLM")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
