"""Run a notebook from top to bottom in a fresh kernel, always in the same surroundings."""

import os
import tempfile
from pathlib import Path

from minipaged.course.errors import CourseError
from minipaged.course.notebook_tools.normal_form import normal_form
from minipaged.course.notebook_tools.notebook import Notebook, code_cells, read_notebook, source_of, tags_of

MEASURED = "measured"
SURROUNDINGS = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "MPLBACKEND": "agg"}
"""Set for every kernel that `make notebooks` and the tests start, so that both print the same.

One thread each: two pytest workers with two threads each on two cores wait for each other, up to twenty times as long.
"""
CELL_TIMEOUT = 120


def executed(path: Path, *, refresh: bool = False, timeout: int = CELL_TIMEOUT) -> Notebook:
    """The notebook with fresh outputs, in normal form. Writes nothing.

    Cells tagged `measured` run too, but keep the outputs they have, unless `refresh` is true or they have none:
    times differ from run to run.

    Raises:
        CourseError: a cell raised or took longer than `timeout` seconds; the message has the cell and the traceback.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    before = read_notebook(path)
    notebook = nbformat.from_dict({**before, "cells": [_fresh(cell) for cell in before["cells"]]})
    with tempfile.TemporaryDirectory(prefix="minipaged-") as home:
        client = NotebookClient(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],  # a local kernel warns that it is not encrypted
            store_widget_state=True,
            resources={"metadata": {"path": str(path.resolve().parent)}},
        )
        try:
            client.execute(env={**os.environ, **SURROUNDINGS, "MINIPAGED_HOME": home})
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise CourseError(f"{path}: {error}") from None
    after = normal_form(notebook)
    for old, new in zip(before["cells"], after["cells"], strict=True):
        if MEASURED in tags_of(new) and old.get("outputs") and not refresh:
            new["outputs"] = old["outputs"]
    return normal_form(after)


def _fresh(cell: dict) -> dict:
    cell = {**cell, "source": source_of(cell)}
    return {**cell, "outputs": [], "execution_count": None} if cell["cell_type"] == "code" else cell


def is_executed(notebook: Notebook) -> bool:
    return all(cell["execution_count"] is not None for cell in code_cells(notebook))
