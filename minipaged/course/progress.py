"""The learner's progress: one small JSON file on this machine. Nothing is sent anywhere.

The file is `progress.json` in the folder MINIPAGED_HOME (default: `.minipaged` in the home folder). It is written
whole and moved into place, so that a crash cannot leave half a file. A file that cannot be read is set aside, with a
message, and a new one is started.
"""

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from minipaged.course.outcome import STATUSES

VERSION = 1


@dataclass
class ExerciseProgress:
    """What is remembered of one exercise.

    Attributes:
        status: the outcome of the newest check.
        passed: it has been passed at least once.
        attempts: checks that found something to check (all but *not attempted*).
        hints: hints shown, 0 to 3.
        solution_shown: the solution was asked for.
    """

    status: str = "not attempted"
    passed: bool = False
    attempts: int = 0
    hints: int = 0
    solution_shown: bool = False


def home() -> Path:
    """The folder with the learner's files."""
    return Path(os.environ.get("MINIPAGED_HOME") or Path.home() / ".minipaged").expanduser()


def progress_file() -> Path:
    return home() / "progress.json"


def load() -> dict[str, ExerciseProgress]:
    """Everything remembered, by exercise id; empty on a new machine. A broken file is moved to
    `progress.json.broken` (then `.broken2`, …) and reported on standard error."""
    path = progress_file()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']!r}; this course writes version {VERSION}")
        return {key: _entry(key, value) for key, value in content["exercises"].items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}  # not there yet; where it cannot be, `update` says so
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        aside = _free_name(path)
        try:
            path.replace(aside)
        except OSError:
            what = "It cannot be moved aside either: set MINIPAGED_HOME to a folder that you can write"
        else:
            what = f"It is kept as {aside}; a new one is started"
        print(f"Your progress file could not be read ({error}). {what}.", file=sys.stderr)
        return {}


def _entry(exercise_id: str, fields: dict[str, object]) -> ExerciseProgress:
    """One exercise of the file. Raises ValueError for a field of another kind than `ExerciseProgress` has."""
    entry, fresh = ExerciseProgress(**fields), ExerciseProgress()
    for name, value in vars(entry).items():
        if type(value) is not type(getattr(fresh, name)) or (name == "status" and value not in STATUSES):
            raise ValueError(f"{exercise_id}: {name} is {value!r}")
    return entry


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.broken{number if number > 1 else ''}") for number in range(1, 1000))
    return next(name for name in names if not name.exists())


def save(progress: dict[str, ExerciseProgress]) -> None:
    """Write the whole file, atomically. Raises OSError where the folder cannot be written."""
    path = progress_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"version": VERSION, "exercises": {key: asdict(value) for key, value in sorted(progress.items())}}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="progress-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def get(exercise_id: str) -> ExerciseProgress:
    return load().get(exercise_id, ExerciseProgress())


def update(exercise_id: str, **changes: object) -> ExerciseProgress:
    """Change one exercise's entry and save. Where the file cannot be written, say so once on standard error and go
    on: a full disk must not stop a check."""
    progress = load()
    entry = progress.setdefault(exercise_id, ExerciseProgress())
    for name, value in changes.items():
        setattr(entry, name, value)
    try:
        save(progress)
    except OSError as error:
        print(f"Your progress was not saved: {error}. Set MINIPAGED_HOME to a folder you can write.", file=sys.stderr)
    return entry
