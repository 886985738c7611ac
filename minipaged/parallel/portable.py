"""Functions and classes that another process can have: by name where it can import them, else by their source.

A rank is a new Python. What a module defines, it imports; what a notebook cell defines, exists nowhere but in the
notebook. So its source goes along, with all that it refers to: imports, constants, other functions and classes.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import pickle
import sys
import textwrap
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

HERE = "minipaged_notebook"  # the module in which a rank defines what came as source


@dataclass(frozen=True)
class ByName:
    """Something that every Python with these modules can import."""

    module: str
    name: str

    def load(self) -> Any:
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found


@dataclass(frozen=True)
class BySource:
    """The text of a module, and a name in it."""

    source: str
    name: str

    def load(self) -> Any:
        """Define it. Its lines are remembered, so that a traceback shows them."""
        module, file = ModuleType(HERE), f"<notebook: {self.name}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(keepends=True), file)
        sys.modules[HERE] = module
        exec(compile(self.source, file, "exec"), module.__dict__)
        return module.__dict__[self.name]


def portable(thing: Any) -> Any:
    """A function or class as ByName or BySource, dicts with their values; everything else as it is.

    Raises ValueError for a function or class whose source cannot be found, or that lives inside a function.
    """
    if isinstance(thing, dict):
        return {key: portable(value) for key, value in thing.items()}
    if not isinstance(thing, FunctionType | type):
        return thing
    if _importable(thing):
        return ByName(thing.__module__, thing.__qualname__)
    if "<locals>" in thing.__qualname__ or thing.__name__ == "<lambda>":
        raise ValueError(
            f"{thing.__qualname__} is defined inside a function, where other processes cannot have it: define it "
            "at the top level of a cell or of a module"
        )
    parts: dict[str, str] = {}
    _collect(thing.__name__, thing, parts)
    return BySource("\n\n".join(["import pickle", *parts.values()]) + "\n", thing.__name__)


def unpacked(thing: Any) -> Any:
    """The opposite of `portable`, in the other process."""
    if isinstance(thing, dict):
        return {key: unpacked(value) for key, value in thing.items()}
    return thing.load() if isinstance(thing, ByName | BySource) else thing


def source_of(thing: FunctionType | type) -> str:
    """The definition of a function or class, decorators included. Also of a class in a notebook cell, where
    `inspect.getsource` finds none: there the file is known from its methods."""
    functions = [thing] if isinstance(thing, FunctionType) else _functions(thing)
    for function in functions:
        lines = linecache.getlines(function.__code__.co_filename)
        at = function.__code__.co_firstlineno
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == thing.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if first <= at <= node.end_lineno:
                    return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
    raise ValueError(f"the source of {thing.__name__} cannot be found: put it into a module, and import it from there")


def _functions(cls: type) -> list[FunctionType]:
    members = [getattr(member, "__func__", getattr(member, "fget", member)) for member in vars(cls).values()]
    return [member for member in members if isinstance(member, FunctionType) and member.__module__ == cls.__module__]


def _importable(thing: Any) -> bool:
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module in ("__main__", HERE):
        return False
    try:
        return ByName(module, name).load() is thing
    except (ImportError, AttributeError):
        return False


def _collect(name: str, thing: FunctionType | type, parts: dict[str, str]) -> None:
    """Put the definitions of all that `thing` refers to, and then its own, into `parts`."""
    source = source_of(thing)
    namespace = (thing if isinstance(thing, FunctionType) else _functions(thing)[0]).__globals__
    parts[name] = ""  # it may refer to itself
    for other in sorted({node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}):
        if other in namespace and other not in parts:
            _define(other, namespace[other], parts)
    del parts[name]
    parts[name] = source if thing.__name__ == name else f"{source}\n{name} = {thing.__name__}"


def _define(name: str, value: Any, parts: dict[str, str]) -> None:
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    elif _importable(value):
        top, *inner = value.__qualname__.split(".")
        parts[name] = f"from {value.__module__} import {top} as {name}" + "".join(
            f"\n{name} = {name}.{i}" for i in inner
        )
    elif isinstance(value, FunctionType | type):
        _collect(name, value, parts)
    else:
        try:
            parts[name] = f"{name} = pickle.loads({pickle.dumps(value)!r})"
        except Exception:  # a figure, an open file: whoever needs it in a rank gets a NameError with this name
            return
