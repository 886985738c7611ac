"""The learner's progress file: kept whole, set aside when broken, never in the way."""

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.course import progress
from minipaged.course.framework import exercises_of, months
from minipaged.course.progress import ExerciseProgress


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIPAGED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_nothing_is_remembered_at_first_and_nothing_is_written(home: Path) -> None:
    assert progress.load() == {}
    assert progress.get("2.1") == ExerciseProgress()
    assert not home.exists()


entries = st.builds(
    ExerciseProgress,
    st.sampled_from(["passed", "failed", "error", "not attempted"]),
    st.booleans(),
    st.integers(0, 9),
    st.integers(0, 3),
    st.booleans(),
)


@given(st.dictionaries(st.from_regex(r"[0-7]\.[1-9]", fullmatch=True), entries))
def test_what_is_saved_is_loaded(tmp_path_factory, saved: dict[str, ExerciseProgress]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIPAGED_HOME", str(tmp_path_factory.mktemp("home")))
        progress.save(saved)
        assert progress.load() == saved


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "[" * 100_000, '{"version": 99, "exercises": {}}'),
        *(
            f'{{"version": 1, "exercises": {{"2.1": {entry}}}}}'
            for entry in ('{"x": 1}', "3", '{"hints": "1"}', '{"hints": true}', '{"status": "done"}', '{"passed": 1}')
        ),
    ],
    ids=lambda content: content[:50],
)
def test_a_broken_file_is_set_aside_with_a_message(home: Path, capsys: pytest.CaptureFixture, content: str) -> None:
    home.mkdir()
    for number in (1, 2):
        progress.progress_file().write_text(content)
        assert progress.load() == {}
        kept = home / f"progress.json.broken{number if number > 1 else ''}"
        assert kept.read_text() == content
        assert kept.name in capsys.readouterr().err
    progress.update("2.1", passed=True)
    assert progress.get("2.1").passed


def test_a_folder_of_that_name_is_set_aside_too(home: Path, capsys: pytest.CaptureFixture) -> None:
    progress.progress_file().mkdir(parents=True)
    progress.update("2.1", passed=True)
    assert "It is kept as" in capsys.readouterr().err
    assert progress.get("2.1").passed


def test_a_broken_file_that_cannot_be_set_aside_is_told(
    home: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    progress.progress_file().write_text("{")
    monkeypatch.setattr(Path, "replace", lambda path, target: path.joinpath("no", "such").write_text(""))
    assert progress.load() == {}
    assert "could not be read" in (told := capsys.readouterr().err)
    assert "MINIPAGED_HOME" in told


def test_writing_leaves_no_temporary_files(home: Path) -> None:
    for attempts in range(3):
        progress.update("2.1", attempts=attempts)
    assert [path.name for path in home.iterdir()] == ["progress.json"]
    assert json.loads((home / "progress.json").read_text())["exercises"]["2.1"]["attempts"] == 2


def test_a_home_that_cannot_be_written_is_told_and_does_not_stop_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("MINIPAGED_HOME", str(tmp_path / "file" / "home"))
    assert progress.update("2.1", passed=True).passed
    assert "MINIPAGED_HOME" in capsys.readouterr().err


def test_the_file_is_private_to_its_owner(home: Path) -> None:
    progress.update("2.1", passed=True)
    assert not stat.S_IMODE(progress.progress_file().stat().st_mode) & 0o077


def test_the_status_page_leads_to_the_next_exercise(home: Path) -> None:
    from minipaged.course.status import status_page

    first = exercises_of(0)[0]
    page = status_page()
    assert "month_0.ipynb" in page._repr_html_().split("Next:")[1]
    progress.update(first.id, passed=True, status="passed")
    html = page._repr_html_()
    assert f"1 of {len(exercises_of(0))}" in html
    assert first.title not in html.split("Next:")[1]
    for month in months():
        for exercise in exercises_of(month):
            progress.update(exercise.id, passed=True, status="passed")
    assert "All exercises are passed" in page._repr_html_()
    assert "of exercises to go" in repr(page)
