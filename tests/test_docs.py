"""The static site is built offline and without a warning: every link between its pages leads somewhere, tables are
tables, each widget has its picture, and no page loads anything from elsewhere."""

import importlib.util
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_is_built_with_every_lesson(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    docs_build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs_build)
    assert docs_build.build(tmp_path / "site") == 0
    lessons = [path.stem for path in (ROOT / "notebooks").glob("*.ipynb")]
    missing = [name for name in lessons if not (tmp_path / "site" / "notebooks" / f"{name}.html").exists()]
    assert lessons
    assert missing == []
    assert "KVCacheManager" in (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    pages = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    links = [(page, link) for page, text in pages.items() for link in re.findall(r'(?:href|src)="([^"#?]+)', text)]
    own = [(page.parent / unquote(link), f"{page.name}: {link}") for page, link in links if not _is_elsewhere(link)]
    assert [words for path, words in own if not path.exists()] == []
    wrong = {
        "loads from elsewhere": r'<(script|link|img)\b[^>]*(src|href)="http',
        "a table that is none": r"<p>\|",
        "a widget": "widget-view",
    }
    for what, pattern in wrong.items():
        assert [page.name for page, text in pages.items() if re.search(pattern, text)] == [], what


def _is_elsewhere(link: str) -> bool:
    return re.match(r"[a-z]+:|//", link) is not None
