"""The program, as one starts it: torchrun, two ranks, one text."""

import os
import subprocess
import sys

import pytest

from minipaged.parallel import generate

PROMPT = "Four score and seven years ago our"


@pytest.mark.parametrize("num_ranks", [2])
def test_the_text_of_one_rank(num_ranks: int, capsys: pytest.CaptureFixture) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    command = [*launcher, "-m", "minipaged.parallel.generate", PROMPT, "--attention", "reference"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    from minipaged.serving import generate_cli

    assert generate_cli.main([PROMPT, "--attention", "reference"]) == 0
    assert done.stdout == capsys.readouterr().out


def test_without_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert generate.main(["The"]) == 2
    assert "start this program with torchrun" in capsys.readouterr().err


def test_one_rank_needs_no_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    own = ["--tensor-parallel-attention", "tests.parallel.test_same_tokens:PluggedIn"]
    arguments = [PROMPT, "--attention", "reference", "--num-blocks", "20"]
    assert generate.main([*arguments, *own]) == 0
    assert "fathers brought forth" in capsys.readouterr().out
    for bad, words in (
        (["--tensor-parallel-attention", "minipaged.nowhere:Mine"], "minipaged.nowhere:Mine"),
        (["--tensor-parallel-attention", "minipaged.parallel:RankGroup"], "RankGroup"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--num-blocks", "0"], "num_blocks is 0"),
    ):
        assert generate.main([*arguments, *bad]) == 2
        assert words in capsys.readouterr().err
