"""Whole checkpoints load; damaged, foreign and half ones are refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from minipaged.model import TINY_FOLDER, CheckpointError, load_model
from minipaged.model.loader import checkpoint_shapes, save_checkpoint


def test_saved_checkpoint_loads_to_the_same_weights(random_model, random_folder):
    model, tokenizer = load_model(random_folder)
    expected = random_model.state_dict()
    assert model.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert tokenizer.encode("A block table") == load_model("tiny")[1].encode("A block table")


def test_loaded_model_is_whole_and_ready(tiny):
    model, _ = tiny
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert not any(weight.requires_grad for weight in model.parameters())
    assert model.dtype == torch.float32
    assert not model.training


def test_bundled_file_is_16_bit_and_holds_what_its_config_says(tiny):
    weights = load_file(TINY_FOLDER / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == checkpoint_shapes(tiny[0].config)


def test_saving_the_bundled_model_gives_the_bundled_file(tiny, tmp_path):
    save_checkpoint(tiny[0], tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (TINY_FOLDER / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64])
def test_unusable_dtype(dtype):
    with pytest.raises(ValueError, match=f"dtype {dtype} is not one of"):
        load_model("tiny", dtype=dtype)


@pytest.mark.parametrize("name", ["./nowhere", "nowhere", "/no/where", "no/where/at-all", "../no/where", "-a/b", ""])
def test_folder_that_does_not_exist(name):
    with pytest.raises(CheckpointError, match=f"no checkpoint folder {name!r}.*Hugging Face hub such as"):
        load_model(name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_file_is_named(random_folder, name):
    (random_folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} does not exist"):
        load_model(random_folder)


def test_folder_of_something_else(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("other", "way_out"),
    [
        ("model.gguf", "GGUF"),
        ("pytorch_model.bin", "pickles"),
        ("unrelated.txt", "copy it again"),
    ],
)
def test_weights_in_another_form_say_how_to_convert(random_folder, other, way_out):
    (random_folder / "model.safetensors").rename(random_folder / other)
    with pytest.raises(CheckpointError, match=way_out):
        load_model(random_folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 10_000, -1])
def test_truncated_weights(random_folder, keep):
    file = random_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors \(\d+ bytes\) cannot be read.*truncated"):
        load_model(random_folder)


def test_git_lfs_pointer(random_folder):
    (random_folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        load_model(random_folder)


def change_weights(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_missing_tensor_is_named(random_folder):
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(random_folder, lambda weights: weights.pop(name))
    with pytest.raises(CheckpointError, match=f"1 of 21 tensors are missing, the first is '{name}'"):
        load_model(random_folder)


def test_missing_head_of_an_untied_model(random_folder):
    change_weights(random_folder, lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        load_model(random_folder)


def test_tensors_of_a_foreign_model(random_folder):
    save_file({"bert.pooler.weight": torch.zeros(2)}, random_folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"21 of 21 tensors are missing.*1 tensors are there"):
        load_model(random_folder)


def test_wrong_shape_is_named(random_folder):
    name = "model.layers.0.self_attn.k_proj.weight"
    change_weights(random_folder, lambda weights: weights.update({name: torch.zeros(16, 48)}))
    with pytest.raises(CheckpointError, match=rf"'{name}' has shape \[16, 48\], config.json asks for \[32, 48\]"):
        load_model(random_folder)


def test_config_of_another_model(random_folder):
    file = random_folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_size": 96}))
    with pytest.raises(CheckpointError, match="belong to different models"):
        load_model(random_folder)


def test_more_tokens_than_embeddings(random_folder):
    file = random_folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 1000}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has 1024 tokens.*vocab_size 1000"):
        load_model(random_folder)


def test_tensors_that_would_be_left_out(random_folder):
    name = "model.layers.0.self_attn.q_proj.bias"
    change_weights(random_folder, lambda weights: weights.update({name: torch.zeros(48)}))
    with pytest.raises(CheckpointError, match=f"1 tensors have no place .* the first is '{name}'"):
        load_model(random_folder)


def test_quantised_weights(random_folder):
    name = "model.layers.0.mlp.up_proj.weight"
    change_weights(random_folder, lambda weights: weights.update({name: weights[name].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=f"'{name}' is stored as I8; minipaged reads"):
        load_model(random_folder)


def test_unneeded_tensors_are_no_problem(random_folder):
    change_weights(random_folder, lambda weights: weights.update({"model.rotary_emb.inv_freq": torch.zeros(8)}))
    load_model(random_folder)
