"""The committed results' pictures say what the files say."""

import json
from pathlib import Path

import pytest

from minipaged.course.bench_results import committed, draw_ratios
from minipaged.course.errors import CourseError
from minipaged.results import NotAResult, ratios

RESULTS = sorted(path.stem for path in (Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("name", RESULTS)
def test_every_committed_result_can_be_drawn(name: str) -> None:
    result = committed(name)
    told = str(draw_ratios(name)).splitlines()
    assert told[0].startswith(f"benchmarks/results/{name}.json · {result['machine']['processor']}")
    assert [float(line.rsplit(": ", 1)[1]) for line in told[1:]] == [round(r, 2) for r in ratios(result, name).values()]


def test_rows_can_be_left_out() -> None:
    all_rows, fewer = (str(draw_ratios("attention", *names)).splitlines() for names in ([], ["gather"]))
    assert 0 < len(fewer) < len(all_rows)
    assert not any("gather" in line for line in fewer)
    with pytest.raises(CourseError, match="every row of 'attention' has 'q' in its name"):
        draw_ratios("attention", "q")


def test_an_unknown_name_and_a_damaged_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CourseError, match=r"no result 'gpu' in .*; there are: attention, "):
        draw_ratios("gpu")
    from minipaged.course import bench_results

    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    monkeypatch.setattr(bench_results, "course_root", lambda: tmp_path)
    with pytest.raises(CourseError, match="there are: none"):
        draw_ratios("kv")
    (tmp_path / "benchmarks" / "results" / "kv.json").write_text(json.dumps({"seconds": {"row": 3}}))
    with pytest.raises(NotAResult, match="measurements are damaged"):
        draw_ratios("kv")
