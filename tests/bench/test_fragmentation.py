"""`minipaged bench fragmentation`: four rows beside the paper's, a picture, the figures as JSON, clear refusals."""

import json

import pytest

from minipaged.bench import main


def test_bars_picture_and_json(tmp_path, capsys):
    png, figures = tmp_path / "bars.png", tmp_path / "bars.json"
    assert main(["fragmentation", "--requests", "150", "--png", str(png), "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    assert "(20.4)" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("max", "pow2", "oracle", "paged"))] == [
        "max",
        "pow2",
        "oracle",
        "paged",
    ]
    assert png.read_bytes().startswith(b"\x89PNG")
    read = json.loads(figures.read_text())
    assert read["settings"]["requests"] == 150
    assert sum(read["results"]["oracle"]["shares"].values()) == pytest.approx(100)


def test_refusals(tmp_path, capsys):
    assert main(["fragmentation", "--requests", "2", "--png", str(tmp_path / "x.png")]) == 2
    assert "never fill the pool" in capsys.readouterr().err
    for wrong in (["--requests", "0"], ["--sigma", "-1"], ["--allocator", "magic"]):
        with pytest.raises(SystemExit):
            main(["fragmentation", *wrong])


def test_scaling_has_a_line_for_each_size(capsys):
    assert main(["fragmentation", "--requests", "300", "--scaling"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["3", "30", "300"]
