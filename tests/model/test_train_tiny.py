"""Two steps of training: it runs, it repeats itself byte for byte, and it makes the bundled tokenizer."""

import sys

import pytest
import torch

from minipaged.model import TINY_FOLDER, load_model, train_tiny

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in folders:
        torch.manual_seed(hash(folder))  # training must not depend on the state it finds
        train_tiny.train(folder, steps=2)
    return folders


def test_two_runs_write_the_same_bytes(runs):
    first, second = runs
    assert sorted(file.name for file in first.iterdir()) == FILES
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_run_makes_all_bundled_files_but_the_weights(runs):
    for name in FILES:
        if name != "model.safetensors":
            assert (runs[0] / name).read_bytes() == (TINY_FOLDER / name).read_bytes()


def test_the_result_loads(runs):
    model, tokenizer = load_model(runs[0])
    assert model.forward_dense(torch.tensor(tokenizer.encode("A block"))).isfinite().all()


def test_training_learns(tmp_path, monkeypatch, capsys):
    """Both phases, short and long sequences, in small; the loss falls."""
    for name, value in {"TOKENS_PER_STEP": 256, "SHORT": 64, "LONG": 128, "WARMUP_STEPS": 5, "THREADS": 1}.items():
        monkeypatch.setattr(train_tiny, name, value)
    train_tiny.train(tmp_path, steps=30)
    losses = [float(line.split()[5]) for line in capsys.readouterr().out.splitlines()]
    assert losses[0] > 6.5
    assert losses[-1] < losses[0] - 1.5


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_tiny", "--out", str(tmp_path / "new"), "--steps", "1"])
    threads = torch.get_num_threads()
    train_tiny.main()
    assert torch.get_num_threads() == threads  # put back as it was
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == FILES
    monkeypatch.setattr(sys, "argv", ["train_tiny", "--steps", "0"])
    with pytest.raises(SystemExit):
        train_tiny.main()
    assert "--steps is 0" in capsys.readouterr().err


def test_learning_rate_rises_then_falls_to_zero():
    rates = [train_tiny.learning_rate(step, 1000) for step in range(1000)]
    peak = rates.index(max(rates))
    assert peak == train_tiny.WARMUP_STEPS - 1
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < rates[peak] / 1000
