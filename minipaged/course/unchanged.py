"""Is the course still the course's own? Compares the loaded modules with their files.

`minipaged grade` writes the answer beside each outcome: whatever way a notebook took to give `Expect` or a reference
another body (a second name for it, `exec`, `mock.patch`), the body is not the one in the file.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from minipaged.course.own_work import unwrap

_PACKAGE = "minipaged"
_RELIED_ON = ("abs", "all", "any", "isinstance", "len", "max", "min", "open", "repr", "sorted", "sum")


def changed_parts() -> list[str]:
    """Dotted names of functions that differ from the file they come from, and of builtins that were replaced."""
    changed = [name for name in _RELIED_ON if not isinstance(getattr(builtins, name), BuiltinFunctionType)]
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] == _PACKAGE and hasattr(getattr(module.__spec__, "loader", None), "get_code"):
            changed += (f"{name}.{part}" for part in _changed_in(module))
    return changed


def _changed_in(module: ModuleType) -> Iterator[str]:
    for qualified, code in _functions_of(module.__spec__.name):
        live = _resolve(module, qualified)
        if live is not None and getattr(live, "__code__", None) not in code:
            yield qualified


def _resolve(module: ModuleType, qualified: str) -> Any:
    """What a name stands for now, without its wrappings; None where the file did not come to define it."""
    thing: Any = module
    for part in qualified.split("."):
        thing = inspect.getattr_static(thing, part, None)
    for wrapping in ("fget", "__func__", "func"):  # a property, a static or class method, a cached property
        thing = getattr(thing, wrapping, None) or thing
    return unwrap(thing)


@functools.cache
def _functions_of(module: str) -> tuple[tuple[str, frozenset[CodeType]], ...]:
    """(qualified name, its bodies) of every function and method of a module's file, without inner functions."""
    found: dict[str, set[CodeType]] = {}
    code = sys.modules[module].__spec__.loader.get_code(module)  # compiled before, if the file is as it was then
    if code is not None:
        _collect(code, found)
    return tuple((name, frozenset(codes)) for name, codes in found.items())


def _collect(code: CodeType, found: dict[str, set[CodeType]]) -> None:
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or "<" in constant.co_qualname:  # lambdas, comprehensions
            continue
        if constant.co_flags & inspect.CO_NEWLOCALS:
            found.setdefault(constant.co_qualname, set()).add(constant)
        else:  # the body of a class
            _collect(constant, found)
