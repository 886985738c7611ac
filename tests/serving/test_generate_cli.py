"""``minipaged generate``: only the text on stdout, one clear line for what is wrong."""

from __future__ import annotations

import json

import pytest
import torch

from minipaged import LLM
from minipaged.cli import main

PROMPT = "Four score and seven years ago our"


def run(capsys, *arguments):
    status = main(["generate", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--attention", "reference"],
        ["--attention", "triton"],
        ["--block-size", 1],
        ["--block-size", 5],
        ["--num-blocks", 1],
        ["--no-prefix-caching"],
        ["--preemption", "swap"],
        ["--no-chunked-prefill"],
    ],
    ids=str,
)
def test_prints_the_text_and_nothing_else(capsys, options):
    assert run(capsys, PROMPT, "--max-tokens", 3, "--temperature", 0, *options) == (0, " fathers brought forth\n", "")


def test_samples_are_numbered(capsys):
    arguments = (PROMPT, "--max-tokens", 6, "--n", 3, "--temperature", 0.8, "--seed", 1)
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert [line[:2] for line in out.splitlines()] == ["1:", "2:", "3:"]
    assert run(capsys, *arguments)[1] == out


@pytest.mark.parametrize("how", [["--n", 4, "--temperature", 0.8, "--seed", 1], ["--beam", 4]], ids=str)
def test_stats_tell_what_sharing_saves(capsys, how):
    status, out, _ = run(capsys, PROMPT, "--max-tokens", 9, "--block-size", 4, "--stats", *how)
    assert status == 0
    for words in ("blocks shared", "copies made", "memory saved"):
        assert words in out
    status, out, _ = run(capsys, PROMPT, "--max-tokens", 9, "--block-size", 4, "--stats", "--json", *how)
    stats = json.loads(out)["stats"]
    assert stats["num_forks"] >= 3
    assert stats["num_copied_blocks"] >= 3
    assert stats["peak_shared_blocks"] >= 1
    assert 0 < stats["memory_saved"] < 1


def test_beam_shows_scores(capsys):
    status, out, _ = run(capsys, PROMPT, "--max-tokens", 4, "--beam", 2)
    assert status == 0
    assert out.startswith("1: (score -0.")


def test_several_prompts(capsys):
    status, out, _ = run(capsys, PROMPT, PROMPT, "--max-tokens", 1)
    assert (status, out) == (0, " fathers\n\n fathers\n")


def test_trace_goes_to_stderr(capsys):
    _, out, err = run(capsys, PROMPT, "--max-tokens", 1, "--trace")
    assert out == " fathers\n"
    assert "admit" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "the prompt is empty"),
        ([PROMPT, "--max-tokens", 0], "max_tokens is 0; allowed is at least 1"),
        ([PROMPT, "--max-tokens", 100, "--num-blocks", 3], "need 7 blocks of 16 tokens, but the pool has 3"),
        ([PROMPT, "--max-tokens", 5000], "the model's length is 4096"),
        ([PROMPT, "--block-size", 0], "block_size is 0"),
        ([PROMPT, "--block-size", -1], "block_size is -1"),
        ([PROMPT, "--num-blocks", 0], "num_blocks is 0; a pool needs at least 1"),
        ([PROMPT, "--attention", "flash"], "attention backend 'flash' is unknown"),
        ([PROMPT, "--model", "nowhere"], "there is no checkpoint folder 'nowhere'"),
        ([PROMPT, "--temperature", -1], "temperature is -1"),
        ([PROMPT, "--beam", 2, "--n", 3], "--beam searches, it does not draw"),
        ([PROMPT, "--beam", 0], "beam_width is 0"),
        ([PROMPT, ""], "the prompt is empty: there is no token to predict from; give at least 1 token (prompt 1 of 2)"),
        ([PROMPT, "--device", "tpu9"], "device is 'tpu9'; give"),
        ([PROMPT, "--num-blocks", 10**12], "lower num_blocks"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_what_is_wrong_in_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_gpu_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = run(capsys, PROMPT, "--device", "cuda")
    assert (status, out) == (2, "")
    assert "device is 'cuda', but this torch finds no GPU" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": None}, TypeError, "model is a NoneType; give"),
        ({"model": (1, 2)}, TypeError, "model is a tuple; give"),
        ({"dtype": "float32"}, TypeError, "dtype is 'float32'"),
        ({"check_integrity": "yes"}, TypeError, "check_integrity is 'yes'"),
    ],
    ids=str,
)
def test_arguments_of_the_wrong_kind_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        LLM(**arguments)
