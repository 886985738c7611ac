"""Settings for every test and every notebook that pytest runs: the same surroundings each time.

`pytest` alone runs everything: the tests, and strict nbval on all lessons and solutions. `pytest --nbval-lax FILE`
grades an exercise notebook. Kernels inherit the environment set here; a learner's own progress is never touched.
"""

import os
import tempfile
from pathlib import Path

import pytest

from minipaged.course.notebook_tools.execute import CELL_TIMEOUT, MEASURED, SURROUNDINGS
from minipaged.course.notebook_tools.notebook import tags_of

pytest_plugins = ["minipaged.course.notebook_tools.nbval_guard"]

_home = tempfile.TemporaryDirectory(prefix="minipaged-test-")
os.environ["MINIPAGED_HOME"] = _home.name
os.environ.pop("MINIPAGED_OUTCOMES", None)
os.environ.update(SURROUNDINGS)


def pytest_configure(config: pytest.Config) -> None:
    """Notebooks are part of the tests: compare their outputs, unless `--nbval-lax` asks for less."""
    option = config.option
    option.nbval = not option.nbval_lax
    option.nbval_current_env = not option.nbval_kernel_name
    option.nbval_sanitize_with = option.nbval_sanitize_with or str(Path(__file__).parent / "tests/nbval_sanitize.cfg")
    if option.nbval_cell_timeout == 2000:  # nbval's default: over half an hour
        option.nbval_cell_timeout = CELL_TIMEOUT


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that two workers end together; measured outputs are not compared."""
    items.sort(key=lambda item: (item.get_closest_marker("browser") is None, item.path.suffix != ".ipynb"))
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is not None and MEASURED in tags_of(cell):
            item.options["check"] = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which items of the syllabus no lesson teaches yet: listed, not hidden."""
    from minipaged.course.notebook_tools.syllabus import gaps

    reports = [report for stat in ("passed", "failed") for report in terminalreporter.stats.get(stat, [])]
    if not any(report.nodeid.endswith("test_every_item_of_the_syllabus_is_taught") for report in reports):
        return
    _, missing = gaps(Path(__file__).parent)
    if missing:
        terminalreporter.section("syllabus items without a lesson yet")
    for month, items in missing.items():
        terminalreporter.line(f"month {month}: {' '.join(items)}")
