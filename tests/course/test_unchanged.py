"""The course's functions are those of its files; a replaced one is named, whatever way it was replaced."""

import builtins
import functools
from unittest import mock

import pytest

from minipaged.course import checking, expect
from minipaged.course.framework import Exercise, all_exercises
from minipaged.course.unchanged import changed_parts
from minipaged.kv_cache.block_table import BlockTable


def test_nothing_is_changed() -> None:
    assert all_exercises()
    assert changed_parts() == []


@pytest.mark.parametrize(
    ("owner", "name", "new"),
    [
        (expect.Expect, "equal", lambda *args, **kwargs: None),
        (expect.Expect, "equal", mock.Mock()),
        (expect, "same", lambda *args: True),
        (expect, "same", print),
        (checking, "is_placeholder", functools.partial(bool, 0)),
        (Exercise, "key", property(lambda self: (0, 0))),
        (BlockTable, "slot_mapping", lambda self, start, stop: [0]),
    ],
)
def test_what_was_changed_is_named(owner: object, name: str, new: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, new)
    assert changed_parts() == [f"{owner.__module__}.{owner.__qualname__}.{name}" if isinstance(owner, type) else
                               f"{owner.__name__}.{name}"]  # fmt: skip


def test_a_builtin_is_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "all", lambda items: True)
    assert changed_parts() == ["all"]
