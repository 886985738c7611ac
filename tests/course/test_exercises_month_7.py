"""Month 7's exercises: the data about vLLM, and the seeded bugs that grade a learner's tests."""

import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest
import torch

from minipaged.course import vllm_source
from minipaged.course.checks.month_7 import COMPUTED, EARLIER, OLD_NAMES, RENAMED
from minipaged.course.faulty_pools import BUGS, Manager, make_manager
from minipaged.course.two_ranks import RankMissing, ThreadGroup
from minipaged.kv_cache import CacheRequest
from minipaged.model.config import ModelConfig
from minipaged.parallel import ParallelLayout

ROOT = Path(__file__).parents[2]


def test_the_data_hold_the_names_and_metrics_that_the_exercises_speak_of():
    known, metrics = vllm_source.names(), vllm_source.metrics()
    assert {want for want, _ in OLD_NAMES.values()} <= known
    assert not {old for old in OLD_NAMES if "," not in old} & {name.rpartition(".")[2] for name in known}
    assert "KVCacheManager.get_computed_blocks" in vllm_source.find("computed")
    assert vllm_source.find("swap_out") == []
    assert set(RENAMED.values()) <= set(metrics)
    assert {name for found in COMPUTED.values() for name in found} <= set(metrics)
    assert not (set(RENAMED) | set(EARLIER)) & set(metrics)
    assert {metric.kind for metric in metrics.values()} == {"gauge", "counter", "histogram"}


def test_an_unknown_file_is_named_with_those_there_are():
    with pytest.raises(KeyError, match=r"block_manager\.py.*there are vllm/v1/core/block_pool\.py"):
        vllm_source.outline("vllm/core/block_manager.py")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with the pinned files, each with a class of its own."""
    for path in (*vllm_source.FILES, vllm_source.METRICS_FILE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(
            "def helper(): ...\n\nclass Pool:\n    size: int = 0\n\n    def __init__(self):\n        self.free = []\n\n"
            "    def take(self): ...\n",
            encoding="utf-8",
        )
    with (tmp_path / vllm_source.METRICS_FILE).open("a", encoding="utf-8") as file:
        file.write('\ngauge = self._gauge_cls(name="vllm:new_one", documentation=("Two " "parts."))\n')
        file.write('name = "vllm:info"\ndocumentation = "Information"\n')
        file.write("info = self._gauge_cls(name=name, documentation=documentation)\n")
    return tmp_path


def test_source_is_read_into_outlines_and_metrics(source: Path):
    found = vllm_source.read_source(source)
    assert found["files"][vllm_source.FILES[0]] == {"": ["helper"], "Pool": ["free", "size", "take"]}
    rows = [tuple(row.values()) for row in found["metrics"]]
    assert rows == [("vllm:new_one", "gauge", "Two parts."), ("vllm:info", "gauge", "Information")]


def test_differences_to_another_source_are_listed(source: Path, capsys):
    assert vllm_source.main([str(source)]) == 1
    told = capsys.readouterr().out
    assert "block_pool.py: BlockPool.get_new_blocks is gone" in told
    assert "gauge vllm:new_one is new" in told
    assert vllm_source.main([str(source / "nowhere")]) == 2
    assert "give the folder that contains vllm/" in capsys.readouterr().out
    same = json.loads(vllm_source.DATA.read_text(encoding="utf-8"))
    assert vllm_source.differences(same, same) == []


def solution_of_7_6():
    from minipaged.course.notebook_tools.answers import ANSWER, cells_by_exercise, setup_sources, without_marks
    from minipaged.course.notebook_tools.notebook import read_notebook, source_of

    notebook = read_notebook(ROOT / "solutions" / "month_7.ipynb")
    namespace: dict = {}
    for code in (*setup_sources(notebook), without_marks(source_of(cells_by_exercise(notebook, ANSWER)["7.6"]))):
        exec(code, namespace)
    return namespace["pool_tests"]


@pytest.mark.parametrize("name", BUGS)
def test_the_solution_finds_every_seeded_bug_and_nothing_else(name: str):
    tests = solution_of_7_6()
    tests(Manager)
    with pytest.raises((AssertionError, ValueError)):
        tests(BUGS[name].make)


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_does_not_show_in_names(name: str):
    def names(make) -> list[str]:
        manager = make(8, 4)
        manager.allocate_slots(CacheRequest("r0", [1, 2]), 2)
        things = manager, manager.pool, manager.pool.prefix_cache, manager.block_table("r0")
        return [make.__qualname__] + [f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in things]

    assert names(BUGS[name].make) == names(make_manager)
    assert names(make_manager)[1:3] == [
        "minipaged.kv_cache.manager.KVCacheManager",
        "minipaged.kv_cache.block_pool.BlockPool",
    ]


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_does_not_show_in_a_plain_run(name: str):
    manager = BUGS[name].make(8, 4)
    request = CacheRequest("r0", list(range(8)))
    assert len(manager.allocate_slots(request, 8)) == 2
    assert manager.num_free_blocks == 6
    manager.free(request)
    assert manager.num_free_blocks == 8


def test_bytes_per_rank_are_those_of_the_layout_of_real_ranks():
    config = ModelConfig(
        vocab_size=8, hidden_size=2048, intermediate_size=64, num_layers=32, num_heads=16, num_kv_heads=8, head_dim=128,
        max_position_embeddings=64,
    )  # fmt: skip
    kept = {ranks: ParallelLayout(config, ranks).kv_bytes_per_token(itemsize=2) for ranks in (1, 4, 8, 16)}
    assert kept == {1: 131_072, 4: 32_768, 8: 16_384, 16: 16_384}


def test_ranks_meet_in_the_order_of_the_ranks_and_see_the_same_sum():
    group = ThreadGroup(3)
    reduce = [group.all_reduce(rank) for rank in range(3)]
    seen = group.run(lambda rank: [reduce[rank](torch.tensor(float(rank + step))).item() for step in range(50)])
    assert seen == [[3.0 + 3 * step for step in range(50)]] * 3
    assert group.meetings == 50


def test_a_rank_that_does_not_come_and_one_that_fails_end_the_run():
    group = ThreadGroup(2)
    reduce = [group.all_reduce(rank) for rank in range(2)]

    def alone(rank: int) -> None:
        if rank == 1:
            reduce[rank](torch.ones(1))

    with pytest.raises(RankMissing, match="rank 1 waits"):
        group.run(alone)
    with pytest.raises(RankMissing, match="rank 0 calls all_reduce before the ranks run"):
        reduce[0](torch.ones(1))  # nobody is there: it must not wait for ever

    def failing(rank: int) -> None:
        if rank == 0:
            raise ValueError("rank 0 is gone")
        reduce[rank](torch.ones(1))

    with pytest.raises(ValueError, match="rank 0 is gone"):
        group.run(failing)
    assert group.run(lambda rank: reduce[rank](torch.ones(1)).item()) == [2.0, 2.0]  # whole again afterwards


def test_the_data_agree_with_the_installed_vllm_or_it_is_said_that_there_is_none(capsys):
    if importlib.util.find_spec("vllm") is None:
        assert vllm_source.main([]) == 2
        assert "give the folder of its source" in capsys.readouterr().out
    elif importlib.metadata.version("vllm").startswith("0.32."):
        assert vllm_source.main([]) == 0, capsys.readouterr().out
