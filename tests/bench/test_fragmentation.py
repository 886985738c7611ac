"""`minipaged bench fragmentation`: four rows beside the paper's, a picture, the figures as JSON, clear refusals."""

import json
import os

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
    # So spread that only paging fills its pool: three rows of zeros would say nothing.
    assert main(["fragmentation", "--requests", "50", "--sigma", "60", "--png", str(tmp_path / "x.png")]) == 2
    assert "oracle" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--requests", "0"], "--requests is 0"),
        (["--sigma", "-1"], "--sigma is -1.0"),
        (["--sigma", "nan"], "--sigma is nan"),
        (["--sigma", "inf"], "--sigma is inf"),
        (["--allocator", "magic"], "invalid choice: 'magic'"),
        (["--png", "nowhere/x.png"], "nowhere/x.png; it must name a file in a folder that exists"),
        (["--png", "x.txt"], "x.txt; give a file name that ends in .png"),
        (["--png", "."], "--png is .; give a file name"),
        (["--json", "nowhere/x.json"], "--json is nowhere/x.json"),
        (["--scaling", "--json", "x.json"], "--scaling only prints a table"),
    ],
)
def test_wrong_arguments_are_named_before_the_run(wrong, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["fragmentation", *wrong])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message.replace("/", os.sep) in error
    assert list(tmp_path.iterdir()) == []


def test_scaling_has_a_line_for_each_size(capsys):
    assert main(["fragmentation", "--requests", "300", "--scaling"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["3", "30", "300"]
