"""Every lesson in a real JupyterLab in headless Chromium: it runs to its end without an error or a warning, and a
control of each widget changes its picture. Some are looked at in the dark theme, too. Screenshots are left in
.browser-artefacts/."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minipaged.course.notebook_tools.notebook import read_notebook
from minipaged.course.widgets import WIDGET_VIEW
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
WRITTEN = ".jp-OutputArea .widget-vbox:has(> .widget-textarea)"  # a question: it has no picture
REFUSALS = '.jp-OutputArea .widget-html-content [role="alert"]'
PICTURE_CHANGED = "([image, before]) => image.src !== before"
RUN_SO_FAR = """([number, bad]) => {
  const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')].slice(0, number + 1);
  const prompts = cells.flatMap(cell => [...cell.querySelectorAll('.jp-InputArea-prompt')]);
  const code = prompts.filter(e => e.closest('.jp-CodeCell')).map(e => e.textContent);
  return code.every(text => /\\[\\d+\\]/.test(text)) || document.querySelector(bad);
}"""
LIVE = {"month_5_serving": "Dashboard("}  # a widget that watches what a later cell stops
DARK = {"START_HERE", "month_0_reservation", "month_2_block_table"}
FAINT = """() => {  // texts of outputs and widgets that stand out too little from what is behind them
  const numbers = colour => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = colour => numbers(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0.5) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll('.jp-OutputArea-output *, .jp-MarkdownOutput *')]
    .filter(e => own(e) && e.checkVisibility() && !e.disabled)
    .filter(e => {
      const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05) < 3;
    }).map(e => `${e.tagName}: ${e.textContent.trim().slice(0, 60)}`);
}"""

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
    if lesson.stem in LIVE:
        run_up_to(page, LIVE[lesson.stem])
        move_every_widget(page)
        screenshot(page, lesson.stem)
    run_all(page)
    page.wait_for_function(RUN_OR_BAD, arg=BAD_OUTPUTS, timeout=240_000)
    assert page.locator(BAD_OUTPUTS).all_inner_texts() == []
    assert page.locator(f"{WIDGETS}, {WRITTEN}").count() == num_widgets(lesson), "a widget is missing, or of a new kind"
    if lesson.stem not in LIVE:
        move_every_widget(page)
        screenshot(page, lesson.stem)
    if lesson.stem in DARK:
        in_the_dark(page, lesson.stem)
    assert page.locator(f"{BAD_OUTPUTS}, {REFUSALS}").all_inner_texts() == []
    assert problems == []
    page.close()


def num_widgets(lesson: Path) -> int:
    """How many widgets the saved outputs have."""
    outputs = [output for cell in read_notebook(lesson)["cells"] for output in cell.get("outputs", ())]
    return sum(WIDGET_VIEW in output.get("data", {}) for output in outputs)


def run_all(page) -> None:
    page.click('.lm-MenuBar-itemLabel:text-is("Run")')
    page.click('.lm-Menu-itemLabel:text-is("Run All Cells")')
    page.wait_for_timeout(500)
    assert page.locator(".jp-Dialog").all_inner_texts() == [], "a dialog stands in the way"


def run_up_to(page, source: str) -> None:
    """Run the cells up to the one with this source."""
    texts = page.locator(".jp-Notebook .jp-Cell").all_inner_texts()
    number = next(place for place, text in enumerate(texts) if source in text and "import" in text)
    page.locator(".jp-Notebook .jp-Cell").nth(number + 1).click()
    command(page, "notebook:run-all-above")
    page.wait_for_function(RUN_SO_FAR, arg=[number, BAD_OUTPUTS], timeout=240_000)
    assert page.locator(BAD_OUTPUTS).all_inner_texts() == []


def command(page, name: str, **arguments: str) -> None:
    page.evaluate("([name, args]) => jupyterapp.commands.execute(name, args)", [name, arguments])


def in_the_dark(page, name: str) -> None:
    """In the dark theme all text can be read."""
    command(page, "apputils:change-theme", theme="JupyterLab Dark")
    page.wait_for_selector('body[data-jp-theme-light="false"]', state="attached")
    faint = page.evaluate(FAINT)
    screenshot(page, f"{name}-dark")
    command(page, "apputils:change-theme", theme="JupyterLab Light")
    page.wait_for_selector('body[data-jp-theme-light="true"]', state="attached")
    assert faint == []


def move_every_widget(page) -> None:
    """A control of each widget changes its picture."""
    widgets = page.locator(WIDGETS)
    for number in range(widgets.count()):
        widget = widgets.nth(number)
        widget.scroll_into_view_if_needed()
        image = widget.locator(".widget-image").first
        before = image.get_attribute("src")
        widget.locator('label:has-text("in words") >> input').check()
        move(page, widget)
        page.wait_for_function(PICTURE_CHANGED, arg=[image.element_handle(), before], timeout=20_000)
        assert widget.locator("pre").last.is_visible(), "the words are folded again"
        for pressed in widget.locator(".widget-toggle-button.mod-active").all():
            pressed.click()


def move(page, widget) -> None:
    """Move the first control that a widget has."""
    handle, choice, box = (
        widget.locator(kind) for kind in (".noUi-handle", "select", 'input[type="checkbox"], .widget-toggle-button')
    )
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
