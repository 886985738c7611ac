"""`minipaged bench generate`: the same work for all, exact limits, engines that die, and one small run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minipaged.bench import main
from minipaged.bench.generate import run as generate_run
from minipaged.bench.generate import work
from minipaged.bench.generate.checkpoint import COMMON, SHAPES, make_checkpoint
from minipaged.bench.generate.limit import head_weights, layer_weights, least_seconds, products
from minipaged.bench.generate.run import add_limits, measure, memory_lines, ratio, table
from minipaged.bench.process import PeerProcess
from minipaged.model import load_model
from minipaged.model.config import ModelConfig

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path, SMALL)
    return tmp_path


# ── the checkpoint ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_checkpoint_that_others_can_read(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = load_model(folder)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([[5, 17, 299, 4]])
    with torch.inference_mode():
        torch.testing.assert_close(model.forward_dense(tokens), peer(tokens).logits, rtol=1e-4, atol=1e-4)
    text = "any text: é"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert AutoTokenizer.from_pretrained(folder).encode(text) == tokenizer.encode(text)
    assert tokenizer.decode(list(range(300)))  # every id has a text


def test_the_same_seed_gives_the_same_weights(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        make_checkpoint(tmp_path / name, SMALL, "bfloat16", seed=3)
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert a == b


def test_the_standard_model_is_what_it_says():
    config = ModelConfig.from_dict({**COMMON, **SHAPES["standard"]})
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (4, 512, 8, 2)
    assert (config.head_dim, config.intermediate_size, config.vocab_size) == (64, 1024, 512)


# ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows():
    rows = work.rows([1, 8, 32], 16, 512)
    assert rows == work.rows([1, 8, 32], 16, 512)
    assert list(rows) == [
        "batch 1, equal lengths",
        "batch 8, equal lengths",
        "batch 32, equal lengths",
        "batch 8, ragged lengths",
        "batch 32, ragged lengths",
    ]
    for name, row in rows.items():
        assert {len(prompt) for prompt in row["prompts"]} == {16}
        assert all(0 < token < 512 for prompt in row["prompts"] for token in prompt)
        assert all(8 <= length <= 64 for length in row["lengths"])
        assert (len(set(row["lengths"])) == 1) == ("equal" in name)
        assert len({tuple(prompt) for prompt in row["prompts"]}) == len(row["prompts"])


def test_the_machine_shows_what_it_can():
    looked = work.measure_machine(2**20, [(2, 64, 64)], "float32")
    assert looked["bytes_per_second"] > 1e6
    assert looked["operations_per_second"] > 1e6


def test_limits_in_exact_figures():
    config = ModelConfig.from_dict({**COMMON, **SMALL})
    # q and o: 4 heads of 32 from 64; k and v: 2 heads; three matrices of 64 × 96
    layers, head = 2 * (64 * 32 * (4 + 4 + 2 + 2) + 3 * 64 * 96), 300 * 64
    assert (layer_weights(config), head_weights(config)) == (layers, head)
    assert products(config, 8) == [(8, 64, 192), (8, 96, 64), (8, 64, 128)]
    # Only reading counts: two steps read every weight once, at 4 bytes
    reading = least_seconds(config, 16, [2, 1], 4, bytes_per_second=1000.0, operations_per_second=1e30)
    assert reading == pytest.approx(2 * (layers + head) * 4 / 1000)
    # Only computing counts: step 0 has 32 rows and two sequences, step 1 has one of each
    computing = least_seconds(config, 16, [2, 1], 4, bytes_per_second=1e30, operations_per_second=1000.0)
    assert computing == pytest.approx(2 * (33 * layers + 3 * head) / 1000)


# ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────

ENGINE = """
import json, sys, time
sys.path.insert(0, {work!r})
import work
print("a note of its own")
given = json.loads(sys.argv[-1])
def generate(prompts, lengths):
    if given["how"] == "dies":
        raise ValueError("out of luck")
    cut = 1 if given["how"] == "cheats" else 0
    return [[given["token"]] * (length - cut) for length in lengths]
if given["how"] == "mute":
    sys.exit(3)
work.peak_bytes = lambda: 7 * 10**6
work.measure_machine = lambda **asked: {{"bytes_per_second": 1e6, "operations_per_second": 1e6}}
work.serve("fake " + given["how"], generate)
"""


def fake(tmp_path: Path, how: str = "well", token: int = 1) -> PeerProcess:
    script = tmp_path / f"{how}.py"
    script.write_text(ENGINE.format(work=str(Path(work.__file__).parent)))
    return PeerProcess(sys.executable, script, json.dumps({"how": how, "token": token}))


def test_alternation_and_table(tmp_path, folder):
    rows = work.rows([1, 2], 4, 300)
    with fake(tmp_path) as ours, fake(tmp_path, "other", token=2) as theirs, fake(tmp_path, "equal") as equal:
        results = measure([ours, theirs, equal], rows, rounds=3, machine_question={"copy_bytes": 1})
    assert list(results["seconds"]) == list(rows)
    for columns in results["seconds"].values():
        assert [len(times) for times in columns.values()] == [3, 3, 3]
        assert list(columns) == ["fake well", "fake other", "fake equal"]
    assert results["same_tokens"]["batch 1, equal lengths"] == {"fake other": 0.0, "fake equal": 1.0}
    assert len(results["machine_speed"]) == 3 * len(rows)
    assert results["memory"] == {f"fake {name}": {"peak_bytes": 7 * 10**6} for name in ("well", "other", "equal")}
    add_limits(results, rows, ModelConfig.from_folder(folder), "float32")
    text = table(results, rows)
    assert text.count("batch") == 3
    assert "requests with the same tokens from fake other: 0 %" in text
    assert "0.0 GB/s (copy)" in text
    assert "memory of fake other: peak 7 MB" in text


def test_the_table_in_exact_figures(folder):
    rows = {"batch 1, equal lengths": {"prompts": [[1]], "lengths": [60]}}
    results = {
        "seconds": {"batch 1, equal lengths": {"ours": [1.0, 2.0, 3.0], "peer": [4.0, 4.0, 3.0]}},
        "same_tokens": {"batch 1, equal lengths": {"peer": 0.5}},
        "machine_speed": [{"bytes_per_second": 5e9, "operations_per_second": 7e9}],
        "limit_seconds": {"batch 1, equal lengths": 0.5},
    }
    line = table(results, rows).splitlines()[1].split()
    assert line[4:] == ["30", "(20–60)", "15", "(15–20)", "2.00", "120", "25", "%"]
    assert ratio([1.0, 2.0, 3.0], [4.0, 4.0, 3.0]) == 2.0


def test_memory_in_exact_figures():
    megabytes = {"peak_bytes": 412, "weight_bytes": 37, "pool_bytes": 3, "imported_bytes": 310}
    ours = {name: value * 10**6 for name, value in megabytes.items()}
    assert memory_lines({"ours": ours, "peer": {"peak_bytes": 1_234_000_000}, "windows": {"peak_bytes": None}}) == [
        "memory of ours: peak 412 MB = weights 37 + pool 3 + 372 for Python, torch and the rest, 310 of them before "
        "the model was loaded",
        "memory of peer: peak 1,234 MB",
    ]


def test_the_peak_is_that_of_this_process_and_stays():
    """64 MB more for a moment are seen afterwards; what the starting process held is not."""
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import work; before = work.peak_bytes();"
        "held = bytearray(b'x') * (64 << 20); del held; print(json.dumps([before, work.peak_bytes()]))"
    )
    held = bytearray(b"x") * (200 << 20)
    ran = subprocess.run(
        [sys.executable, "-c", program, str(Path(work.__file__).parent)], capture_output=True, text=True, check=True
    )
    before, after = json.loads(ran.stdout)
    assert len(held) > before
    assert after >= before + (60 << 20)


def test_our_engine_says_where_its_memory_is(folder):
    """Weights and pool by their own arithmetic; the rest is what Python and its packages take."""
    settings = {"folder": str(folder), "dtype": "float32", "threads": 1, "block_size": 16, "sequences": 3}
    rows = work.rows([3], work.PROMPT_TOKENS, 300)
    with generate_run.start("minipaged", sys.executable, settings) as engine:
        for asked in rows.values():
            engine.ask(json.dumps(asked))
        found = engine.ask(json.dumps({"memory": True}))
    config = ModelConfig.from_folder(folder)
    matrices = layer_weights(config) + head_weights(config)
    norms = (2 * config.num_layers + 1) * config.hidden_size
    angles = found["weight_bytes"] - 4 * (matrices + norms)  # RoPE's tables, one row a position
    assert 0 <= angles <= 2 * 8 * config.max_position_embeddings * config.head_dim
    slots = 3 * 5 * 16  # three sequences of 80 tokens, in blocks of 16
    assert found["pool_bytes"] == 2 * config.num_layers * slots * config.num_kv_heads * config.head_dim * 4
    assert found["peak_bytes"] > found["imported_bytes"] > 50 * 10**6
    rest = found["peak_bytes"] - found["weight_bytes"] - found["pool_bytes"] - found["imported_bytes"]
    assert rest < 600 * 10**6  # Numba and its compiler; nothing that grows with the model


@pytest.mark.parametrize(
    ("how", "words"), [("dies", "fake dies stopped: .*out of luck"), ("cheats", r"generated \[63\] tokens instead of")]
)
def test_an_engine_that_fails_is_named(tmp_path, how, words):
    with fake(tmp_path, how) as engine, pytest.raises(RuntimeError, match=words):
        measure([engine], work.rows([1], 4, 300), 1, {"copy_bytes": 1})


def test_an_engine_that_does_not_start(tmp_path, monkeypatch, folder, capsys):
    with pytest.raises(RuntimeError, match="mute stopped: without a word"):
        fake(tmp_path, "mute")
    monkeypatch.setattr(generate_run, "OURS", "no_such_script.py")
    assert main(["generate", "--model", str(folder), "--rounds", "1"]) == 2
    assert "minipaged could not be started" in capsys.readouterr().err


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_small_run_beside_transformers(folder, tmp_path, capsys):
    out = tmp_path / "generate.json"
    arguments = ["generate", "--model", str(folder), "--batches", "2", "--rounds", "1", "--against", "transformers"]
    assert main([*arguments, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "batch 2, ragged lengths" in printed
    assert "the same tokens from transformers" in printed
    read = json.loads(out.read_text())
    assert read["settings"]["threads"] == 1
    assert len(read["seconds"]["batch 2, equal lengths"]) == 2
    assert read["same_tokens"]["batch 2, equal lengths"].popitem()[1] == 1.0
    assert read["machine"]["torch"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batches", "0"], "--batches is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--python", "python"], "name the peer with --against"),
        (["--against", "vllm"], "needs --python"),
        (["--model", "huge"], "--model is 'huge'; give one of standard, larger"),
    ],
)
def test_a_wrong_call(arguments, words, capsys):
    with pytest.raises(SystemExit):
        main(["generate", *arguments])
    assert words in capsys.readouterr().err
