"""The sockets for a learner's own parts: each is checked against its Protocol before the engine is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from minipaged.attention import AttentionBackend
from minipaged.kv_cache.protocols import BlockPoolProtocol, BlockTableProtocol, PrefixCacheProtocol
from minipaged.serving.protocols import Scheduler

# name of the part → (its Protocol, how the engine makes it)
PARTS = {
    "block_table": (BlockTableProtocol, "YourTable(block_size)"),
    "block_pool": (BlockPoolProtocol, "YourPool(num_blocks)"),
    "prefix_cache": (PrefixCacheProtocol, "YourCache()"),
    "scheduler": (Scheduler, "YourScheduler(config, manager)"),
    "attention": (AttentionBackend, "YourBackend()"),
}


def check_parts(parts: Mapping[str, object] | None) -> dict[str, object]:
    """Returns the parts as a dict. Raises TypeError or ValueError that names the part and what it lacks."""
    if parts is None:
        return {}
    if not isinstance(parts, Mapping):
        raise TypeError(f"parts is a {type(parts).__name__}; give a dict such as {{'block_table': MyBlockTable}}")
    for name, part in parts.items():
        if name not in PARTS:
            raise ValueError(f"there is no part {name!r}; the parts are {', '.join(PARTS)}")
        if name == "attention":
            if isinstance(part, str):
                raise TypeError("parts['attention'] is a name; give a name as LLM(attention=…), and here a backend")
        elif not callable(part):
            raise TypeError(
                f"parts[{name!r}] is a {type(part).__name__} object; give the class (or a function that makes one): "
                f"the engine calls {PARTS[name][1]}"
            )
        if isinstance(part, type):
            _check_methods(name, part)
    return dict(parts)


def make_part(name: str, factory: Callable, *args, **kwargs):
    """Make a part and check the object. A failing constructor is reported with what the engine called."""
    try:
        part = factory(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"parts[{name!r}] cannot be made as {PARTS[name][1]}: {error}") from error
    missing = [attribute for attribute in _members(PARTS[name][0]) if not hasattr(part, attribute)]
    if missing:
        raise TypeError(_lacks(name, part if isinstance(part, type) else type(part), missing))
    return part


def _check_methods(name: str, part: type) -> None:
    """Methods, and the number of arguments they take. Attributes exist only in the object: see ``make_part``."""
    protocol = PARTS[name][0]
    methods = [m for m in _members(protocol) if inspect.isfunction(inspect.getattr_static(protocol, m, None))]
    missing = [m for m in methods if not callable(getattr(part, m, None))]
    if missing:
        raise TypeError(_lacks(name, part, missing))
    for method in methods:
        wanted = list(inspect.signature(getattr(protocol, method)).parameters.values())
        try:
            # Called with as many arguments as the engine gives, self included.
            inspect.signature(getattr(part, method)).bind(*wanted)
        except TypeError as error:
            names = ", ".join(p.name for p in wanted if p.name != "self")
            raise TypeError(
                f"parts[{name!r}]: {part.__name__}.{method} must take ({names}): {error}; "
                f"compare with {_where(protocol)}"
            ) from error
        except ValueError:  # a method without a signature, as of a C extension
            continue


def _members(protocol: type) -> list[str]:
    """What a Protocol asks for: its methods, properties and annotated attributes."""
    own = {n for n, value in vars(protocol).items() if callable(value) or isinstance(value, property)}
    names = own | set(inspect.get_annotations(protocol))
    return sorted(n for n in names if not n.startswith("_") or n == "__len__")


def _lacks(name: str, part: type, missing: list[str]) -> str:
    return f"parts[{name!r}]: {part.__name__} lacks {', '.join(missing)}; compare with {_where(PARTS[name][0])}"


def _where(protocol: type) -> str:
    return f"the Protocol {protocol.__name__} in {protocol.__module__}"
