"""Workloads read from a file: your own trace, as CSV or JSONL. What is wrong in it is told with its line."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minipaged.workloads.request import Workload, problem, short

COLUMNS = ("arrival", "prompt_tokens", "output_tokens")


def load_trace(path: str | Path) -> list[Workload]:
    """Your own trace: CSV with a header line, or JSONL (one object a line); UTF-8.

    Columns: `arrival` (seconds), `prompt_tokens`, `output_tokens`, and optionally `prefix_id` with `prefix_tokens`;
    others are ignored. A bad row raises ValueError with the file and the line; nothing is returned then.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], Iterator[tuple[int, dict]]]] = {".csv": _csv_rows, ".jsonl": _jsonl_rows}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} ends in {path.suffix!r}; a trace is a .csv or a .jsonl file")
    requests = []
    for line, row in readers[path.suffix.lower()](path):
        try:
            requests.append(_workload(row))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    if not requests:
        raise ValueError(f"{path} holds no request; a CSV file needs a header and a row, a JSONL file an object")
    return sorted(requests, key=lambda request: request.arrival)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, one at a time, without a byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x}"
                raise ValueError(f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8") from None


def _csv_rows(path: Path) -> Iterator[tuple[int, dict]]:
    """(line, row) for each row: the line where it begins, since a quoted cell may hold line breaks."""
    reader, names, line = csv.reader(_lines(path), strict=True), [], 1
    try:
        for cells in reader:
            if cells and not names:
                names = _header(path, line, [name.strip() for name in cells])
            elif len(cells) > len(names):
                raise ValueError(f"{path}, line {line}: {len(cells)} cells, but the header names {len(names)} columns")
            elif cells:
                yield line, dict(zip(names, cells, strict=False))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: not CSV ({error})") from None


def _header(path: Path, line: int, names: list[str]) -> list[str]:
    wrong = [f"{name} is missing" for name in COLUMNS if name not in names]
    wrong += [f"{name} stands there {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]
    if wrong:
        found = short(", ".join(names))
        raise ValueError(
            f"{path}, line {line}: the header is {found}: {'; '.join(wrong)}. It needs {', '.join(COLUMNS)}, "
            "separated by commas"
        )
    return names


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: {short(row)} is not an object with named fields")
            yield number, row


def _workload(row: dict) -> Workload:
    """One row as a request; ValueError says what is wrong with it."""
    for name in COLUMNS:
        if row.get(name) in (None, ""):
            raise ValueError(f"{name} is missing; every row needs {', '.join(COLUMNS)}")
    numbers = {name: _number(row[name], float if name == "arrival" else int) for name in COLUMNS}
    prefix_id, prefix_tokens = row.get("prefix_id"), row.get("prefix_tokens")
    if isinstance(prefix_id, int) and not isinstance(prefix_id, bool):
        prefix_id = str(prefix_id)  # JSON may count its prefixes; CSV has only texts
    if prefix_id == "":
        prefix_id = None
    if prefix_id is not None and prefix_tokens in (None, ""):
        raise ValueError(f"prefix_id is {short(prefix_id)}, but prefix_tokens is missing; say how many tokens it has")
    prefix = 0 if prefix_tokens in (None, "") else _number(prefix_tokens, int)
    request = Workload(**numbers, prefix_id=prefix_id, prefix_tokens=prefix)
    if words := problem(request):
        raise ValueError(words)
    return request


def _number(value: Any, kind: type) -> Any:
    """The number that a cell stands for; what stands for none is returned as it is, for `problem` to name."""
    if isinstance(value, float) and value.is_integer():
        return kind(value)
    if isinstance(value, str) and "_" not in value:  # Python would read 1_000 as a number
        try:
            return kind(value)
        except ValueError:
            pass
    return value
