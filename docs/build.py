"""Builds the course's static site from README, lessons and docstrings: `python docs/build.py FOLDER` (or `make docs`).

Sphinx wants all sources under one folder, with its own settings and a start page. So the pages are put together in a
temporary folder, in the layout of the repository (relative links stay true), and built from there. No notebook is run:
the pages show the committed outputs. Nothing is downloaded.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
nb_execution_mode = "off"
myst_heading_anchors = 3
suppress_warnings = ["docutils", "mystnb.unknown_mime_type", "toc.not_included"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
"""


def contents(root: Path) -> str:
    """The site's table of contents, as MyST, for the end of the start page."""
    lessons = sorted(path.stem for path in (root / "notebooks").glob("month_*.ipynb"))
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
    for page in folder.rglob("*.md"):
        page.write_text(_for_the_site(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "conf.py").write_text(CONF, encoding="utf-8")


def _for_the_site(page: str) -> str:
    """Links that only the repository has: JupyterLab's way to a cell, and the README, here the start page."""
    page = re.sub(r"(\.ipynb)#cell-id=\w+", r"\1", page)
    return page.replace("](README.md)", "](index.md)")


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
