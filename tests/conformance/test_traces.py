"""The recorded traces of vLLM's manager, and the replayer's own honesty."""

import copy
import json
from pathlib import Path

import pytest

from tests.conformance.replay import first_difference, main

TRACES = sorted((Path(__file__).parent / "traces").glob("*.json"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_same_answers_as_vllm(path):
    assert first_difference(json.loads(path.read_text())) is None


def test_all_traces_are_there():
    assert len(TRACES) == 30


@pytest.mark.parametrize("field", ["num_free", "free_queue", "ref_cnt", "hit", "block_ids", "ok"])
def test_a_changed_answer_is_found(field, tmp_path, capsys):
    trace = json.loads(TRACES[0].read_text())
    number = next(i for i, step in enumerate(trace["steps"]) if field in step["answer"])
    trace = copy.deepcopy(trace)
    trace["steps"][number]["answer"][field] = "something else"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(trace))
    assert main([str(changed)]) == 1
    assert f"step {number}" in capsys.readouterr().out


def test_a_missing_answer_field_is_found(tmp_path):
    trace = json.loads(TRACES[0].read_text())
    del trace["steps"][0]["answer"]["num_free"]
    assert "num_free" in first_difference(trace)


def test_no_file_is_an_error(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
