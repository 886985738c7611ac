"""Lengths, arrivals, and a user's own trace with its bad rows."""

import json
import math
from itertools import pairwise

import pytest

from minipaged import workloads
from minipaged.workloads import Workload, load_trace, mean_lengths, sharegpt_like


def test_seeded():
    assert sharegpt_like(50, seed=1) == sharegpt_like(50, seed=1) != sharegpt_like(50, seed=2)


@pytest.mark.parametrize(
    ("make", "prompt", "output"), [("sharegpt_like", 161.31, 337.99), ("alpaca_like", 19.31, 58.45)]
)
def test_means_are_near_the_published_ones(make, prompt, output):
    got = mean_lengths(getattr(workloads, make)(20_000))
    assert got[0] == pytest.approx(prompt, rel=0.12)
    assert got[1] == pytest.approx(output, rel=0.12)


def test_longest_is_the_models():
    assert max(request.total_tokens for request in sharegpt_like(5000, sigma=2)) <= 2048


def test_arrivals():
    times = [request.arrival for request in sharegpt_like(4000, rate=5)]
    assert times == sorted(times)
    assert times[-1] / 4000 == pytest.approx(1 / 5, rel=0.1)
    with pytest.raises(ValueError, match="rate is 0"):
        sharegpt_like(3, rate=0)


def test_multi_turn_prompts_grow():
    chats = workloads.multi_turn(2, turns=3)
    first = [request for request in chats if request.prefix_id == "chat 0"]
    assert len(first) == 3
    for earlier, later in pairwise(first):
        assert later.prompt_tokens > earlier.total_tokens


def test_trace_round_trip(tmp_path):
    csv = tmp_path / "t.csv"
    csv.write_text("arrival,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n1.5,20,3,a,8\n0,5,2,,\n")
    expected = [Workload(0.0, 5, 2), Workload(1.5, 20, 3, "a", 8)]
    assert load_trace(csv) == expected
    jsonl = tmp_path / "t.jsonl"
    jsonl.write_text("\n".join(json.dumps(request._asdict()) for request in expected))
    assert load_trace(jsonl) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,5,2", "line 3: arrival is 'x'"),
        ("0,0,2", "line 3: prompt_tokens is '0'"),
        ("0,5,-2", "line 3: output_tokens is '-2'"),
        ("0,5", "line 3: output_tokens is None"),
        ("nan,5,2", "line 3: arrival is 'nan'"),
        ("0,5.5,2", "line 3: prompt_tokens is '5.5'"),
    ],
)
def test_bad_csv_rows_are_named(tmp_path, row, message):
    path = tmp_path / "t.csv"
    path.write_text(f"arrival,prompt_tokens,output_tokens\n0,1,1\n{row}\n")
    with pytest.raises(ValueError, match=message):
        load_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: .* is not an object"),
        ('{"arrival": 0, "prompt_tokens": 2.5, "output_tokens": 1}', "line 1: prompt_tokens is 2.5"),
        ('{"arrival": 0, "prompt_tokens": 2, "output_tokens": 1, "prefix_tokens": 3}', "more than the 2 prompt"),
        ("", "holds no request"),
    ],
)
def test_bad_jsonl_rows_are_named(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_trace(path)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.csv or a \.jsonl"):
        load_trace(tmp_path / "t.txt")


def test_means_of_nothing():
    with pytest.raises(ValueError, match="no requests"):
        mean_lengths([])
    assert math.isclose(math.exp(workloads.log_normal_mu(10, 1) + 0.5), 10)
