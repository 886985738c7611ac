"""pytest compares the outputs of lessons and solutions: an output that is no longer true is a failure."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minipaged.course.notebook_tools.execute import executed
from minipaged.course.notebook_tools.notebook import code_cells, write_notebook
from minipaged.course.notebook_tools.percent import parse_percent

ROOT = Path(__file__).parents[2]
LESSON = """\
# %%
print(1 + 1)
# %% tags=measured
# measured: stands for a time
print("fast")
# %%
raise_nothing = 1
"""


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lesson whose saved outputs are wrong: the sum, and a measured cell's."""
    path = tmp_path_factory.mktemp("strict") / "lesson.ipynb"
    write_notebook(path, parse_percent(LESSON))
    notebook = executed(path)
    for cell, wrong in zip(code_cells(notebook), (["3\n"], ["slow\n"]), strict=False):
        cell["outputs"][0]["text"] = wrong
    write_notebook(path, notebook)
    return path


@pytest.mark.parametrize(("options", "counts"), [([], "1 failed, 2 passed"), (["--nbval-lax"], "3 passed")])
def test_a_saved_output_must_be_true_unless_it_is_measured(lesson: Path, options: list[str], counts: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *options, lesson.name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=lesson.parent, env=environment, capture_output=True, text=True, check=False)
    assert counts in re.sub(r"\x1b\[[\d;]*m", "", done.stdout), done.stdout + done.stderr
