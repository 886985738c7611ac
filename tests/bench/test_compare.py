"""`minipaged bench compare`: ratios by hand, what is told, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from minipaged.bench import compare
from minipaged.bench.command import main

MACHINE = {"processor": "A", "cores": 2, "torch": "2.13"}
ROW = "batch 8, equal lengths"
RESULTS: dict[str, dict] = {
    "kv": {
        "machine": MACHINE,
        "seconds": {
            "replay": {"minipaged": [1.0, 2.0, 3.0], "vLLM 0.32.0": [4.0, 4.0, 9.0]},
            "hash": {"minipaged": [1.0]},
        },
    },
    "generate": {
        "machine": MACHINE,
        "settings": {"model": "standard", "dtype": "float32", "threads": 1, "rounds": 3, "block_size": 32},
        "lengths": {ROW: [64] * 8},
        "seconds": {ROW: {"minipaged 0.1.0": [1.0, 2.0, 4.0], "vLLM 0.32.0": [3.0, 2.0, 8.0]}},
        "limit_seconds": {ROW: 0.5},
    },
    "attention": {
        "machine": MACHINE,
        "settings": {"device": "cpu", "repeats": 30},
        "rows": [
            {"work": "8q1s1k", "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32", "threads": 1,
             "candidate": "cpu", "baseline": "contiguous", "ratio": 0.8},
        ],
    },
    "paging": {
        "machine": MACHINE,
        "settings": {"requests": 64, "rounds": 3, "threads": 1},
        "pairs": [
            {"what": "requests", "names": ["reserved", "paged"], "unit": "output tokens/s", "ratio": 2.5},
            {"what": "prompts", "names": ["with", "without"], "unit": "ms to the first token", "ratio": 4.0},
        ],
    },
}  # fmt: skip
EXPECTED = {
    "kv": {"replay | vLLM": 2.0},
    "generate": {f"{ROW} | vLLM": 2.0, f"{ROW} | the machine's limit": 0.25},
    "attention": {"8q1s1k 8/2 D 64 float32, 1 thread(s), cpu | contiguous": 1.25},
    "paging": {"requests | paged beside reserved": 2.5, "prompts | with beside without": 4.0},
}


def slower(kind: str, by: float) -> dict:
    """The same file, in which we take `by` times as long."""
    result = copy.deepcopy(RESULTS[kind])
    for columns in result.get("seconds", {}).values():
        ours = next(iter(columns))
        columns[ours] = [by * seconds for seconds in columns[ours]]
    for row in result.get("rows", []):
        row["ratio"] *= by
    for pair in result.get("pairs", []):
        pair["ratio"] /= by
    return result


def written(tmp_path: Path, *results: object) -> list[str]:
    paths = [tmp_path / f"{number}.json" for number in range(len(results))]
    for path, result in zip(paths, results, strict=True):
        path.write_text(json.dumps(result))
    return list(map(str, paths))


@pytest.mark.parametrize("kind", RESULTS)
def test_ratios_by_hand(kind: str) -> None:
    assert compare.kind_of(RESULTS[kind], "x") == kind
    assert compare.ratios(RESULTS[kind], "x") == pytest.approx(EXPECTED[kind])


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize(("by", "status"), [(1.0, 0), (0.5, 0), (1.1, 0), (1.25, 1)])
def test_what_fell_by_more_than_the_tolerance_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture, kind: str, by: float, status: int
) -> None:
    assert main(["compare", *written(tmp_path, RESULTS[kind], slower(kind, by))]) == status
    out, err = capsys.readouterr()
    number = len(EXPECTED[kind])
    assert out.splitlines()[-1].startswith(f"{number * status} of {number} ratio")
    assert [line.endswith("  fell") for line in out.splitlines()[1 : number + 1]] == [status == 1] * number
    assert (f"{100 / by - 100:+.0f} %" in out, err) == (True, "")


def test_the_tolerance_is_a_choice(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    files = written(tmp_path, RESULTS["paging"], slower("paging", 1.25))  # fell by exactly a fifth
    assert main(["compare", *files, "--tolerance", "0.25"]) == 0
    assert main(["compare", *files, "--tolerance", "0.19"]) == 1
    assert "2 of 2 ratios fell by more than 19 %" in capsys.readouterr().out


def test_only_the_ratio_counts_on_another_machine_and_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    new = slower("generate", 1.0)
    new["machine"] = {**MACHINE, "processor": "B", "numba": "0.65"}
    new["settings"]["rounds"] = 5
    new["limit_seconds"][ROW] *= 10
    new["seconds"][ROW] = {
        name.replace("0.32", "0.33"): [10 * second for second in seconds]
        for name, seconds in new["seconds"][ROW].items()
    }
    assert main(["compare", *written(tmp_path, RESULTS["generate"], new)]) == 0
    out = capsys.readouterr().out
    for line in ("processor: A, then B", "numba: None, then 0.65", "rounds: 3, then 5"):
        assert f"different: {line}" in out
    assert "measured: minipaged 0.1.0, vLLM 0.32.0, then minipaged 0.1.0, vLLM 0.33.0" in out
    assert "+0 %" in out


def test_rows_of_one_file_only_are_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    new = slower("kv", 1.0)
    new["seconds"]["free 10"] = {"minipaged": [1.0], "vLLM 0.32.0": [2.0]}
    files = written(tmp_path, RESULTS["kv"], new)
    assert main(["compare", *files]) == 0
    assert f"only in {files[1]}: free 10 | vLLM" in capsys.readouterr().out


def _changed(kind: str, *path: str, value: object) -> dict:
    result = copy.deepcopy(RESULTS[kind])
    part = result
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return result


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (RESULTS["kv"], RESULTS["paging"], "0.json is of bench kv, "),
        (RESULTS["kv"], {"machine": MACHINE}, "1.json is no result of minipaged bench attention, generate, kv, paging"),
        ([1], RESULTS["kv"], "0.json is no result of minipaged bench"),
        (RESULTS["kv"], _changed("kv", "seconds", value={"hash": {"minipaged": [1.0]}}), "no row with a ratio"),
        (RESULTS["kv"], _changed("kv", "seconds", value={"hash": {"a": [], "b": []}}), "are damaged"),
        (RESULTS["kv"], _changed("kv", "seconds", value=3), "looks like a result of bench kv, but"),
        (RESULTS["paging"], _changed("paging", "pairs", value=[{"what": "x"}]), "are damaged"),
        (RESULTS["generate"], _changed("generate", "settings", "model", value="larger"),
         "they did different work: model is standard, then larger"),
        (RESULTS["generate"], _changed("generate", "lengths", ROW, value=[8] * 8),
         "they did different work: the output lengths of 'batch 8, equal lengths'"),
        (RESULTS["paging"], _changed("paging", "settings", "requests", value=8), "requests is 64, then 8"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_together_are_refused_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture, old: object, new: object, words: str
) -> None:
    assert main(["compare", *written(tmp_path, old, new)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("minipaged bench compare: ")
    assert words in err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (good,) = written(tmp_path, RESULTS["kv"])
    (tmp_path / "text.json").write_text("no")
    for name, words in (("none.json", "cannot be read: No such file"), ("text.json", "is not JSON")):
        assert main(["compare", good, str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["compare", good, good, "--tolerance", "1"])
    assert "--tolerance is 1.0" in capsys.readouterr().err


RUNS = sorted(Path(__file__).parents[2].glob("benchmarks/results/*.json"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_the_committed_results_can_be_compared(path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", str(path), str(path)]) == 0
    assert "0 of " in capsys.readouterr().out
