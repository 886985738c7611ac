"""Reading the JSON files of a checkpoint: each value is checked, and what is wrong with it is said."""

import json
import math
from pathlib import Path
from typing import Any


class CheckpointError(ValueError):
    """A checkpoint cannot be loaded; the message names the file, what is wrong, and the way out."""


def read_json(file: Path) -> dict[str, Any]:
    """Parse a JSON object, or raise CheckpointError with the place where it breaks off."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not valid JSON ({error}): the file is truncated or damaged. Copy the checkpoint again."
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds a {type(values).__name__}; expected a JSON object {{…}}.")
    return values


def positive_int(
    values: dict[str, Any], key: str, source: str, default: int | None = None, most: int = 2**31 - 1
) -> int:
    """An integer from 1 to `most`, by default of 31 bits; `default` where it is left out or null."""
    value = default if values.get(key) is None else values[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        limit = "below 2^31" if most == 2**31 - 1 else f"of at most {most:,}"
        raise CheckpointError(
            f"{source}: {_found(values, key)}; expected a positive integer {limit}. Copy config.json again."
        )
    return value


def switch(values: dict[str, Any], key: str, source: str, default: bool = False) -> bool:
    """true or false; `default` where it is left out or null. A text is refused: "false" would count as true."""
    value = default if values.get(key) is None else values[key]
    if not isinstance(value, int) or value not in (0, 1):
        raise CheckpointError(f"{source}: {_found(values, key)}; expected true or false, without quotes. Correct it.")
    return bool(value)


def positive_number(
    values: dict[str, Any], key: str, source: str, default: float | None = None, low: float = 0.0
) -> float:
    """A finite number above 0 that is at least `low`; `default` where it is left out or null."""
    value = default if values.get(key) is None else values[key]
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < low or value <= 0:
        limit = f"of at least {low:g}" if low else "greater than 0"
        raise CheckpointError(f"{source}: {_found(values, key)}; expected a number {limit}. Copy config.json again.")
    return float(value)


def _found(values: dict[str, Any], key: str) -> str:
    return f"{key} = {values[key]!r}" if key in values else f"{key} is missing"
