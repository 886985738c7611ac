"""Is the answer the learner's own? minipaged's functions and classes are not graded by accident."""

import functools
import importlib
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from minipaged.course.framework import Exercise

_PACKAGE = "minipaged"


def refusal(exercise: Exercise, answer: Any) -> str:
    """Why this answer is not graded, or an empty text when it is the learner's own."""
    answer = unwrap(answer)
    if isinstance(answer, dict | list | tuple):
        parts = answer.values() if isinstance(answer, dict) else answer
        return next(filter(None, (refusal(exercise, part) for part in parts)), "")
    if isinstance(answer, ModuleType):
        return "a module is no answer" if _is_ours(answer.__name__) else ""
    if inspect.isfunction(answer) or inspect.isclass(answer):
        if _is_ours(answer.__module__):
            return f"{answer.__qualname__} is minipaged's own"
    elif (exercise.plug_in or callable(answer)) and _is_ours(type(answer).__module__):
        return f"a {type(answer).__qualname__} is minipaged's own"
    if inspect.isclass(answer) and not exercise.subclass_ok:
        for base in answer.__mro__[1:]:
            if _is_ours(base.__module__) and not getattr(base, "_is_protocol", False):
                return f"{answer.__qualname__} inherits from minipaged's own {base.__qualname__}"
    used = _used_reference(exercise, answer)
    return f"it calls minipaged's own {used}" if used else ""


def _is_ours(module: str | None) -> bool:
    return module == _PACKAGE or (module or "").startswith(f"{_PACKAGE}.")


def unwrap(answer: Any) -> Any:
    """The function behind a partial, a bound method, a decorated function or a Triton kernel."""
    while True:
        if isinstance(answer, functools.partial):
            answer = answer.func
        elif inspect.ismethod(answer):
            answer = answer.__func__
        elif hasattr(answer, "__wrapped__"):
            answer = answer.__wrapped__
        elif type(answer).__name__ in ("JITFunction", "InterpretedFunction"):
            answer = answer.fn
        else:
            return answer


def _used_reference(exercise: Exercise, answer: Any) -> str:
    """The dotted name of a reference that the answer's code names, itself or by the learner's helpers, or an empty
    text."""
    references = {id(_resolve(name)): name for name in exercise.reference}
    todo, seen = list(_functions(answer)) if references else [], set()
    while todo:
        function = todo.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        named = [function.__globals__[name] for name in names if name in function.__globals__]
        modules = [thing for thing in named if isinstance(thing, ModuleType)]
        modules += [importlib.import_module(name) for name in names if _is_ours(name)]
        named += [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
        classes = [vars(thing) for thing in named if inspect.isclass(thing)]
        named += [methods[name] for methods in classes for name in names if name in methods]
        for thing in named:
            thing = unwrap(thing)
            if id(thing) in references:
                return references[id(thing)]
            if getattr(thing, "__module__", None) == function.__module__:
                todo += _functions(thing)
    return ""


def _functions(answer: Any) -> Iterator[FunctionType]:
    if inspect.isfunction(answer):
        yield answer
    elif inspect.isclass(answer):
        yield from (thing for thing in vars(answer).values() if inspect.isfunction(thing))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _resolve(dotted: str) -> Any:
    """The object a dotted name stands for: the longest part that is a module, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return unwrap(functools.reduce(getattr, parts[cut:], thing))
    raise ModuleNotFoundError(dotted)
