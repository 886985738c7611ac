"""A small random-weight model for the tests of this room, and the bundled one, each loaded once."""

from pathlib import Path

import pytest
import torch

import minipaged  # noqa: F401  (first, so that transformers does not import triton before it)
from minipaged.model import TINY_FOLDER, LlamaModel, ModelConfig, load_model
from minipaged.model.loader import save_checkpoint
from minipaged.model.train_tiny import write_json


@pytest.fixture(autouse=True)
def one_thread():
    """These matrices are too small to share, and on a busy machine threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny():
    return load_model("tiny")


@pytest.fixture(scope="session")
def random_config() -> ModelConfig:
    """Odd sizes on purpose: untied head, three query heads a key/value head, head_dim ≠ hidden / heads."""
    return ModelConfig(
        vocab_size=1100, hidden_size=48, intermediate_size=80, num_layers=2, num_heads=6, num_kv_heads=2,
        head_dim=16, max_position_embeddings=128, rope_theta=5000.0, rms_norm_eps=1e-5, eos_token_id=0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def random_model(random_config: ModelConfig) -> LlamaModel:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = LlamaModel(random_config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
    return model.requires_grad_(False).eval()


@pytest.fixture
def random_folder(random_model: LlamaModel, tmp_path: Path) -> Path:
    """A whole checkpoint of the random model, in fp32, with the bundled tokenizer; tests damage it at will."""
    save_checkpoint(random_model, tmp_path, dtype=torch.float32)
    write_json(tmp_path / "config.json", random_model.config.to_dict())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TINY_FOLDER / name).read_bytes())
    return tmp_path
