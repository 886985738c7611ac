"""What a file in `benchmarks/results/` says: how many times as fast as the peer, row by row.

A file has measurements of ours and of the peer, in turns. Only their ratios mean something on another machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

KINDS = {"pairs": "paging", "rows": "attention", "lengths": "generate", "seconds": "kv"}
"""The part of a file that only this benchmark writes (kv: the last one left)."""

Result = Mapping[str, Any]


class NotAResult(ValueError):
    """A file that no benchmark wrote, or that is damaged. The message is for the user."""


def kind_of(result: object, name: str) -> str:
    """Which benchmark wrote this."""
    if isinstance(result, dict):
        for part, kind in KINDS.items():
            if part in result:
                return kind
    raise NotAResult(f"{name} is no result of minipaged bench {', '.join(sorted(KINDS.values()))}")


def ratios(result: Result, name: str) -> dict[str, float]:
    """{row: how many times as fast as the peer}; a row without a peer is left out.

    Raises NotAResult, with the file's `name`, where the file is of no benchmark or damaged.
    """
    kind = kind_of(result, name)
    try:
        found = {"kv": _kv, "generate": _generate, "attention": _attention, "paging": _paging}[kind](result)
        if not all(value > 0 for value in found.values()):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise NotAResult(f"{name} looks like a result of bench {kind}, but its measurements are damaged") from error
    return found


def _kv(result: Result) -> dict[str, float]:
    found = {}
    for row, columns in result["seconds"].items():
        ours, *peers = columns
        for peer in peers:
            found[f"{row} | {_product(peer)}"] = median(columns[peer]) / median(columns[ours])
    return found


def _generate(result: Result) -> dict[str, float]:
    found = {}
    for row, columns in result["seconds"].items():
        ours, *peers = columns
        for peer in peers:
            pairs = zip(columns[ours], columns[peer], strict=True)
            found[f"{row} | {_product(peer)}"] = median(their / our for our, their in pairs)
        if "limit_seconds" in result:
            found[f"{row} | the machine's limit"] = result["limit_seconds"][row] / median(columns[ours])
    return found


def _attention(result: Result) -> dict[str, float]:
    """There a row's ratio is our time over the baseline's."""
    found = {}
    for row in result["rows"]:
        shape = f"{row['work']} {row['num_heads']}/{row['num_kv_heads']} D {row['head_dim']} {row['dtype']}"
        found[f"{shape}, {row['threads']} thread(s), {row['candidate']} | {row['baseline']}"] = 1 / row["ratio"]
    return found


def _paging(result: Result) -> dict[str, float]:
    """A pair's ratio is its second measurement over its first: tokens a second grow, milliseconds fall."""
    found = {}
    for pair in result["pairs"]:
        names = pair["names"] if pair["unit"].startswith("ms") else reversed(pair["names"])
        found[f"{pair['what']} | {' beside '.join(names)}"] = pair["ratio"]
    return found


def _product(name: str) -> str:
    """ "vLLM 0.32.0" → "vLLM": another version of a peer is still the same peer."""
    return name.split()[0]


def read(path: Path) -> Result:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotAResult(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no JSON, or no text at all
        raise NotAResult(f"{path} is not JSON: give a file that --json wrote") from error
