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
        ("0,0,2", "line 3: prompt_tokens is 0; it must be a whole number of at least 1"),
        ("0,5,-2", "line 3: output_tokens is -2"),
        ("0,5", "line 3: output_tokens is missing; every row needs"),
        (",5,2", "line 3: arrival is missing"),
        ("nan,5,2", "line 3: arrival is nan"),
        ("1e999,5,2", "line 3: arrival is inf"),
        ("-1,5,2", "line 3: arrival is -1"),
        ("0,5.5,2", "line 3: prompt_tokens is '5.5'"),
        ("0,1_000,2", "line 3: prompt_tokens is '1_000'"),
        ("0,5,2,9", "line 3: 4 cells, but the header names 3 columns"),
        (f"0,{'9' * 5000},2", r"line 3: prompt_tokens is '9+… \(5002 characters\)"),
        (f"0,{'9' * 200_000},2", r"line 3: not CSV \(field larger"),
        ('0,"5,2\n0,1,1', r"line 3: not CSV \(unexpected end"),
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


LONG = "9" * 400


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ('"prompt_tokens": true', "prompt_tokens is True"),
        ('"prompt_tokens": Infinity', "prompt_tokens is inf"),
        ('"prompt_tokens": 1e400', "prompt_tokens is inf"),
        ('"prompt_tokens": [1]', r"prompt_tokens is \[1\]"),
        (f'"prompt_tokens": {"9" * 5000}', "not JSON"),
        ('"prompt_tokens": ' + "[" * 100_000, "not JSON"),
        ('"arrival": NaN', "arrival is nan"),
        ('"arrival": true', "arrival is True"),
        (f'"arrival": {LONG}', r"arrival is 9+… \(400 characters\)"),
        ('"prefix_id": [1], "prefix_tokens": 1', r"prefix_id is \[1\]; it must be a text"),
        ('"prefix_id": "a"', "prefix_id is 'a', but prefix_tokens is missing"),
        ('"prefix_tokens": 1', "prefix_tokens is 1, but prefix_id is missing"),
        ('"prefix_id": "a", "prefix_tokens": -1', "prefix_tokens is -1"),
    ],
)
def test_bad_values_of_jsonl_are_named_with_their_line(tmp_path, field, message):
    path = tmp_path / "t.jsonl"
    good = '{"arrival": 0, "prompt_tokens": 2, "output_tokens": 1'
    path.write_text(f"{good}}}\n\n{good}, {field}}}\n")
    with pytest.raises(ValueError, match=f"line 3: {message}"):
        load_trace(path)


def test_what_other_programs_write_is_read(tmp_path):
    """A byte order mark, Windows' line ends, spaces, quotes, blank lines, columns of one's own, prefixes by number."""
    csv = tmp_path / "t.CSV"
    rows = "\r\n".join(["", 'note, arrival , prompt_tokens,"output_tokens"', '"a\nb", 1.5 ,20, 3', "", ",0,5,2", ""])
    csv.write_bytes(b"\xef\xbb\xbf" + rows.encode())
    assert load_trace(csv) == [Workload(0.0, 5, 2), Workload(1.5, 20, 3)]
    jsonl = tmp_path / "t.jsonl"
    row = {
        "arrival": 0,
        "prompt_tokens": 9.0,
        "output_tokens": 1,
        "prefix_id": 0,
        "prefix_tokens": 4,
        "note": "a\u2028b",
    }
    jsonl.write_bytes(b"\xef\xbb\xbf" + json.dumps(row, ensure_ascii=False).encode())
    assert load_trace(jsonl) == [Workload(0.0, 9, 1, "0", 4)]


def test_a_row_over_two_lines_is_named_by_its_first(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('arrival,prompt_tokens,output_tokens,note\n0,1,1,"a\nb"\n0,0,1,"c\nd"\n')
    with pytest.raises(ValueError, match="line 4: prompt_tokens is 0"):
        load_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"arrival,prompt_tokens\n0,1\n", "line 1: .*: output_tokens is missing"),
        (b"0,1,1\n0,2,2\n", "line 1: the header is '0, 1, 1': arrival is missing"),
        (b"arrival;prompt_tokens;output_tokens\n0;1;1\n", "separated by commas"),
        (b"arrival,prompt_tokens,prompt_tokens,output_tokens\n0,1,2,1\n", "prompt_tokens stands there 2 times"),
        (b"arrival,prompt_tokens,output_tokens\n0,1,1\n\xff,1,1\n", "line 3: byte 0xff is not UTF-8"),
        ("arrival,prompt_tokens,output_tokens\n0,1,1\n".encode("utf-16"), "line 1: byte 0xff is not UTF-8"),
        (b"", "holds no request"),
        (b"arrival,prompt_tokens,output_tokens\n", "holds no request"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        load_trace(path)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.csv or a \.jsonl"):
        load_trace(tmp_path / "t.txt")


def test_means_of_nothing():
    with pytest.raises(ValueError, match="no requests"):
        mean_lengths([])
    assert math.isclose(math.exp(workloads.log_normal_mu(10, 1) + 0.5), 10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: sharegpt_like(-1), "n is -1"),
        (lambda: sharegpt_like(2.5), "n must be an int, got 2.5"),
        (lambda: sharegpt_like(5, sigma=math.nan), "sigma is nan"),
        (lambda: sharegpt_like(5, sigma=math.inf), "sigma is inf"),
        (lambda: sharegpt_like(5, sigma="1"), "sigma is '1'"),
        (lambda: sharegpt_like(5, rate=math.nan), "rate is nan"),
        (lambda: workloads.log_normal_lengths(3, math.inf, 5), "mean is inf"),
        (lambda: workloads.log_normal_lengths(3, 1e6, 1e6), "too many for max_length = 2048"),
        (lambda: workloads.log_normal_lengths(3, 1.5, 1.5, 0.0, max_length=3), "too many for max_length = 3"),
        (lambda: workloads.log_normal_lengths(3, 5, 5, max_length=1), "max_length is 1"),
        (lambda: workloads.workload_a(-1), "n is -1"),
        (lambda: workloads.workload_b(0.5), "n must be an int, got 0.5"),
        (lambda: workloads.shared_prefix(3, prefix_tokens=-4), "prefix_tokens is -4"),
        (lambda: workloads.shared_prefix(3, prefix_tokens=2000), "prefix_tokens is 2000, but must be from 0 to 1024"),
        (lambda: workloads.shared_prefix(3, num_prefixes=0), "num_prefixes is 0"),
        (lambda: workloads.multi_turn(-1), "conversations is -1"),
        (lambda: workloads.multi_turn(2, turns=0), "turns is 0"),
        (lambda: workloads.multi_turn(2, turns=2000), "turns is 2000, but must be from 1 to 22"),
        (lambda: workloads.multi_turn(2, think_time=math.nan), "think_time is nan"),
    ],
)
def test_impossible_workloads_are_refused(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        wrong()


def test_all_made_requests_can_be_served():
    made = (sharegpt_like(50), workloads.shared_prefix(50, 1024), workloads.multi_turn(3, 22), workloads.workload_b(2))
    for requests in made:
        assert workloads.checked(requests) == requests
        assert max(request.total_tokens for request in requests) <= 2050
