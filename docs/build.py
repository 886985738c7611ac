"""Builds the course's static site from README, lessons and docstrings: `python docs/build.py FOLDER` (or `make docs`).

Sphinx wants all sources under one folder, with its own settings and a start page. So the pages are put together in a
temporary folder, in the layout of the repository (relative links stay true), and built from there. No notebook is run:
the pages show the committed outputs, and of a widget its picture. Nothing is downloaded, and the pages load nothing.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from minipaged.course.notebook_tools.syllabus import lessons_by_month
from minipaged.course.widgets import WIDGET_VIEW

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *("CONTRIBUTING.md", "LICENSE", "benchmarks/README.md"),
    *("docs/hosted_notebooks.md", "docs/running_a_class.md", "docs/to_the_cluster.md"),
)
ROOMS = ("os_paging", "kv_cache", "workloads", "fragmentation", "attention", "model", "serving", "parallel", "course")

CONF = """\
project = "minipaged"
author = "the minipaged authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
default_role = "code"  # docstrings write names between single backticks
html_title = "minipaged"
html_static_path = ["_static"]
html_css_files = ["wrap.css"]
nb_execution_mode = "off"
nb_render_markdown_format = "gfm"  # tables, too
nb_ipywidgets_js = {}
myst_heading_anchors = 3
suppress_warnings = ["docutils", "mystnb.unknown_mime_type", "toc.not_included"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
"""


WRAP = "div.highlight pre { white-space: pre-wrap; }  /* a long line is wrapped, not cut */\n"


def contents(root: Path) -> str:
    """The site's table of contents, as MyST, for the end of the start page."""
    lessons = [path.stem for _, lessons in sorted(lessons_by_month(root).items()) for path in lessons]
    groups = {
        "Lessons": ["notebooks/START_HERE", *(f"notebooks/{name}" for name in lessons)],
        "Look up": ["notebooks/SYLLABUS", "notebooks/GLOSSARY", "notebooks/CORRECTIONS", "api"],
        "More": [
            *("CONTRIBUTING", "docs/to_the_cluster", "docs/hosted_notebooks", "docs/running_a_class"),
            "benchmarks/README",
            "中文 <README.zh-CN>",
        ],
    }
    blocks = []
    for caption, pages in groups.items():
        blocks.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))
    return "\n\n".join(blocks)


def api_page() -> str:
    """What each room makes public, from its docstrings."""
    rooms = [room for room in ROOMS if importlib.util.find_spec(f"minipaged.{room}")]
    parts = ["# The package\n\nWhat each room makes public; the rest is best read in the source."]
    for room in rooms:
        name = f"minipaged.{room}"
        directive = ["```{eval-rst}", f".. automodule:: {name}", "   :members:", "   :imported-members:", "```"]
        parts += [f"## {name}", "\n".join(directive)]
    return "\n\n".join(parts) + "\n"


def stage(folder: Path) -> None:
    """Put the pages together in `folder`."""
    for name in PAGES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "docs" / "images", folder / "docs" / "images")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*", "*.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "index.md").write_text(f"{readme}\n{contents(ROOT)}\n", encoding="utf-8")
    shutil.copy(ROOT / "README.zh-CN.md", folder)
    (folder / "api.md").write_text(api_page(), encoding="utf-8")
    for path in (folder / "notebooks").glob("*.ipynb"):
        notebook = _with_still_pictures(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(notebook), encoding="utf-8")
    for page in folder.rglob("*.md"):
        page.write_text(_for_the_site(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "conf.py").write_text(CONF, encoding="utf-8")
    (folder / "_static").mkdir()
    (folder / "_static" / "wrap.css").write_text(WRAP, encoding="utf-8")


def _for_the_site(page: str) -> str:
    """Links that only the repository has: JupyterLab's way to a cell, and the README, here the start page."""
    page = re.sub(r"(\.ipynb)#cell-id=\w+", r"\1", page)
    return page.replace("](README.md)", "](index.md)")


def _with_still_pictures(notebook: dict) -> dict:
    """A page has no kernel: of each widget its picture stays. Links in outputs lead to the site's pages; the exercises
    are no page of it."""
    notebook["metadata"].pop("widgets", None)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data.pop(WIDGET_VIEW, None)
            for kind in data.keys() & {"text/html", "text/markdown"}:
                text = re.sub(r'<a href="\.\./exercises/[^"]*">(.*?)</a>', r"\1", "".join(data[kind]))
                data[kind] = re.sub(r'(\]\(|href=")(\w+)\.ipynb(?=[)"])', r"\1\2.html", text)
    return notebook


def build(out: Path) -> int:
    """Build the site; a warning is an error. Returns Sphinx's exit status."""
    with tempfile.TemporaryDirectory(prefix="minipaged-docs-") as temporary:
        source = Path(temporary) / "source"
        source.mkdir()
        stage(source)
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going"]
        return subprocess.run([*command, str(source), str(out.resolve())], cwd=ROOT, check=False).returncode


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python docs/build.py FOLDER", file=sys.stderr)
        return 2
    status = build(Path(argv[0]))
    if status == 0:
        print(f"The site is in {argv[0]}: open {argv[0]}/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
