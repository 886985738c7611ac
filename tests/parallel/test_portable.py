"""What a notebook cell defines goes to another process as source, with all it refers to."""

import linecache
import math
import sys

import pytest
import torch

from minipaged.parallel.portable import HERE, BySource, portable, unpacked

CELL = '''
from dataclasses import dataclass, replace
import math as m
import torch
from torch import Tensor
from collections.abc import Callable

SCALE = 3
TABLE = {"a": [1, 2], "b": torch.float16}
weights = torch.arange(4)
unused = open

def helper(x):
    return m.sqrt(x) * SCALE

class Base:
    size: int = SCALE
    def area(self) -> float:
        return helper(self.size)

@dataclass
class Mine(Base):
    """One of my own."""
    name: str = "mine"

    def forward(self, x: Tensor, done: Callable = helper) -> Tensor:
        return x * weights + self.area() + TABLE["a"][1], TABLE["b"], type(self).__name__

def top(n):
    def inner(k):
        return Mine().forward(torch.ones(4))
    return inner(n) if n else top(1)
'''


@pytest.fixture
def cell() -> dict:
    """The namespace of a notebook after it has run CELL."""
    file = "<ipython-input-1>"
    linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
    namespace = {"__name__": "__main__"}
    exec(compile(CELL, file, "exec"), namespace)
    yield namespace
    sys.modules.pop(HERE, None)


def test_a_cell_and_all_it_refers_to(cell: dict) -> None:
    sent = portable({"of": cell["top"], "number": 3})
    assert isinstance(sent["of"], BySource)
    assert "unused" not in sent["of"].source
    back = unpacked(sent)
    assert back["number"] == 3
    found, dtype, name = back["of"](0)
    torch.testing.assert_close(found, torch.arange(4) + 3 * math.sqrt(3) + 2)
    assert (dtype, name) == (torch.float16, "Mine")
    assert back["of"].__module__ == HERE


def test_a_class_of_a_cell(cell: dict) -> None:
    mine = unpacked(portable(cell["Mine"]))
    assert mine(name="x").area() == cell["Mine"]().area()


def test_what_can_be_imported_goes_by_name() -> None:
    for thing in (math.gcd, torch.nn.Linear, test_a_class_of_a_cell, BySource):
        assert unpacked(portable(thing)) is thing
    assert portable([1, 2]) == [1, 2]


def test_what_lives_inside_a_function() -> None:
    class Inner:
        def forward(self):
            return 1

    for thing in (Inner, lambda: 1):
        with pytest.raises(ValueError, match="is defined inside a function"):
            portable(thing)


def test_no_source(cell: dict) -> None:
    namespace = {"__name__": "__main__"}
    exec("def lost(): return 1", namespace)
    with pytest.raises(ValueError, match="the source of lost cannot be found"):
        portable(namespace["lost"])
