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
    return dict(parts)


def make_part(name: str, factory: Callable, *args, **kwargs):
    """Make a part and check it. A constructor that takes other arguments is reported with what the engine calls."""
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"parts[{name!r}] cannot be made as {PARTS[name][1]}: {error}") from error
    except ValueError:  # no signature to look at, as for some built-in classes
        pass
    try:
        part = factory(*args, **kwargs)
    except Exception as error:
        error.add_note(f"(while the engine made parts[{name!r}] as {PARTS[name][1]})")
        raise
    return check_part(name, part)


def check_part(name: str, part):
    """Returns the part if it has all that its Protocol asks for, with methods that take the engine's arguments."""
    protocol = PARTS[name][0]
    missing = [member for member in _members(protocol) if not hasattr(part, member)]
    if missing:
        raise TypeError(f"parts[{name!r}]: {type(part).__name__} lacks {', '.join(missing)}; see {_where(protocol)}")
    for member in _members(protocol):
        wanted = inspect.getattr_static(protocol, member, None)
        if not inspect.isfunction(wanted):
            continue
        parameters = list(inspect.signature(wanted).parameters)[1:]  # without self
        try:
            inspect.signature(getattr(part, member)).bind(*parameters)
        except TypeError as error:
            raise TypeError(
                f"parts[{name!r}]: {type(part).__name__}.{member} must take ({', '.join(parameters)}): {error}; "
                f"see {_where(protocol)}"
            ) from error
        except ValueError:  # a built-in method without a signature
            continue
    return part


def _members(protocol: type) -> list[str]:
    """What a Protocol asks for: its methods, properties and annotated attributes."""
    own = {n for n, value in vars(protocol).items() if callable(value) or isinstance(value, property)}
    names = own | set(inspect.get_annotations(protocol))
    return sorted(n for n in names if not n.startswith("_") or n == "__len__")


def _where(protocol: type) -> str:
    return f"the Protocol {protocol.__name__} in {protocol.__module__}"
