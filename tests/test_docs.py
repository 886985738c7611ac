"""The static site is built offline and without a warning: every link between its pages leads somewhere."""

import importlib.util
from pathlib import Path

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
