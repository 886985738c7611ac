"""The map to vLLM's names: every public name has a row, and the names of both sides exist."""

import importlib
import json
from pathlib import Path

import pytest

from minipaged.course import vllm_source
from minipaged.parallel import vllm_map

ROOMS = ("kv_cache", "attention", "model", "serving", "parallel")


def test_every_public_class_and_function_has_a_row() -> None:
    mapped = {row.name for row in vllm_map.rows()}
    for room in ROOMS:
        public = importlib.import_module(f"minipaged.{room}").__all__
        assert {name for name in public if not name.isupper()} - mapped == set(), room


def test_every_name_here_exists() -> None:
    assert vllm_map.problems(vllm_map.PACKAGE, "minipaged") == []


def test_a_name_that_is_missing_there_comes_with_a_note() -> None:
    assert [row.name for row in vllm_map.rows() if not row.vllm_name and not row.note] == []
    assert len({(row.file, row.name) for row in vllm_map.rows()}) == len(vllm_map.rows())


def test_the_names_there_are_those_of_the_pinned_release() -> None:
    data = json.loads(vllm_source.DATA.read_text(encoding="utf-8"))
    assert data["release"] == vllm_map.RELEASE
    checked = 0
    for row in vllm_map.rows():
        outline = data["files"].get(f"vllm/{row.vllm_file}")
        if outline is not None and row.vllm_name:
            owner, _, member = row.vllm_name.rpartition(".")
            assert row.vllm_name in outline or row.vllm_name in outline[""] or member in outline[owner], row
            checked += 1
        if row.vllm_name.startswith("vllm:"):
            assert row.vllm_name in vllm_source.metrics(), row
            checked += 1
    assert checked > 50


SOURCE = '''
import functools
LIMIT = 3
def free(): ...
class Base:
    size: int
    def grow(self):
        self.length = 1
class Pool(Base):
    """A pool."""
    @property
    def usage(self): ...
parser.add_argument("--block-size")
gauge(name="vllm:usage")
'''


def test_what_a_source_defines(tmp_path: Path) -> None:
    file = tmp_path / "pool.py"
    file.write_text(SOURCE)
    there = ["LIMIT", "free", "Base", "Base.size", "Pool.grow", "Pool.length", "Pool.usage", "--block-size"]
    for name in [*there, "vllm:usage"]:
        assert vllm_map.defines(file, name), name
    for name in ("gone", "Gone", "Pool.gone", "Base.usage", "--gone", "vllm:gone"):
        assert not vllm_map.defines(file, name), name


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_map.importlib.util, "find_spec", lambda name: None)
    assert vllm_map.main([]) == 0
    assert "not checked: vLLM is not installed here. The map is that of vLLM 0.32.0" in capsys.readouterr().out
    assert vllm_map.main(["get_computed"]) == 0
    assert "KVCacheManager.get_computed_blocks (v1/core/kv_cache_manager.py)" in capsys.readouterr().out
    assert vllm_map.main(["--source", str(tmp_path)]) == 2
    assert "holds no source of vLLM" in capsys.readouterr().err
    (tmp_path / "vllm" / "v1" / "core").mkdir(parents=True)
    (tmp_path / "vllm" / "v1" / "core" / "block_pool.py").write_text("class BlockPool:\n    def touch(self): ...\n")
    assert vllm_map.main(["--source", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "v1/core/block_pool.py does not define BlockPool.free_blocks" in printed
    assert "does not define BlockPool.touch" not in printed
    assert "v1/core/kv_cache_utils.py does not exist (for KVCacheBlock)" in printed


def test_the_tables_of_the_page_are_this_map() -> None:
    page = (vllm_map.PACKAGE.parent / "docs" / "to_the_cluster.md").read_text(encoding="utf-8")
    assert vllm_map.markdown() in page
