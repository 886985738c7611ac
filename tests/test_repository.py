"""The repository as a whole: nothing in it belongs to one machine, and nothing in it is large."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_BYTES = 1 << 20
LARGE = {"minipaged/model/tiny/model.safetensors": 4 << 20}
TEXT = {".py", ".md", ".ipynb", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".json", ".sh", ".js", ".html", ".css", ""}
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.\-/<>])/(?:root|home/\w+|Users/\w+|opt|work)/[\w.]"),
    "a package index's address": re.compile(r"--(?:extra-)?index-url|--find-links|https?://\S+/(?:simple|whl|packages)/"),
    "an unfinished spot": re.compile(r"\b(?:TODO|FIXME|XXX)\b"),
    "an editor's conflict mark": re.compile(r"^(?:<<<<<<<|>>>>>>>) ", re.MULTILINE),
}
THIS = "tests/test_repository.py"


def tracked_files() -> list[Path]:
    """The files git knows; without git, all that are not ignored by name."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: there is no list of the project's files")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def text_files() -> list[tuple[str, str]]:
    return [
        (path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in tracked_files()
        if path.suffix in TEXT and path.name != "tokenizer.json"
    ]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_has(what: str) -> None:
    found = [
        f"{name}: {match[0]!r}"
        for name, text in text_files()
        if name != THIS
        for match in [FORBIDDEN[what].search(without_pictures(text) if name.endswith(".ipynb") else text)]
        if match
    ]
    assert found == []


def without_pictures(notebook: str) -> str:
    """A notebook's text without base64, in which anything can be read."""
    return re.sub(r'"[A-Za-z0-9+/=\\n]{200,}"', '""', notebook)


def test_files_are_small() -> None:
    large = {
        path.relative_to(ROOT).as_posix(): path.stat().st_size
        for path in tracked_files()
        if path.stat().st_size > LARGE.get(path.relative_to(ROOT).as_posix(), MAX_BYTES)
    }
    assert large == {}


def test_texts_end_with_one_newline_and_have_no_trailing_tabs() -> None:
    for name, text in text_files():
        if text and not name.endswith((".json", ".ipynb")):
            assert text.endswith("\n"), name
            assert "\r" not in text, name


def test_what_is_to_be_run_can_be_run() -> None:
    assert os.stat(ROOT / ".ci" / "run").st_mode & stat.S_IXUSR


@pytest.mark.parametrize("command", ["ruff check .", "codespell --config=.codespellrc"])
def test_style_and_spelling(command: str) -> None:
    name, *arguments = command.split()
    done = subprocess.run([name, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr


def environment() -> dict[str, str]:
    """The environment with the running Python's commands first: tests also run without an activated environment."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
