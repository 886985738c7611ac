"""The house's floors: a room imports only what stands below it, nothing goes round in a circle, and the lower rooms
need no heavy package."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from minipaged import gpu_present

PACKAGE = Path(__file__).parents[1] / "minipaged"
FLOORS = (
    "os_paging",
    "kv_cache",
    "workloads",
    "scraping",
    "results",
    "fragmentation",
    "attention",
    "model",
    "serving",
    "parallel",
    "course",
    "bench",
    "cli",
    "__main__",
)
"""Ground floor first. A room may import itself and the rooms before it."""
LIGHT = {"os_paging": (), "kv_cache": ("storage", "swap")}
"""Rooms that import neither torch nor triton, with the modules that may."""


def modules() -> dict[str, Path]:
    """{dotted name: file} of the whole package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(module: str, *, top_level: bool = False) -> Iterator[str]:
    """The modules that a module imports, anywhere in it or only when it is imported itself."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    nodes = _executed(tree.body) if top_level else ast.walk(tree)
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in MODULES else base


def _executed(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Statements that run when the module is imported: not in functions, not under TYPE_CHECKING."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, field, [])
            yield from _executed(inner if isinstance(inner, list) else [])


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name)])
def test_a_room_imports_only_rooms_below_it(module: str) -> None:
    room = room_of(module)
    assert room in FLOORS, f"{room} has no place in the house yet: add it to FLOORS"
    allowed = FLOORS[: FLOORS.index(room) + 1]
    upwards = [name for name in imports(module) if name.startswith("minipaged.") and room_of(name) not in allowed]
    upwards = [name for name in upwards if room_of(name) in FLOORS]  # `from minipaged import gpu_present` is fine
    assert upwards == []


def test_no_circle_of_imports() -> None:
    graph = {name: MODULES.keys() & set(imports(name, top_level=True)) - {name, "minipaged"} for name in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "a circle: " + " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for to in sorted(graph[name]):
                visit(to, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@cache
def heavy(module: str) -> str:
    """Which heavy package a fresh Python has after importing this module."""
    code = f"import sys, {module}; print(*[name for name in ('torch', 'triton') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("room", LIGHT)
def test_the_lower_rooms_import_neither_torch_nor_triton(room: str) -> None:
    light = [name for name in MODULES if room_of(name) == room and name.split(".")[-1] not in LIGHT[room]]
    for name in light:
        assert not {to.split(".")[0] for to in imports(name)} & {"torch", "triton"} or name.endswith(room), name
    assert heavy(f"minipaged.{room}") == ""


def test_the_operating_systems_room_needs_the_standard_library_only() -> None:
    for name in MODULES:
        if room_of(name) == "os_paging":
            foreign = {to.split(".")[0] for to in imports(name)} - set(sys.stdlib_module_names) - {"minipaged"}
            assert not foreign, f"{name} imports {foreign}"


def test_importing_minipaged_imports_nothing_heavy() -> None:
    assert heavy("minipaged") == ""


@pytest.mark.parametrize(("before", "status"), [("import triton", 1), ("sys.modules['triton'] = None", 0)])
def test_triton_must_not_come_first(before: str, status: int) -> None:
    """Blocked (None in sys.modules) is not imported: what needs no triton works."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    code = f"import sys\n{before}\nimport minipaged"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if gpu_present():
        assert done.returncode == 0
    else:
        assert (done.returncode, "imported before minipaged" in done.stderr) == (status, bool(status))
