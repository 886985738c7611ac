"""Names and metrics of one pinned vLLM release, as data: the course needs no vLLM to talk about its source.

`data/vllm_0_32.json` was read out of the source with this module. Where vLLM is installed, or its source lies in a
folder, `python -m minipaged.course.vllm_source [FOLDER]` reads it again and says what differs. `--write` replaces the
data.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).with_name("data") / "vllm_0_32.json"
FILES = (
    "vllm/v1/core/block_pool.py",
    "vllm/v1/core/kv_cache_manager.py",
    "vllm/v1/core/kv_cache_utils.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/request.py",
    "vllm/v1/worker/block_table.py",
)
METRICS_FILE = "vllm/v1/metrics/loggers.py"


class Metric(NamedTuple):
    """One metric of /metrics: `kind` is gauge, counter or histogram."""

    name: str
    kind: str
    documentation: str


@functools.cache
def _data() -> dict:
    return json.loads(DATA.read_text(encoding="utf-8"))


def outline(path: str) -> dict[str, list[str]]:
    """{class: its methods and attributes} of a source file; the file's own functions and names stand under "".

    Raises KeyError for a file that the data does not hold; the message lists those it holds.
    """
    files = _data()["files"]
    if path not in files:
        raise KeyError(f"there is no outline of {path!r}; there are {', '.join(files)}")
    return {name: list(members) for name, members in files[path].items()}


def names() -> set[str]:
    """All names of the outlines: classes, functions, and Class.member."""
    found = set()
    for path in FILES:
        for owner, members in outline(path).items():
            found |= {owner} - {""}
            found |= {f"{owner}.{member}" if owner else member for member in members}
    return found


def find(text: str) -> list[str]:
    """The names that contain this text, in any case, sorted."""
    return sorted(name for name in names() if text.lower() in name.lower())


def metrics() -> dict[str, Metric]:
    """{name: metric} of everything that vllm/v1/metrics/loggers.py puts into /metrics."""
    return {row["name"]: Metric(**row) for row in _data()["metrics"]}


# ── reading the source ───────────────────────────────────────────────────────────────────────────────────────────


def read_source(folder: Path) -> dict:
    """The data of a source tree that contains `vllm/`."""
    version = _data()["release"] if DATA.exists() else "0.32.0"
    return {
        "release": version,
        "source": f"https://github.com/vllm-project/vllm/tree/v{version} (Apache License 2.0); names and metrics only",
        "metrics_from": METRICS_FILE,
        "files": {path: _outline_of(ast.parse((folder / path).read_text(encoding="utf-8"))) for path in FILES},
        "metrics": list(_metrics_of(ast.parse((folder / METRICS_FILE).read_text(encoding="utf-8")))),
    }


def _outline_of(tree: ast.Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"": sorted(set(_names_in(tree.body)))}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members = set(_names_in(node.body))
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    members |= set(_attributes_set_in(method))
            found[node.name] = sorted(member for member in members if not member.startswith("__"))
    return found


def _names_in(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _attributes_set_in(method: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _metrics_of(tree: ast.Module) -> Iterator[dict[str, str]]:
    """Every `self._gauge_cls(name="vllm:…", documentation="…")`, in the order of the source."""
    variables = {
        node.targets[0].id: _text(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_cls"):
            given = {word.arg: word.value for word in node.keywords}
            if "name" in given and "documentation" in given:
                name, words = (_text(given[key]) for key in ("name", "documentation"))
                name, words = variables.get(name, name), variables.get(words, words)
                if name.startswith("vllm:"):
                    yield {"name": name, "kind": node.func.attr.strip("_").removesuffix("_cls"), "documentation": words}


def _text(node: ast.expr) -> str:
    try:
        return str(ast.literal_eval(node))
    except ValueError:  # a name or an f-string: as it stands in the source
        return ast.unparse(node)


def differences(old: dict, new: dict) -> list[str]:
    """One line for each name or metric that stands in one of them only."""
    lines = []
    for path in FILES:
        pairs = [{(owner, member) for owner, members in data["files"].get(path, {}).items() for member in members}
                 for data in (old, new)]  # fmt: skip
        lines += [f"{path}: {owner}.{member} is gone" for owner, member in sorted(pairs[0] - pairs[1])]
        lines += [f"{path}: {owner}.{member} is new" for owner, member in sorted(pairs[1] - pairs[0])]
    known = [{(row["name"], row["kind"]) for row in data["metrics"]} for data in (old, new)]
    lines += [f"{METRICS_FILE}: {kind} {name} is gone" for name, kind in sorted(known[0] - known[1])]
    lines += [f"{METRICS_FILE}: {kind} {name} is new" for name, kind in sorted(known[1] - known[0])]
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m minipaged.course.vllm_source", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, help="a folder that contains vllm/; default: the installed vLLM"
    )
    parser.add_argument("--write", action="store_true", help="replace the course's data with what the source says")
    args = parser.parse_args(argv)
    folder = args.folder
    if folder is None:
        spec = importlib.util.find_spec("vllm")  # found, not imported: no GPU is needed
        if spec is None or spec.origin is None:
            print("vLLM is not installed here; give the folder of its source")
            return 2
        folder = Path(spec.origin).parents[1]
    missing = [path for path in (*FILES, METRICS_FILE) if not (folder / path).is_file()]
    if missing:
        print(f"{folder} lacks {missing[0]}; give the folder that contains vllm/")
        return 2
    found = read_source(folder)
    if args.write:
        DATA.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{DATA.name}: {len(found['metrics'])} metrics, {len(FILES)} files")
        return 0
    lines = differences(_data(), found)
    print("\n".join(lines) or f"the course's data agree with this source ({_data()['release']})")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
