"""Each rule of the lint sees what it is for, and a well-formed notebook passes all of them."""

from pathlib import Path

import pytest

from minipaged.course.notebook_tools.lint import lint_file, missing_sections
from minipaged.course.notebook_tools.normal_form import normal_form
from minipaged.course.notebook_tools.notebook import Notebook, code_cells, write_notebook
from minipaged.course.notebook_tools.percent import parse_percent

FINE = """\
# %% [markdown] tags=goals
# # Month 2
# %% tags=syllabus-2.01
x = 1
# %% [markdown] tags=recall
# <details>1</details> <details>2</details> <details>3</details>
"""


def notebook_of(text: str, outputs: list[dict] | None = None) -> Notebook:
    notebook = parse_percent(text)
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell["execution_count"] = number
        if number == 1:
            cell["outputs"] = outputs or []
    return normal_form(notebook)


def problems(tmp_path: Path, notebook: Notebook, folder: str = "notebooks") -> str:
    path = tmp_path / folder / "month_2.ipynb"
    write_notebook(path, notebook)
    return "\n".join(lint_file(path))


def printed(text: str, name: str = "stdout") -> list[dict]:
    return [{"output_type": "stream", "name": name, "text": text}]


def picture(words: str) -> list[dict]:
    data = {"image/png": "aGk=", "text/plain": words}
    return [{"output_type": "display_data", "data": data, "metadata": {}}]


def test_a_well_formed_lesson_passes(tmp_path: Path) -> None:
    assert problems(tmp_path, notebook_of(FINE, printed("2.41\n"))) == ""
    assert problems(tmp_path, notebook_of(FINE, picture("A block table with two rows."))) == ""


@pytest.mark.parametrize(
    ("text", "outputs", "found"),
    [
        (FINE + "# %% [markdown]\n# # Another\n", [], "exactly one title"),
        (FINE.replace("# # Month 2", "# ## Month 2"), [], "exactly one title"),
        (FINE, [{"output_type": "error", "ename": "E", "evalue": "", "traceback": []}], "ends in an error"),
        (FINE, printed("UserWarning", "stderr"), "standard error"),
        (FINE, printed("<Block at 0x7f0235b561d0>"), "an address"),
        (FINE, printed("0.33333333333"), "too many digits"),
        (FINE, picture("<Figure size 1>"), "text alternative"),
        (FINE, picture("short"), "text alternative"),
        (FINE + "# %% [markdown]\n# ![](a.png)\n", [], "without a text in its square brackets"),
        (FINE + "# %% tags=measured\ny = 1\n", [], "needs a comment '# measured: <why>'"),
        (FINE + "# %% tags=nbval-ignore-output\ny = 1\n", [], "# output not compared:"),
        (FINE + "# %% tags=nbval-skip\ny = 1\n", [], "is skipped"),
        (FINE + "# %% tags=raises-exception\ny = 1\n", [], "is skipped"),
        (FINE + "# %%\n# NBVAL_SKIP\ny = 1\n", [], "is skipped"),
        (FINE + "# %% tags=sylabus-2.02\ny = 1\n", [], "unknown tag"),
        (FINE + "# %% tags=syllabus-1.99\ny = 1\n", [], "'syllabus-1.99', but notebooks/SYLLABUS.md has no such item"),
        (FINE.replace("<details>3</details>", ""), [], "3 folded answer"),
        (FINE + "# %%\n" + "y = 1\n" * 41, [], "has 41 lines"),
        (FINE + ("# %%\n" + "y = 1\n" * 18) * 2, [], "2 of 3 code cells have 18 lines"),
        (FINE.replace("x = 1", "x = 1\n" * 6), [], "the median code cell has 6 lines"),
        (FINE + "# %% [markdown]\n# x\n" * 60, [], "at most 60"),
        (FINE + "# %%\ndef f():\n" + "    y = 1\n" * 8, [], "`f` is longer than 8 lines"),
    ],
)
def test_what_is_not_well_formed_is_told(tmp_path: Path, text: str, outputs: list[dict], found: str) -> None:
    assert found in problems(tmp_path, notebook_of(text, outputs))


def test_an_unrun_cell_and_a_file_out_of_normal_form_are_told(tmp_path: Path) -> None:
    notebook = notebook_of(FINE)
    next(code_cells(notebook))["execution_count"] = None
    assert "must be numbered" in problems(tmp_path, notebook)
    notebook = notebook_of(FINE)
    next(code_cells(notebook))["metadata"]["execution"] = {"iopub.status.busy": "now"}
    assert "not in normal form" in problems(tmp_path, notebook)


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("# %%\nx = 1\n", "needs one of the tags"),
        ("# %% tags=predict\nx = 1\n", "do not belong there"),
        ('# %% tags=check-2.1\ncheck("2.1", f)\nx = 1\n', "exactly one call"),
        ('# %% tags=check-2.1\ncheck("2.2", f)\n', "exactly one call"),
        ("# %% tags=check-2.1\nprint(1)\n", "exactly one call"),
    ],
)
def test_solutions_are_tagged_and_checks_are_one_call(tmp_path: Path, cell: str, found: str) -> None:
    title = "# %% [markdown]\n# # Title\n"
    assert problems(tmp_path, notebook_of(f'{title}# %% tags=check-2.1\ncheck("2.1", f)\n'), "solutions") == ""
    assert found in problems(tmp_path, notebook_of(title + cell), "solutions")


def test_missing_sections_are_listed() -> None:
    missing = missing_sections(2, [notebook_of(FINE)])
    assert "month 2: 3 cell(s) with the tag `predict` are required, 0 found" in missing
    assert not any("goals" in what or "recall" in what for what in missing)
