"""The notebook tools: percent scripts, stubs, normal form, execution, exercises, merging, corrections."""

import copy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools.answers import BEGIN, END, cells_by_exercise, stub_of, without_marks
from minipaged.course.notebook_tools.corrections import corrections_in, write_corrections
from minipaged.course.notebook_tools.execute import executed
from minipaged.course.notebook_tools.exercises import exercise_notebook
from minipaged.course.notebook_tools.merge import merged, update_exercises, with_stub
from minipaged.course.notebook_tools.normal_form import WIDGET_STATE, normal_form
from minipaged.course.notebook_tools.notebook import (
    Notebook,
    dumps,
    new_cell,
    new_notebook,
    read_notebook,
    source_of,
    write_notebook,
)
from minipaged.course.notebook_tools.percent import from_py, parse_percent, to_percent
from minipaged.course.notebook_tools.sync import differences

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
"""


@pytest.fixture
def solution() -> Notebook:
    return parse_percent(SOLUTION)


@pytest.fixture
def course(tmp_path: Path, solution: Notebook) -> Path:
    (tmp_path / "notebooks").mkdir()
    write_notebook(tmp_path / "solutions" / "month_2.ipynb", solution)
    write_notebook(tmp_path / "exercises" / "month_2.ipynb", exercise_notebook(solution))
    return tmp_path


def with_source(notebook: Notebook, exercise_id: str, source: str) -> Notebook:
    notebook = copy.deepcopy(notebook)
    cells_by_exercise(notebook, "answer-")[exercise_id]["source"] = source
    return notebook


# --- percent scripts and the normal form --------------------------------------------------------------------------

tag_lists = st.lists(st.sampled_from(["setup", "syllabus-2.01", "predict"]), unique=True, max_size=2)
lines = st.lists(st.sampled_from(["x = 1", "", "# a comment", "    y", "Text with 中文", "- item"]), max_size=5)
cells = st.builds(
    lambda kind, text, tags: new_cell(kind, "\n".join(text).strip("\n"), tags),
    st.sampled_from(["code", "markdown"]),
    lines,
    tag_lists,
)


@given(st.lists(cells, max_size=6))
def test_a_notebook_survives_the_way_through_a_percent_script(made: list) -> None:
    notebook = new_notebook(made)
    assert dumps(parse_percent(to_percent(notebook))) == dumps(notebook)


@given(st.lists(cells, max_size=6))
def test_normal_form_is_reached_in_one_step(made: list) -> None:
    once = normal_form(new_notebook(made))
    assert dumps(normal_form(once)) == dumps(once)
    assert len({cell["id"] for cell in once["cells"]}) == len(made)


@pytest.mark.parametrize(
    ("text", "line"),
    [("# %% [md]\n", 1), ("x = 1\n# %%\n", 1), ("# %% [markdown]\n# fine\nnot a comment\n", 3), ("# %% tags=a b\n", 1)],
)
def test_a_script_that_cannot_be_read_is_told_by_line(text: str, line: int) -> None:
    with pytest.raises(CourseError, match=f"line {line}"):
        parse_percent(text)


def test_converting_again_keeps_the_outputs_of_unchanged_cells(tmp_path: Path) -> None:
    script, out = tmp_path / "lesson.py", tmp_path / "lesson.ipynb"
    script.write_text("# %%\nprint(1)\n\n# %%\nprint(2)\n")
    assert from_py(script, out)
    notebook = read_notebook(out)
    printed = {"output_type": "stream", "name": "stdout", "text": "1\n"}
    notebook["cells"][0] |= {"execution_count": 1, "outputs": [printed]}
    write_notebook(out, notebook)
    script.write_text("# %%\nprint(1)\n\n# %%\nprint(3)\n")
    from_py(script, out)
    assert [len(cell["outputs"]) for cell in read_notebook(out)["cells"]] == [1, 0]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"nbformat": 3, "cells": []}', '{"nbformat": 4, "cells": [{}]}'])
def test_a_file_that_is_no_notebook_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_text(content)
    with pytest.raises(CourseError, match=r"broken\.ipynb"):
        read_notebook(path)
    with pytest.raises(CourseError, match=r"no notebook .*missing\.ipynb"):
        read_notebook(tmp_path / "missing.ipynb")


def test_widget_models_are_numbered_and_unseen_ones_dropped() -> None:
    shown, child, unseen = "f" * 32, "e" * 32, "d" * 32
    cell = new_cell("code", "slider")
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": shown}}
    cell |= {"execution_count": 3, "outputs": [{"output_type": "display_data", "data": view, "metadata": {}}]}
    notebook = new_notebook([cell])
    state = {shown: {"state": {"layout": f"IPY_MODEL_{child}"}}, child: {"state": {}}, unseen: {"state": {}}}
    notebook["metadata"]["widgets"] = {WIDGET_STATE: {"state": state}}
    done = normal_form(notebook)
    assert list(done["metadata"]["widgets"][WIDGET_STATE]["state"]) == [f"{1:032x}", f"{2:032x}"]
    assert done["cells"][0]["execution_count"] == 1
    assert dumps(normal_form(done)) == dumps(done)


# --- stubs --------------------------------------------------------------------------------------------------------


def test_a_stub_keeps_signature_and_docstring() -> None:
    solution = f'def f(x):\n    """Doc."""\n    {BEGIN}\n    y = 1\n    return y\n    {END}'
    stub = stub_of(solution)
    assert stub == 'def f(x):\n    """Doc."""\n    # Your code here.\n    raise NotImplementedError'
    compile(stub, "stub", "exec")
    assert without_marks(solution).endswith("    y = 1\n    return y")


def test_a_value_becomes_a_placeholder() -> None:
    assert stub_of(f"{BEGIN}\nhelp = 2\na, b = help, 3\n{END}") == "\n".join(
        f"{name} = ...  # your answer" for name in ("help", "a", "b")
    )


@pytest.mark.parametrize(
    ("solution", "problem"),
    [
        ("def f(): pass", "no part between"),
        (f"def f():\n    {BEGIN}\n    pass", "without ### END"),
        (f"x = 1\n{END}", "without ### BEGIN"),
        (f"{BEGIN}\n{BEGIN}\n{END}", "second"),
        (f"{BEGIN}\nprint(1)\n{END}", "must assign"),
        (f"{BEGIN}\ndef f():\n    pass\n{END}", "keep the line of `f`"),
    ],
)
def test_marks_that_make_no_stub_are_refused(solution: str, problem: str) -> None:
    with pytest.raises(CourseError, match=problem):
        stub_of(solution)


# --- exercises, sync, merge, reset --------------------------------------------------------------------------------


def test_exercises_are_in_step_and_a_filled_answer_stays_so(solution: Notebook) -> None:
    generated = exercise_notebook(solution)
    assert "return" not in dumps(generated)
    assert differences(generated, generated) == []
    answered = with_source(generated, "2.1", "def num_blocks(n, b):\n    return 1")
    answered["cells"].insert(2, new_cell("code", "my_scratch = 1"))
    answered["cells"][1]["execution_count"] = 7
    assert differences(generated, answered) == []


def test_a_drifted_stub_an_edited_and_a_missing_cell_are_seen(solution: Notebook) -> None:
    generated = exercise_notebook(solution)
    other = with_source(solution, "2.1", f"def num_blocks(n):\n    {BEGIN}\n    return 1\n    {END}")
    drifted = exercise_notebook(other)
    assert differences(generated, drifted) == [
        "the answer cell of 2.1 started from another stub than today's (run `make notebooks`)"
    ]
    edited = copy.deepcopy(generated)
    edited["cells"][-1]["source"] = "check('2.1', num_blocks)"
    assert differences(generated, edited) == ["the check of 2.1 is missing, altered or in another place"]
    tagged = copy.deepcopy(generated)
    tagged["cells"][-1]["metadata"]["tags"].append("nbval-skip")
    assert differences(generated, tagged) == ["the check of 2.1 is missing, altered or in another place"]
    cut = copy.deepcopy(generated)
    del cut["cells"][3]
    assert differences(generated, cut) == ["the answer cell of 2.1 is missing"]
    moved = copy.deepcopy(generated)
    moved["cells"].insert(0, moved["cells"].pop())
    assert any("check of 2.1" in what for what in differences(generated, moved))


def test_an_update_keeps_answers_and_added_cells(course: Path, solution: Notebook) -> None:
    path = course / "exercises" / "month_2.ipynb"
    theirs = with_source(read_notebook(path), "2.1", "def num_blocks(n, b):\n    return 1")
    theirs["cells"].insert(4, new_cell("code", "my_scratch = 1"))
    write_notebook(path, theirs)
    assert update_exercises(course) == []
    new = copy.deepcopy(solution)
    new["cells"][0]["source"] = "# A better title"
    write_notebook(course / "solutions" / "month_2.ipynb", new)
    assert update_exercises(course) == [path]
    sources = [source_of(cell) for cell in read_notebook(path)["cells"]]
    assert sources[0] == "# A better title"
    assert sources[3:5] == ["def num_blocks(n, b):\n    return 1", "my_scratch = 1"]
    assert differences(exercise_notebook(new), read_notebook(path)) == []
    assert path.with_suffix(".before-update.ipynb").exists()


def test_an_update_with_a_changed_stub_keeps_the_answer_as_a_comment(solution: Notebook) -> None:
    theirs = with_source(exercise_notebook(solution), "2.1", "def num_blocks(n, b):\n    return 1")
    new = with_source(solution, "2.1", f"def num_blocks(tokens):\n    {BEGIN}\n    return 1\n    {END}")
    source = source_of(cells_by_exercise(merged(exercise_notebook(new), theirs), "answer-")["2.1"])
    assert "#     return 1" in source
    assert source.endswith("raise NotImplementedError")


def test_reset_puts_the_stub_back_and_returns_the_answer(course: Path, solution: Notebook) -> None:
    path = course / "exercises" / "month_2.ipynb"
    write_notebook(path, with_source(read_notebook(path), "2.1", "mine = 1"))
    before = path.read_bytes()
    notebook, old = with_stub(course, path, "2.1")
    assert old == "mine = 1"
    assert dumps(notebook) == dumps(exercise_notebook(solution))
    assert path.read_bytes() == before


def test_an_update_that_cannot_read_a_notebook_changes_none(course: Path, solution: Notebook) -> None:
    """Months are updated in order; the unreadable one stands behind one that would change."""
    path, broken = (course / "exercises" / f"month_{month}.ipynb" for month in (2, 3))
    new = copy.deepcopy(solution)
    new["cells"][0]["source"] = "# A better title"
    for month in (2, 3):
        write_notebook(course / "solutions" / f"month_{month}.ipynb", new)
    broken.write_text("<<<<<<< HEAD\n")
    before = path.read_bytes()
    with pytest.raises(CourseError, match="month_3"):
        update_exercises(course)
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["month_2.ipynb", "month_3.ipynb"]


# --- files that are no notebooks ----------------------------------------------------------------------------------


def with_cell(text: str) -> str:
    return '{"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "metadata": {}}, ' + text + "]}"


CODE = '{"cell_type": "code", "source": "", "metadata": {}'
NO_NOTEBOOKS = {
    "": "line 1, column 1, is not JSON",
    '{"cells": [\n}': "line 2, column 1, is not JSON",
    '{\n<<<<<<< HEAD\n "cells": [],\n=======\n>>>>>>> main\n': "line 2 has git's mark of a merge conflict",
    "[]": "it has no list of cells",
    "null": "it has no list of cells",
    '{"nbformat": 4, "cells": {}}': "it has no list of cells",
    '{"nbformat": 3, "cells": []}': "its nbformat is 3; the course uses format 4",
    "[" * 100_000: "it nests too deeply",
    with_cell("3"): "cell 2 has not the form",
    with_cell('{"source": "", "metadata": {}}'): "cell 2 has not the form",
    with_cell('{"cell_type": "heading", "source": "", "metadata": {}}'): "cell 2 has not the form",
    with_cell('{"cell_type": "code", "source": null, "metadata": {}}'): "cell 2 has not the form",
    with_cell('{"cell_type": "code", "source": [1], "metadata": {}}'): "cell 2 has not the form",
    with_cell('{"cell_type": "code", "source": "", "metadata": null}'): "cell 2 has not the form",
    with_cell('{"cell_type": "code", "source": "", "metadata": {"tags": 3}}'): "cell 2 has not the form",
    with_cell('{"cell_type": "code", "source": "", "metadata": {"minipaged": 3}}'): "cell 2 has not the form",
    with_cell(CODE + ', "outputs": {}}'): "cell 2 has not the form",
    with_cell(CODE + ', "outputs": [{"data": 1}]}'): "cell 2 has not the form",
}


@pytest.mark.parametrize("text", NO_NOTEBOOKS, ids=lambda text: text[:60])
def test_a_file_that_is_no_notebook_is_named_with_what_is_wrong_and_the_way_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "exercises" / "month_2 课.ipynb"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CourseError) as caught:
        read_notebook(path)
    words = str(caught.value)
    assert words.startswith(f"{path} is not a notebook that can be read: {NO_NOTEBOOKS[text]}")
    assert words.endswith("or move it away, and minipaged update-exercises writes a fresh one")
    assert "\n" not in words


def test_no_text_a_folder_and_no_file_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "month_2.ipynb"
    with pytest.raises(CourseError, match=r"there is no notebook .*month_2.ipynb$"):
        read_notebook(path)
    path.write_bytes(b"{}\xff")
    with pytest.raises(CourseError, match=r"byte 2 is not UTF-8$"):
        read_notebook(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(CourseError, match=r"is a directory$"):
        read_notebook(path)


def test_a_full_disk_leaves_the_notebook_as_it_was(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = course / "exercises" / "month_2.ipynb"
    path.chmod(0o640)
    before, notebook = path.read_bytes(), read_notebook(path)
    notebook["cells"].pop()

    def full(file: Path, text: str, **_: str) -> int:
        file.write_bytes(text[:10].encode())
        raise OSError(28, "No space left on device", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            write_notebook(path, notebook)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["month_2.ipynb"]
    assert write_notebook(path, notebook)
    assert path.stat().st_mode & 0o777 == 0o640


# --- execution ----------------------------------------------------------------------------------------------------


def test_two_runs_give_the_same_bytes_and_measured_cells_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    write_notebook(
        path,
        parse_percent(
            "# %%\nimport os, sys\nprint({'b', 'a', 'c'}, os.environ['OMP_NUM_THREADS'])\n"
            "sys.stdout.flush()\nprint(2)\n"
            "# %% tags=measured\n# measured: the clock moves on\nimport time\nprint(time.time_ns())\n"
        ),
    )
    first = executed(path)
    write_notebook(path, first)
    second = executed(path)
    assert dumps(first) == dumps(second)
    assert len(first["cells"][0]["outputs"]) == 1
    assert first["cells"][1]["outputs"][0]["text"] != executed(path, refresh=True)["cells"][1]["outputs"][0]["text"]


def test_a_cell_that_fails_is_shown_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    write_notebook(path, parse_percent("# %%\n1 / 0\n"))
    before = path.read_text()
    with pytest.raises(CourseError, match="ZeroDivisionError"):
        executed(path)
    assert path.read_text() == before


# --- corrections --------------------------------------------------------------------------------------------------


def test_corrections_are_collected_with_heading_and_cell(course: Path) -> None:
    text = (
        "# %% [markdown]\n# # Title\n# %% [markdown] tags=correction\n# ## Frames\n#\n# **Popular claim:** A | b.\n#\n"
        "# **What is true:** Not\n# so.\n#\n# More text.\n"
    )
    write_notebook(course / "notebooks" / "month_2_x.ipynb", parse_percent(text))
    assert write_corrections(course)
    assert not write_corrections(course)
    written = (course / "notebooks" / "CORRECTIONS.md").read_text()
    assert "| A \\| b. | Not so. | [Frames](month_2_x.ipynb#cell-id=" in written
    with pytest.raises(CourseError, match="Popular claim"):
        list(corrections_in("x", parse_percent("# %% [markdown] tags=correction\n# Nothing.\n")))
