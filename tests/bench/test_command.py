"""`minipaged bench` itself: which benchmarks there are, and what a wrong call is told."""

import pytest

from minipaged.bench import command


def test_help_is_on_stdout(capsys: pytest.CaptureFixture) -> None:
    assert command.main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert ("kv" in out, err) == (True, "")


@pytest.mark.parametrize(("argv", "words"), [([], "usage: minipaged bench"), (["speed"], "unknown benchmark 'speed'")])
def test_a_wrong_call_says_what_there_is(capsys: pytest.CaptureFixture, argv: list[str], words: str) -> None:
    assert command.main(argv) == 2
    assert words in capsys.readouterr().err
