"""The command `minipaged`: what it prints, and its exit status."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minipaged import cli
from minipaged.course import doctor, progress
from minipaged.course.notebook_tools import grade, merge, submissions
from minipaged.course.notebook_tools.answers import ANSWER, cells_by_exercise, solution_of
from minipaged.course.notebook_tools.notebook import code_cells, read_notebook, tags_of, write_notebook

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIPAGED_HOME", str(tmp_path / "home"))


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout to write in: the real solutions and fresh exercises of Month 2."""
    root = tmp_path / "course"
    os.makedirs(root)
    os.symlink(ROOT / "minipaged", root / "minipaged")
    os.symlink(ROOT / "solutions", root / "solutions")
    (root / "notebooks").mkdir()
    monkeypatch.setenv("MINIPAGED_COURSE", str(root))
    assert cli.main(["update-exercises"]) == 0
    return root


def run(capsys: pytest.CaptureFixture, *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(list(argv))
    out, err = capsys.readouterr()
    return status, out, err


def write_answer(course: Path, source: str, tag: str = f"{ANSWER}2.1") -> None:
    """Into the first cell with this tag."""
    path = course / "exercises" / "month_2.ipynb"
    notebook = read_notebook(path)
    next(cell for cell in code_cells(notebook) if tag in tags_of(cell))["source"] = source
    write_notebook(path, notebook)


def test_check_reads_the_saved_notebook(course: Path, capsys: pytest.CaptureFixture) -> None:
    status, out, _ = run(capsys, "check", "2.1")
    assert (status, "not attempted" in out) == (1, True)
    assert "IntegrityError" not in out  # what the notebook's given cells print is not part of the answer
    write_answer(course, "def num_blocks(n, b):\n    return n // b + 1")
    status, out, _ = run(capsys, "check", "2.1")
    assert (status, "exact multiples" in out) == (1, True)
    write_answer(course, solution_of("2.1"))
    status, out, _ = run(capsys, "check", "2.1")
    assert (status, "passed" in out) == (0, True)
    assert progress.get("2.1").passed


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def num_blocks(n, b)\n    return 1", "SyntaxError"),
        ("x = 1\ny = 1 / 0", "line 2 of your cell:  y = 1 / 0"),
        ("something_else = 1", "num_blocks"),
        ("class Odd(BaseException): pass\nraise Odd", "line 2 of your cell:  raise Odd"),
        ('x = "\0"', "null bytes"),
    ],
)
def test_check_shows_what_is_wrong_with_the_cell(
    course: Path, capsys: pytest.CaptureFixture, source: str, words: str
) -> None:
    write_answer(course, source)
    status, out, _ = run(capsys, "check", "2.1")
    assert status == 1
    assert "error" in out
    assert words in out


@pytest.mark.parametrize("tag", ["setup", "check-2.1"])
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def (", "ended with SyntaxError: invalid syntax"),
        ("1 / 0", "ended with ZeroDivisionError: division by zero"),
        ("exit()", "ended with SystemExit: None"),
        ("check('2.99', 1)", "ended with "),
        ("import no_such_package", "ended with ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_a_given_cell_that_was_altered_is_named_and_an_update_puts_it_back(
    course: Path, capsys: pytest.CaptureFixture, tag: str, source: str, words: str
) -> None:
    write_answer(course, solution_of("2.1"))
    write_answer(course, source, tag)
    status, out, err = run(capsys, "check", "2.1")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: exercises/month_2.ipynb: the given cell that starts with {source!r} {words}")
    assert "minipaged update-exercises puts it back and keeps your answers" in err
    assert len(err.splitlines()) == 1
    assert run(capsys, "update-exercises")[0] == 0
    assert run(capsys, "check", "2.1")[0] == 0


@pytest.mark.parametrize("argv", [("check", "2.1"), ("reset", "2.1"), ("update-exercises",)], ids=str)
def test_an_answer_cell_that_was_copied_is_told(
    course: Path, capsys: pytest.CaptureFixture, argv: tuple[str, ...]
) -> None:
    path = course / "exercises" / "month_2.ipynb"
    notebook = read_notebook(path)
    notebook["cells"].append(cells_by_exercise(notebook, ANSWER)["2.1"])
    write_notebook(path, notebook)
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert err.startswith("error: two cells carry the tag answer-2.1 (a copied cell keeps its tags): delete one")
    assert read_notebook(path)["cells"] == notebook["cells"]


def test_hint_then_status_then_reset(course: Path, capsys: pytest.CaptureFixture) -> None:
    assert "hint 1 of 3" in run(capsys, "hint", "2.1")[1]
    assert "hint 2 of 3" in run(capsys, "hint", "2.1")[1]
    write_answer(course, solution_of("2.1"))
    run(capsys, "check", "2.1")
    _, out, _ = run(capsys, "status")
    assert "Month 2  The block table" in out
    assert "Next: 2.2" in out or "Next: 0.1" in out or "Next: 1.1" in out
    status, out, _ = run(capsys, "reset", "2.1")
    kept = Path(progress.home() / "answers" / "2.1-1.py")
    assert (status, str(kept) in out) == (0, True)
    assert kept.read_text().strip() == solution_of("2.1")
    assert run(capsys, "check", "2.1")[0] == 1
    assert progress.get("2.1").hints == 0


def test_reset_changes_nothing_where_the_answer_cannot_be_kept(
    course: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_answer(course, "def num_blocks(n, b):\n    return 1")
    before = (course / "exercises" / "month_2.ipynb").read_bytes()
    (tmp_path / "a file").touch()
    monkeypatch.setenv("MINIPAGED_HOME", str(tmp_path / "a file"))
    status, out, err = run(capsys, "reset", "2.1")
    assert (status, out) == (2, "")
    assert "your answer to 2.1 cannot be kept" in err
    assert "set MINIPAGED_HOME to a folder that you can write" in err
    assert (course / "exercises" / "month_2.ipynb").read_bytes() == before


@pytest.mark.parametrize("argv", [("check", "2.1"), ("reset", "2.1"), ("update-exercises",), ("grade", "2")], ids=str)
@pytest.mark.parametrize("text", ["", "<<<<<<< HEAD\n", '{"nbformat": 4, "cells": [1]}'])
def test_a_broken_notebook_is_named_and_nothing_is_changed(
    course: Path, capsys: pytest.CaptureFixture, argv: tuple[str, ...], text: str
) -> None:
    path = course / "exercises" / "month_2.ipynb"
    path.write_text(text)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {path} is not a notebook that can be read: ")
    assert len(err.splitlines()) == 1
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.parametrize("option", ["--summary", "--badges", "--csv"])
def test_a_place_for_the_grades_is_looked_at_before_the_notebooks_run(
    course: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a notebook was run")

    monkeypatch.setattr(grade, "grade_month", never)
    monkeypatch.setattr(submissions, "grade_month", never)
    (tmp_path / "a file").touch()
    learner = tmp_path / "class" / "王 小明"
    learner.mkdir(parents=True)
    shutil.copy(course / "exercises" / "month_2.ipynb", learner)
    place = {"--badges": tmp_path / "a file"}.get(option, tmp_path)  # a file for a folder, a folder for a file
    more = ["--submissions", str(tmp_path / "class")] if option == "--csv" else []
    status, out, err = run(capsys, "grade", "2", option, str(place), *more)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {option}: {place} ")
    assert len(err.splitlines()) == 1


def test_a_disk_that_cannot_be_written_is_no_traceback(
    course: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, notebook: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    (course / "exercises" / "month_2.ipynb").unlink()
    monkeypatch.setattr(merge, "write_notebook", full)
    status, out, err = run(capsys, "update-exercises")
    path = course / "exercises" / "month_2.ipynb"
    assert (status, out, err) == (2, "", f"error: {path}: no space left on device\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["check", "2.99"], "month 2 has"),
        (["check", "two"], "named by a text like"),
        (["check", "²"], "named by a text like"),
        (["check", "44"], "month 44 has no exercises"),
        (["hint", "99.1"], "the months with exercises are"),
        (["hint", "2.1", "--number", "9"], "hints 1 to 3"),
        (["reset", "2.99"], "month 2 has"),
        (["grade", "44"], "month 44 has no exercises"),
        (["grade", "2", "--timeout", "-4"], "a number above 0"),
        (["grade", "2", "--timeout", "inf"], "a number above 0"),
        (["grade", "2", "--submissions", ".", "--memory", "inf"], "inf GiB; give a number from 2 upwards"),
        (["lab", "notebooks/NO_SUCH.ipynb", "--no-browser"], "there is no notebooks/NO_SUCH.ipynb"),
        (["lab", "notebooks", "--no-browser"], "there is no notebooks in"),
        (["lab", "/etc/passwd", "--no-browser"], "there is no /etc/passwd in"),
        (["lab", "../outside.ipynb", "--no-browser"], "there is no ../outside.ipynb in"),
        (["lab", "--port", "70000", "--no-browser"], "--port is 70000; allowed is 1 to 65535"),
        (["lab", "--port", "0", "--no-browser"], "--port is 0; allowed is 1 to 65535"),
    ],
)
def test_a_wrong_call_says_what_is_right(
    course: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, argv: list[str], words: str
) -> None:
    monkeypatch.setattr(doctor, "examine", list)
    (course.parent / "outside.ipynb").touch()
    status, _, err = run(capsys, *argv)
    assert status == 2
    assert words in err


def test_ctrl_c_is_no_traceback(course: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(grade, "grade_months", stopped)
    assert run(capsys, "grade", "2") == (130, "", "stopped\n")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture) -> None:
    status, out, _ = run(capsys)
    assert status == 2
    assert all(name in out for name in ("doctor", "lab", "check", "hint", "status", "reset", "grade", *cli.ELSEWHERE))


def test_a_command_of_a_part_that_is_not_there(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.ELSEWHERE, "serve", ("minipaged.no_such_room.serve", "words"))
    status, _, err = run(capsys, "serve", "--port", "1")
    assert (status, "has no `serve` yet" in err) == (2, True)


def test_doctor_finds_this_machine_fit() -> None:
    findings = doctor.examine()
    assert [finding for finding in findings if finding.status == doctor.PROBLEM] == []
    assert "Everything that the course needs is here." in doctor.report(findings)


def test_doctor_tries_whether_progress_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home, fits in ((tmp_path / "家", True), (tmp_path / "file", False)):
        monkeypatch.setenv("MINIPAGED_HOME", str(home))
        problems = [finding for finding in doctor.examine() if finding.status == doctor.PROBLEM]
        assert [finding.what for finding in problems] == ([] if fits else [f"{home} cannot be written"])
        assert not (tmp_path / "家").exists()


def test_doctor_names_each_problem_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o400)
    monkeypatch.setenv("MINIPAGED_COURSE", str(tmp_path))
    monkeypatch.setattr(doctor, "NEEDED", ("no-such-package",))
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 1))
    problems = [finding for finding in doctor.examine() if finding.status == doctor.PROBLEM]
    assert len(problems) == 3, "Python, the package, the course's folder"
    assert all(finding.cure for finding in problems)
    assert "3 problems." in doctor.report(problems)


def test_the_progress_file_holds_nothing_but_outcomes(course: Path, capsys: pytest.CaptureFixture) -> None:
    run(capsys, "check", "2.1")
    content = json.loads(progress.progress_file().read_text())
    assert set(content["exercises"]["2.1"]) == {"status", "passed", "attempts", "hints", "solution_shown"}


@pytest.mark.parametrize("command", [["grade"], ["grade", "1"], ["reset", "1.1"], ["update-exercises"]])
def test_a_copy_without_solutions_says_what_needs_them(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises")
    os.symlink(ROOT / "minipaged", tmp_path / "minipaged")
    monkeypatch.setenv("MINIPAGED_COURSE", str(tmp_path))
    status, _, err = run(capsys, *command)
    assert status == 2
    assert "has no solutions/" in err
    assert run(capsys, "check", "1.1")[0] == 1
    for _ in range(3):
        assert run(capsys, "hint", "1.1")[0] == 0
    status, _, err = run(capsys, "hint", "1.1")
    assert (status, "has no solutions/" in err) == (2, True)
    assert not progress.get("1.1").solution_shown


def test_lab_as_root_says_how(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def start(command: list[str], env: dict[str, str], **_: object) -> subprocess.Popen:
        started.append(command)
        assert Path(env["PATH"].split(os.pathsep)[0], "python").exists(), "a terminal in JupyterLab finds the command"
        return popen([sys.executable, "-c", ""])

    popen = subprocess.Popen
    monkeypatch.setattr(cli.subprocess, "Popen", start)
    monkeypatch.setattr(doctor, "examine", list)
    monkeypatch.setattr(cli.os, "geteuid", lambda: 0)
    status, _, err = run(capsys, "lab")
    assert (status, started) == (2, [])
    assert "minipaged lab --allow-root" in err
    assert run(capsys, "lab", "--allow-root")[0] == 0
    assert {"--allow-root", "--LabApp.default_url=/lab/tree/notebooks/START_HERE.ipynb"} <= set(started[0])
    monkeypatch.setattr(cli.os, "geteuid", lambda: 1000)
    assert run(capsys, "lab")[0] == 0
    assert "--allow-root" not in started[1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that could be handled")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_what_stops_the_command_stops_jupyterlab(how: signal.Signals) -> None:
    """A stand-in for JupyterLab says that it runs, and that it was asked to end."""
    inner = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "signal.signal(signal.SIGTERM, lambda *_: (print('asked to end', flush=True), sys.exit(3))); "
        "print('runs', flush=True); time.sleep(60)"
    )
    outer = (
        "import sys; from pathlib import Path; from minipaged.cli import run_until_stopped; "
        f"sys.exit(run_until_stopped([sys.executable, '-c', {inner!r}], Path('.')))"
    )
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "runs\n"
        process.send_signal(how)
        assert process.stdout.read() == "asked to end\n"
    assert process.returncode == {signal.SIGTERM: 3, signal.SIGINT: 0}[how]


def test_labs_settings_are_settings_that_jupyterlab_has() -> None:
    folder = Path(cli.surroundings_of_lab()["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0], "labconfig")
    for plugin, ours in json.loads((folder / "default_setting_overrides.json").read_text()).items():
        schema = Path(sys.prefix, "share/jupyter/lab/schemas", *plugin.split(":")).with_suffix(".json")
        theirs = json.loads(schema.read_text())["properties"]
        for name, value in ours.items():
            assert type(value) is type(theirs[name]["default"]), (plugin, name)
            assert not isinstance(value, dict) or value.keys() == theirs[name]["default"].keys()
