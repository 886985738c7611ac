"""`minipaged bench` itself: which benchmarks there are, and what a wrong call is told."""

import pytest

from minipaged.bench import command


def test_help_is_on_stdout(capsys: pytest.CaptureFixture) -> None:
    assert command.main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert ("kv" in out, err) == (True, "")


@pytest.mark.parametrize("name", ["kv", "attention", "fragmentation", "generate", "paging"])
@pytest.mark.parametrize(
    ("place", "words"),
    [("no/such/x.json", "a file in a folder that exists"), (".", "a file name that ends in .json")],
)
def test_a_file_that_cannot_be_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture, name: str, place: str, words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main([name, "--json", place])
    out, err = capsys.readouterr()
    assert out == ""
    assert f"--json is {place}; " in err
    assert words in err


@pytest.mark.parametrize(("argv", "words"), [([], "usage: minipaged bench"), (["speed"], "unknown benchmark 'speed'")])
def test_a_wrong_call_says_what_there_is(capsys: pytest.CaptureFixture, argv: list[str], words: str) -> None:
    assert command.main(argv) == 2
    assert words in capsys.readouterr().err
