"""Grading a class: good work, an endless loop, a dead kernel, too much memory, tampering, and no notebook at all."""

import copy
import csv
import os
from pathlib import Path

import pytest

from minipaged.cli import main
from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools import submissions
from minipaged.course.notebook_tools.answers import ANSWER, cells_by_exercise
from minipaged.course.notebook_tools.exercises import exercise_notebook
from minipaged.course.notebook_tools.grade import Grade
from minipaged.course.notebook_tools.notebook import new_cell, write_notebook
from minipaged.course.notebook_tools.percent import parse_percent
from minipaged.course.notebook_tools.submissions import Submission, find_submissions, grade_submission, nothing_from
from tests.course.test_grade import RIGHT, SOLUTION

STUB = "def num_blocks(num_tokens, block_size):\n    {}\n"
ANSWERS = {
    "ada": RIGHT,
    "bo": STUB.format("while True: pass"),
    "chen": STUB.format("import os; os._exit(1)"),
    "dee": STUB.format("return bytearray(100 << 30)"),
    "gil": "half = 1 / 0  # the check then finds no `num_blocks`, which only follows from it\n",
}
WANTED = {
    "ada": ("passed", ""),
    "bo": ("error", "it did not end in time"),
    "chen": ("error", "the kernel died"),
    "dee": ("error", ""),
    "eve": ("tampered", "a cell gives `check` another meaning"),
    "fay": ("error", "fay"),
    "gil": ("error", "ZeroDivisionError: division by zero"),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of two exercises, and a class of seven in class/."""
    root = tmp_path_factory.mktemp("course")
    os.symlink(Path(__file__).parents[2] / "minipaged", root / "minipaged")
    solution = parse_percent(SOLUTION)
    write_notebook(root / "solutions" / "month_2.ipynb", solution)
    generated = exercise_notebook(solution)
    for learner in WANTED:
        notebook = copy.deepcopy(generated)
        cells_by_exercise(notebook, ANSWER)["2.1"]["source"] = ANSWERS.get(learner, RIGHT)
        if learner == "eve":
            notebook["cells"].insert(2, new_cell("code", "check = print"))
        write_notebook(root / "class" / learner / "homework" / "month_2.ipynb", notebook)
    (root / "class" / "fay" / "homework" / "month_2.ipynb").write_text('{"cells": 3')
    return root


@pytest.fixture(scope="module")
def table(course: Path) -> dict[str, dict[str, str]]:
    """The CSV's rows of exercise 2.1, by learner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIPAGED_COURSE", str(course))
        out = course / "out.csv"
        options = ["--submissions", str(course / "class"), "--csv", str(out), "--timeout", "8", "--memory", "4"]
        assert main(["grade", *options]) == 1
    with out.open(encoding="utf-8", newline="") as file:
        return {row["learner"]: row for row in csv.DictReader(file) if row["exercise"] == "2.1"}


@pytest.mark.parametrize("learner", WANTED)
def test_a_class_is_graded_learner_by_learner(table: dict[str, dict[str, str]], learner: str) -> None:
    status, note = WANTED[learner]
    assert table[learner]["status"] == status
    assert note in table[learner]["note"]


def test_the_submissions_are_found_at_any_depth(course: Path) -> None:
    found = find_submissions(course, course / "class", [])
    assert [one.learner for one in found] == sorted(WANTED)
    assert found[0] == Submission("ada", 2, course / "class" / "ada" / "homework" / "month_2.ipynb")


def test_in_a_learners_clone_the_exercises_are_what_counts(tmp_path: Path) -> None:
    for place in ("exercises", "solutions", "exercises/.ipynb_checkpoints"):
        write_notebook(tmp_path / "solutions" / place / "month_2.ipynb", parse_percent(SOLUTION))  # also a name
    assert find_submissions(tmp_path, tmp_path, [2]) == [
        Submission("solutions", 2, tmp_path / "solutions" / "exercises" / "month_2.ipynb")
    ]


def test_who_handed_in_nothing_under_the_right_name_is_told(tmp_path: Path) -> None:
    for name in ("ada/month_2.ipynb", "bo/month_2 (1).ipynb", "bo/.ipynb_checkpoints/month_2.ipynb", ".git/x.ipynb"):
        write_notebook(tmp_path / name, parse_percent(SOLUTION))
    (tmp_path / "陈 伟").mkdir()
    (tmp_path / "grades.csv").touch()
    assert nothing_from(tmp_path, find_submissions(tmp_path, tmp_path, [2])) == [
        "bo: not graded, for want of a month_N.ipynb (its notebooks: month_2 (1).ipynb)",
        "陈 伟: not graded, for want of a month_N.ipynb (no notebook)",
    ]


def test_whatever_one_learner_hands_in_the_class_is_graded(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or a link to nowhere with a notebook's name, and an error that nobody thought of."""
    folder, link, odd = (tmp_path / name / "month_2.ipynb" for name in ("folder", "link", "odd"))
    folder.mkdir(parents=True)
    link.parent.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    notes = {"folder": "is a directory", "link": "there is no notebook"}
    for path in (folder, link):
        assert_an_error(grade_submission(course, Submission(path.parent.name, 2, path)), notes[path.parent.name])
    monkeypatch.setattr(submissions, "grade_month", lambda *_: 1 / 0)
    assert_an_error(grade_submission(course, Submission("odd", 2, odd)), "division by zero")


def assert_an_error(grades: list[Grade], note: str) -> None:
    assert {grade.status for grade in grades} == {"error"}
    assert all(note in grade.note and "\n" not in grade.note for grade in grades)


def test_a_month_handed_in_twice_is_refused_with_both_names(course: Path, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        write_notebook(tmp_path / "ada" / folder / "month_2.ipynb", parse_percent(SOLUTION))
    with pytest.raises(CourseError, match=r"ada has month 2 twice: .*first.* and .*second"):
        find_submissions(course, tmp_path, [2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--submissions", "nowhere"], "there is no folder nowhere"),
        (["--submissions", "."], "no FOLDER/LEARNER/month_N.ipynb"),
        (["--submissions", ".", "--memory", "1"], "--memory is 1 GiB; give a number from 2 upwards"),
        (["--submissions", ".", "--csv", "no/such/x.csv"], "no FOLDER/LEARNER/month_N.ipynb"),
        (["--csv", "x.csv"], "--csv goes with --submissions"),
        (["--submissions", ".", "--timeout", "0"], "--timeout is 0"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIPAGED_COURSE", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    assert main(["grade", *options]) == 2
    assert words in capsys.readouterr().err
