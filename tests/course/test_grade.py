"""The grader: what passes nbval by deleting, skipping or replacing a check does not pass here."""

import copy
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools.answers import ANSWER, CHECK, cells_by_exercise
from minipaged.course.notebook_tools.badges import markdown_table, write_badges
from minipaged.course.notebook_tools.exercises import exercise_notebook
from minipaged.course.notebook_tools.grade import Grade, grade_month, grade_months, table
from minipaged.course.notebook_tools.notebook import Notebook, new_cell, write_notebook
from minipaged.course.notebook_tools.percent import parse_percent
from minipaged.course.notebook_tools.tampering import tampering

SOLUTION = """\
# %% [markdown]
# # Exercises
# %% tags=setup
from minipaged.course import check, hint
# %% [markdown] tags=exercise-2.1
# ## 2.1
# %% tags=answer-2.1
def num_blocks(num_tokens, block_size):
    ### BEGIN SOLUTION
    return -(-num_tokens // block_size)
    ### END SOLUTION
# %% tags=check-2.1
check("2.1", num_blocks)
# %% [markdown] tags=exercise-2.4
# ## 2.4
# %% tags=answer-2.4
def slots(block_table, positions, block_size):
    ### BEGIN SOLUTION
    return [block_table[p // block_size] * block_size + p % block_size for p in positions]
    ### END SOLUTION
# %% tags=check-2.4
check("2.4", slots)
"""
RIGHT = "def num_blocks(n, b):\n    return (n + b - 1) // b"
Change = Callable[[Notebook], object]


@pytest.fixture
def generated() -> Notebook:
    return exercise_notebook(parse_percent(SOLUTION))


def changed(notebook: Notebook, *changes: Change) -> Notebook:
    notebook = copy.deepcopy(notebook)
    for change in changes:
        change(notebook)
    return notebook


def answer(source: str, exercise_id: str = "2.1") -> Change:
    return lambda notebook: cells_by_exercise(notebook, ANSWER)[exercise_id].update(source=source)


def add(source: str, place: int = 2) -> Change:
    return lambda notebook: notebook["cells"].insert(place, new_cell("code", source))


def on_check(change: Callable[[dict], object]) -> Change:
    return lambda notebook: change(cells_by_exercise(notebook, CHECK)["2.1"])


# --- what is seen without running anything ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        answer(RIGHT),
        add("scratch = check\nprint(num_blocks)"),
        add("from minipaged.course import check, hint\nimport numpy as np"),
        add("for i in range(3):\n    pass"),
        lambda notebook: notebook["cells"][1].update(execution_count=9),
        lambda notebook: notebook["cells"][4]["metadata"].update(collapsed=True),
    ],
)
def test_honest_work_is_no_tampering(generated: Notebook, change: Change) -> None:
    assert list(tampering(generated, changed(generated, change))) == []


@pytest.mark.parametrize(
    ("change", "exercise_id", "words"),
    [
        (lambda notebook: notebook["cells"].pop(4), "2.1", "the check of 2.1 is missing"),
        (on_check(lambda cell: cell.update(source="pass")), "2.1", "altered"),
        (on_check(lambda cell: cell["metadata"]["tags"].append("nbval-skip")), "2.1", "altered"),
        (on_check(lambda cell: cell["metadata"]["tags"].append("raises-exception")), "2.1", "altered"),
        (on_check(lambda cell: cell.update(source='# NBVAL_SKIP\ncheck("2.1", num_blocks)')), "2.1", "altered"),
        (on_check(lambda cell: cell.update(cell_type="raw")), "2.1", "altered"),
        (lambda notebook: notebook["cells"][2].update(source="## easier"), "2.1", "altered"),
        (lambda notebook: notebook["cells"][1].update(source="check = print"), None, "given cell"),
        (lambda notebook: notebook["cells"][1].update(source="check = print"), None, "gives `check` another meaning"),
        (add("def check(*args):\n    pass"), None, "gives `check` another meaning"),
        (add("check = lambda *args: None"), None, "gives `check` another meaning"),
        (add("from os import path as check"), None, "gives `check` another meaning"),
        (answer(f"{RIGHT}\nglobals()\ncheck = print"), None, "gives `check` another meaning"),
        (add("import minipaged.course as c\nc.check = print"), None, "changes minipaged itself"),
        (add("import minipaged.course.checking as c\nsetattr(c, 'x', 1)"), None, "changes minipaged itself"),
        (add("import sys\nsys.modules['minipaged.course'] = None"), None, "reaches into"),
        (add("import os\nopen(os.environ['MINIPAGED_OUTCOMES'], 'a')"), None, "reaches into"),
    ],
)
def test_tampering_is_seen_and_named(
    generated: Notebook, change: Change, exercise_id: str | None, words: str
) -> None:
    found = list(tampering(generated, changed(generated, change)))
    assert any(concerned == exercise_id and words in what for concerned, what in found), found


# --- runs ---------------------------------------------------------------------------------------------------------

RUNS: dict[str, tuple[tuple[Change, ...], dict[str, str]]] = {
    "half done, saved with outputs": (
        (
            answer(RIGHT),
            on_check(lambda cell: cell.update(execution_count=3, outputs=[])),
            add("print('my scratch')\n1 / 0"),
        ),
        {"2.1": "passed", "2.4": "not attempted"},
    ),
    "kills its kernel": (
        (
            answer("def num_blocks(n, b):\n    import os\n    os._exit(3)"),
            answer("def slots(table, positions, b):\n    return positions", "2.4"),
        ),
        {"2.1": "error", "2.4": "failed"},
    ),
    "does not end, and a check deleted": (
        (answer("def num_blocks(n, b):\n    while True:\n        pass"), lambda notebook: notebook["cells"].pop()),
        {"2.1": "error", "2.4": "tampered"},
    ),
    "another check, from a text": (
        (add("import base64\nexec(base64.b64decode('Y2hlY2sgPSBwcmludA=='))"),),  # check = print
        {"2.1": "tampered", "2.4": "tampered"},
    ),
    "another check, which writes outcomes": (
        (
            answer(
                "import os, json\n"
                "def write(exercise, answer):\n"
                "    line = {'exercise': exercise, 'status': 'passed', 'error': '', 'changed': []}\n"
                "    with open(os.environ['MINIPAGED_' + 'OUTCOMES'], 'a') as file:\n"
                "        file.write(json.dumps(line) + chr(10))\n"
                "globals()['che' + 'ck'] = write\n"
                "num_blocks = 7"
            ),
            answer("slots = 7", "2.4"),
        ),
        {"2.1": "tampered", "2.4": "tampered"},
    ),
    "another Expect, by another name": (
        (
            answer(RIGHT),
            answer("def slots(*args):\n    return args", "2.4"),
            add("from minipaged.course.expect import Expect as a\nb = a\nb.equal = lambda *a, **k: None", 5),
        ),
        {"2.1": "passed", "2.4": "tampered"},
    ),
    "outcomes written by hand": (
        (
            answer("def num_blocks(n, b):\n    return 7"),
            add(
                "import os, json\npath = next(v for k, v in os.environ.items() if k.endswith('_OUT' + 'COMES'))\n"
                "json.dump({'exercise': '2.1', 'status': 'passed'}, open(path, 'a'))",
                7,
            ),
            answer("renamed = 1", "2.4"),
        ),
        {"2.1": "tampered", "2.4": "error"},
    ),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Grade]]:
    """All the runs above, two at a time."""

    def grade(name: str) -> list[Grade]:
        root = tmp_path_factory.mktemp("course")
        os.symlink(Path(__file__).parents[2] / "minipaged", root / "minipaged")
        solution = parse_percent(SOLUTION)
        write_notebook(root / "solutions" / "month_2.ipynb", solution)
        notebook = changed(exercise_notebook(solution), *RUNS[name][0])
        write_notebook(root / "exercises" / "month_2.ipynb", notebook)
        return grade_month(root, 2, timeout=10 if "end" in name else 60)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(RUNS, pool.map(grade, RUNS), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_graded(graded: dict[str, list[Grade]], name: str) -> None:
    by_id = {grade.exercise: grade for grade in graded[name]}
    expected = RUNS[name][1]
    assert {exercise_id: by_id[exercise_id].status for exercise_id in expected} == expected, table({2: graded[name]})


def test_notes_say_what_happened(graded: dict[str, list[Grade]]) -> None:
    notes = {(name, grade.exercise): grade.note for name, grades in graded.items() for grade in grades}
    assert notes["kills its kernel", "2.1"] == "the kernel died"
    assert notes["does not end, and a check deleted", "2.1"] == "it did not end in time"
    assert notes["another check, from a text", "2.1"] == "another check than the course's took its place"
    assert notes["another Expect, by another name", "2.4"] == (
        "the course itself was changed: minipaged.course.expect.Expect.equal"
    )
    assert notes["outcomes written by hand", "2.4"] == "NameError: name 'slots' is not defined"
    assert notes["does not end, and a check deleted", "2.4"] == (
        "the check of 2.4 is missing, altered or in another place"
    )


def test_the_table_has_every_exercise_and_the_totals() -> None:
    grades = [Grade("2.1", "One", "passed"), Grade("2.2", "Another one", "error", "the kernel died")]
    assert table({2: grades}).splitlines() == [
        "Month 2: exercises/month_2.ipynb",
        "  2.1   One          passed",
        "  2.2   Another one  error          the kernel died",
        "",
        "2 exercises: 1 passed, 0 failed, 0 not attempted, 1 error, 0 tampered",
    ]
    shared = [Grade("2.1", "One", "tampered", "why"), Grade("2.2", "Two", "tampered", "why")]
    assert table({2: shared}).count("why") == 1


def test_a_month_without_exercises_is_refused() -> None:
    with pytest.raises(CourseError, match=r"month 55 has no exercises; the months that have some: .*2"):
        grade_months(Path(__file__).parents[2], [55])


def test_a_badge_a_month_and_a_markdown_table(tmp_path: Path) -> None:
    graded = {
        0: [Grade("0.1", "One", "passed")],
        1: [Grade("1.1", "A & B", "passed"), Grade("1.2", "Two", "error", "a | b\nc")],
        2: [Grade("2.1", "One", "not attempted")],
    }
    paths = write_badges(tmp_path / "badges", graded)
    assert [path.name for path in paths] == ["month_0.svg", "month_1.svg", "month_2.svg"]
    pictures = [ElementTree.fromstring(path.read_text(encoding="utf-8")) for path in paths]
    assert [one.attrib["aria-label"] for one in pictures] == ["month 0: 1 of 1", "month 1: 1 of 2", "month 2: 0 of 1"]
    colours = [[box.attrib["fill"] for box in one.iter("{http://www.w3.org/2000/svg}rect")][1] for one in pictures]
    assert len(set(colours)) == 3
    lines = markdown_table(graded).splitlines()
    assert "| 1 | 1 | 2 |" in lines
    assert "| 1.2 | Two | error | a \\| b c |" in lines
