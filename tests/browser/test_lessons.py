"""Every lesson in a real JupyterLab in headless Chromium: it runs to its end without an error or a warning, and a
control of each widget changes its picture. Screenshots are left in .browser-artefacts/."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.jupyterlab import ROOT, chromium, running_lab, wait_for_idle_kernel

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: (path.stem != "START_HERE", path.stem))
ARTEFACTS = ROOT / ".browser-artefacts"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
BAD_OUTPUTS = '[data-mime-type="application/vnd.jupyter.stderr"], [data-mime-type="application/vnd.jupyter.error"]'
RUN_OR_BAD = """bad => {
  const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputArea-prompt')].map(e => e.textContent);
  return (prompts.length && prompts.every(text => /\\[\\d+\\]/.test(text))) || document.querySelector(bad);
}"""
WIDGETS = ".jp-OutputArea .widget-vbox:has(> .widget-image)"
PICTURE_CHANGED = "([image, before]) => image.src !== before"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_in_jupyterlab(lab: tuple[str, str], browser, lesson: Path) -> None:
    address, token = lab
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{address}/lab/tree/notebooks/{lesson.name}?token={token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    wait_for_idle_kernel(address, token, lesson.name)
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=60_000)
    run_all(page)
    page.wait_for_function(RUN_OR_BAD, arg=BAD_OUTPUTS, timeout=240_000)
    assert page.locator(BAD_OUTPUTS).all_inner_texts() == []
    move_every_widget(page)
    screenshot(page, lesson.stem)
    assert problems == []
    page.close()


def run_all(page) -> None:
    page.click('.lm-MenuBar-itemLabel:text-is("Run")')
    page.click('.lm-Menu-itemLabel:text-is("Run All Cells")')
    page.wait_for_timeout(500)
    assert page.locator(".jp-Dialog").all_inner_texts() == [], "a dialog stands in the way"


def move_every_widget(page) -> None:
    """A control of each widget changes its picture."""
    widgets = page.locator(WIDGETS)
    for number in range(widgets.count()):
        widget = widgets.nth(number)
        widget.scroll_into_view_if_needed()
        image = widget.locator(".widget-image").first
        before = image.get_attribute("src")
        move(page, widget)
        page.wait_for_function(PICTURE_CHANGED, arg=[image.element_handle(), before], timeout=20_000)


def move(page, widget) -> None:
    """Move the first control that a widget has."""
    handle, choice, box = (widget.locator(kind) for kind in (".noUi-handle", "select", 'input[type="checkbox"]'))
    if handle.count():
        handle.first.focus()
        at_the_end = handle.first.get_attribute("aria-valuenow") == handle.first.get_attribute("aria-valuemax")
        page.keyboard.press("ArrowLeft" if at_the_end else "ArrowRight")
    elif choice.count():
        choice.first.select_option(index=1)
    else:
        box.first.click()


def screenshot(page, name: str) -> None:
    """The whole notebook, in pieces of one window each."""
    ARTEFACTS.mkdir(exist_ok=True)
    cells = page.locator(".jp-Notebook .jp-Cell")
    for number in range(cells.count()):
        output = cells.nth(number).locator(".jp-OutputArea-output img, .widget-vbox")
        if output.count():
            output.first.scroll_into_view_if_needed()
            cells.nth(number).screenshot(path=ARTEFACTS / f"{name}-cell-{number:02d}.png")
    page.screenshot(path=ARTEFACTS / f"{name}.png")
