"""`minipaged bench paging`: the work is what it says, and the ratio is that of the pairs."""

import json
from pathlib import Path

import pytest

from minipaged.bench import paging
from minipaged.bench.command import main
from minipaged.model import load_model


def test_ragged_requests_fit_and_are_repeatable() -> None:
    prompts, outputs = paging.ragged_requests(200, 512)
    assert (prompts, outputs) == paging.ragged_requests(200, 512)
    assert max(len(p) + n for p, n in zip(prompts, outputs, strict=True)) <= paging.LONGEST
    assert max(outputs) > 3 * sorted(outputs)[100]  # some are much longer than most


def test_sides_take_turns_after_a_warm_up_and_the_ratio_is_the_median_of_pairs() -> None:
    calls: list[str] = []
    numbers = iter([0, 0, 1, 2, 10, 40, 3, 9])

    def side(name: str) -> float:
        calls.append(name)
        return next(numbers)

    values = paging.alternate([lambda: side("a"), lambda: side("b")], rounds=3)
    assert calls == ["a", "b"] * 4
    assert values == ([1, 10, 3], [2, 40, 9])
    assert paging.Pair("", ("a", "b"), "", values, {}).ratio == 3


def test_the_prefix_cache_computes_the_suffix_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PREFIX", 64)
    monkeypatch.setattr(paging, "SUFFIX", 16)
    pair = paging.prefix_pair(load_model("tiny"), requests=2, rounds=1)
    assert (pair.facts["tokens with"], pair.facts["tokens without"]) == (2 * 16, 2 * 80)
    assert pair.facts["token ratio"] == 5
    assert "at best 5.0, as the tokens" in paging.table([pair])


def test_both_sides_of_the_reservation_generate_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "LONGEST", 128)
    monkeypatch.setattr(paging, "RESERVED", 2)
    pair = paging.reservation_pair(load_model("tiny"), requests=3, rounds=1)
    assert min(*pair.values[0], *pair.values[1]) > 0
    assert pair.facts["slots"] == 256


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--rounds", "0"], "--rounds is 0; it must be at least 1"), (["--json", "x.txt"], "ends in .json")],
)
def test_wrong_options_end_before_anything_runs(options: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["paging", *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_results_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from minipaged.bench.generate.checkpoint import SHAPES

    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    monkeypatch.setitem(SHAPES, "standard", {**SHAPES["standard"], **small, "num_key_value_heads": 1, "head_dim": 16})
    monkeypatch.setattr(paging, "PREFIX", 32)
    assert main(["paging", "--requests", "2", "--rounds", "1", "--json", str(tmp_path / "r.json")]) == 0
    written = json.loads((tmp_path / "r.json").read_text())
    assert [pair["names"] for pair in written["pairs"]] == [["reserved", "paged"], ["with the cache", "without"]]
    assert "ratio" in capsys.readouterr().out
