"""The same attention backend, with a sliding window: for models some of whose layers see only the newest tokens."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from weakref import WeakKeyDictionary

from minipaged.attention.protocols import AttentionBackend

_made: WeakKeyDictionary[AttentionBackend, dict[int, AttentionBackend]] = WeakKeyDictionary()


def with_window(backend: AttentionBackend, window: int | None) -> AttentionBackend:
    """``backend`` for layers in which a token sees only the last ``window`` positions, itself included.

    None is no window: the backend itself. Otherwise a copy, made once and then remembered. minipaged's own backends
    have their ``options`` changed in the copy; another backend may bring a method ``with_window(window)``.

    Raises TypeError for a backend that has neither.
    """
    if window is None:
        return backend
    made = _made.setdefault(backend, {})
    if window not in made:
        made[window] = _make(backend, window)
    return made[window]


def _make(backend: AttentionBackend, window: int) -> AttentionBackend:
    if hasattr(backend, "with_window"):
        return backend.with_window(window)
    if not hasattr(backend, "options"):
        raise TypeError(
            f"this model has a sliding window of {window} tokens, but the attention backend "
            f"{getattr(backend, 'name', type(backend).__name__)!r} has none: give it a method with_window(window) that "
            "returns a backend with one, or use attention='reference', 'triton' or 'cpu'"
        )
    made = copy(backend)
    made.options = replace(backend.options, sliding_window=window)
    return made
