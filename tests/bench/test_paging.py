"""`minipaged bench paging`: the work is what it says, and the ratio is that of the pairs."""

import json
from pathlib import Path

import pytest

from minipaged.bench import paging
from minipaged.bench.command import main
from minipaged.model import load_model
from minipaged.workloads import log_normal_lengths, sharegpt_like


def test_requests_have_the_lengths_of_the_workload_and_are_repeatable() -> None:
    lengths = sharegpt_like(50)
    prompts, outputs = paging.requests_of(lengths, 512)
    assert (prompts, outputs) == paging.requests_of(lengths, 512)
    assert [(len(p), n) for p, n in zip(prompts, outputs, strict=True)] == [
        (one.prompt_tokens, one.output_tokens) for one in lengths
    ]
    assert max(len(p) + n for p, n in zip(prompts, outputs, strict=True)) <= paging.LONGEST
    assert all(0 < token < 512 for prompt in prompts for token in prompt)


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
    calls.clear()
    numbers = iter([0, 0, 1, 2])
    values = paging.alternate([lambda: side("a"), lambda: side("b")], 1, [lambda: side("c"), lambda: side("d")])
    assert (calls, values) == (["c", "d", "a", "b"], ([1], [2]))


def test_the_prefix_cache_computes_the_suffix_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PREFIX", 64)
    monkeypatch.setattr(paging, "SUFFIX", 16)
    pair = paging.prefix_pair(load_model("tiny"), requests=2, rounds=1)
    assert (pair.facts["tokens with"], pair.facts["tokens without"]) == (2 * 16, 2 * 80)
    assert pair.facts["token ratio"] == 5
    assert 80**2 / (80**2 - 64**2) < pair.facts["arithmetic ratio"] < 5  # between attention's ratio and the tokens'
    assert "at best 5.0, as the tokens; " in paging.table([pair])


def test_the_arithmetic_of_a_prompt_by_hand() -> None:
    config = load_model("tiny")[0].config
    per_pair = 4 * config.num_layers * config.num_heads * config.head_dim
    head = 2 * config.vocab_size * config.hidden_size  # once, for the last token
    third = paging.prefill_operations(config, 2, 3) - head  # it attends to itself and to two before it
    per_token = third - 3 * per_pair
    assert paging.prefill_operations(config, 0, 3) == 3 * per_token + (1 + 2 + 3) * per_pair + head


def test_both_sides_of_the_reservation_generate_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "LONGEST", 128)
    monkeypatch.setattr(paging, "WARM_UP", 1)
    lengths = log_normal_lengths(5, 12, 20, max_length=128)
    pair = paging.reservation_pair(load_model("tiny"), "nobody", lengths, reserved=2, rounds=1)
    assert min(*pair.values[0], *pair.values[1]) > 0
    assert (pair.facts["slots"], pair.facts["requests"]) == (256, 5)
    assert pair.facts["output tokens"] == sum(one.output_tokens for one in lengths)
    assert pair.what == "5 requests like nobody's in memory for 2 requests of 128 tokens"


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
    monkeypatch.setattr(paging, "prefix_shape", lambda: SHAPES["standard"])
    monkeypatch.setattr(paging, "PREFIX", 32)
    assert main(["paging", "--requests", "1", "--rounds", "1", "--json", str(tmp_path / "r.json")]) == 0
    written = json.loads((tmp_path / "r.json").read_text())
    assert [len(pair["values"][0]) for pair in written["pairs"]] == [1] * 4 + [paging.PREFIX_ROUNDS]
    assert [pair["names"] for pair in written["pairs"]] == [["reserved", "paged"]] * 4 + [["with the cache", "without"]]
    assert "ratio" in capsys.readouterr().out
