"""The notebooks as they are committed: in step with their sources, in good form, and the whole syllabus taught.

Nothing here runs a notebook; nbval does that.
"""

import re
from pathlib import Path

import pytest

from minipaged.course.notebook_tools.build import notebooks_in
from minipaged.course.notebook_tools.corrections import corrections_text
from minipaged.course.notebook_tools.lint import lint_file, missing_sections
from minipaged.course.notebook_tools.notebook import read_notebook, source_of
from minipaged.course.notebook_tools.syllabus import BEING_WRITTEN, gaps, lessons_by_month, syllabus_items
from minipaged.course.notebook_tools.sync import out_of_step

ROOT = Path(__file__).parents[2]
LESSONS = lessons_by_month(ROOT)


def test_exercises_are_what_the_solutions_generate() -> None:
    assert out_of_step(ROOT) == []


@pytest.mark.parametrize("path", notebooks_in(ROOT), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_notebooks_are_in_good_form(path: Path) -> None:
    assert lint_file(path) == []


@pytest.mark.parametrize("month", sorted(LESSONS.keys() - BEING_WRITTEN))
def test_a_months_lessons_have_all_sections(month: int) -> None:
    assert missing_sections(month, [read_notebook(path) for path in LESSONS[month]]) == []


def test_a_months_lessons_come_in_the_order_of_the_syllabus() -> None:
    assert [path.stem for path in LESSONS[6]] == ["month_6_kernel", "month_6_fast_kernel"]


def test_every_item_of_the_syllabus_is_taught() -> None:
    """Months without a lesson yet are listed at the end of a test run (see the root conftest)."""
    unknown, missing = gaps(ROOT)
    assert unknown == [], "tags that SYLLABUS.md does not know"
    untaught = {month: items for month, items in missing.items() if month in LESSONS.keys() - BEING_WRITTEN}
    assert untaught == {}, "items of months that have lessons, without a cell"
    whole = [month for month in BEING_WRITTEN if month not in missing]
    assert whole == [], "these months teach all their items now: take them out of BEING_WRITTEN"


def test_the_syllabus_is_whole() -> None:
    months = [item.split(".")[0] for item in syllabus_items(ROOT)]
    assert {month: months.count(month) for month in sorted(set(months))} == {
        "0": 15, "1": 14, "2": 21, "3": 17, "4": 9, "5": 11, "6": 15, "7": 6,
    }  # fmt: skip


def test_corrections_are_up_to_date() -> None:
    path = ROOT / "notebooks" / "CORRECTIONS.md"
    assert path.read_text(encoding="utf-8") == corrections_text(ROOT), "run `make notebooks`"


MARKDOWN = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "notebooks").glob("*.md")])


@pytest.mark.parametrize("path", [*MARKDOWN, *notebooks_in(ROOT)], ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    if path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
    else:
        cells = read_notebook(path)["cells"]
        text = "\n".join(source_of(cell) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"", text)
    broken = [
        link
        for link in (one or other for one, other in links)
        if not re.match(r"[a-z]+:|#", link) and not (path.parent / link.split("#")[0]).exists()
    ]
    assert broken == []
