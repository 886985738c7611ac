"""Shards, memory, and checkpoints that must be refused: by name, and before any weight is read."""

import json
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from minipaged.model import CheckpointError, LlamaModel, ModelConfig, load_model
from minipaged.model.checkpoint import INDEX, checkpoint_shapes, places
from minipaged.model.loader import save_checkpoint
from minipaged.model.train_tiny import write_json
from tests.model.checkpoints import FAMILIES, make_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("saved") / "checkpoint", "qwen2", num_hidden_layers=2)


@pytest.fixture
def folder(saved, tmp_path):
    """A sharded checkpoint to damage."""
    for file in saved.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def shards(folder):
    return sorted(folder.glob("model-*.safetensors"))


def shard_with(folder, name: str):
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def change_shard(file, change) -> None:
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


def change_config(folder, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refused(folder, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_missing_shard(folder):
    file = shards(folder)[1]
    file.unlink()
    count = len(shards(folder)) + 1
    refused(folder, rf"{file.name} does not exist: 1 of the {count} shards that {re.escape(INDEX)} names")


def test_truncated_shard(folder):
    file = shards(folder)[-1]
    file.write_bytes(file.read_bytes()[:-1])
    refused(folder, rf"{file.name} \(\d+ bytes\) cannot be read as safetensors.*Copy the file again")


def test_missing_tensor_of_several_shards(folder):
    name = "model.layers.1.self_attn.k_proj.bias"
    change_shard(shard_with(folder, name), lambda weights: weights.pop(name))
    refused(folder, rf"{folder.name} \(\d+ shards\): 1 of 27 tensors are missing, the first is '{name}'")


def test_tensor_in_two_shards(folder):
    name = "model.norm.weight"
    source = shard_with(folder, name)
    other = next(file for file in shards(folder) if file != source)
    change_shard(other, lambda weights: weights.update({name: torch.ones(64)}))
    first, second = sorted([source.name, other.name])
    refused(folder, f"tensor '{name}' stands in {first} and in {second}")


def test_tensor_without_a_place(folder):
    name = "model.layers.0.self_attn.o_proj.bias"
    change_shard(shards(folder)[0], lambda weights: weights.update({name: torch.ones(64)}))
    refused(folder, f"{shards(folder)[0].name}: 1 tensors have no place .* the first is '{name}'")


def test_tensor_of_another_shape(folder):
    name = "model.layers.0.self_attn.v_proj.bias"
    change_shard(shard_with(folder, name), lambda weights: weights.update({name: torch.ones(64)}))
    refused(folder, rf"'{name}' has shape \[64\], config.json asks for \[32\]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "weight_map must give"),
        ('{"weight_map": []}', "weight_map must give"),
        ('{"weight_map": {"model.norm.weight": 3}}', "weight_map must give"),
        ('{"weight_map": {"model.norm.weight": "../other/model.safetensors"}}', "a file in the same folder"),
        ('{"weight_map": {"model.norm.weight": "/etc/passwd"}}', "a file in the same folder"),
        ('{"weight_map": ', "is not valid JSON"),
    ],
)
def test_bad_index(folder, text, message):
    (folder / INDEX).write_text(text)
    refused(folder, rf"model\.safetensors\.index\.json.*{message}")


def test_one_file_counts_more_than_an_index(folder, saved):
    saved.model.save_pretrained(folder, max_shard_size="1GB")
    for file in shards(folder):
        file.unlink()
    load_model(folder)


def test_head_of_a_tied_model(tmp_path):
    checkpoint = make_checkpoint(tmp_path, "llama", max_shard_size="1GB", tie_word_embeddings=True)
    file, embedding = tmp_path / "model.safetensors", checkpoint.model.model.embed_tokens.weight
    change_shard(file, lambda weights: weights.update({"lm_head.weight": embedding.clone()}))
    load_model(tmp_path)
    change_shard(file, lambda weights: weights.update({"lm_head.weight": embedding + 1}))
    refused(tmp_path, "config.json says tie_word_embeddings, but lm_head.weight is not the embedding")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "architecture Qwen2MoeForCausalLM, .*It runs LlamaForCausalLM"),
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
        ({"architectures": ["Gemma2ForCausalLM"]}, "Gemma2ForCausalLM"),
        ({"architectures": []}, r"none given \(model_type 'qwen2'\)"),
        ({"architectures": 3}, "architecture 3"),
        ({"layer_types": [["full_attention"], 2]}, "layer_types = .* expected a list of 2 entries"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers = 1000.* expected a positive integer of at most 10,000"),
        ({"num_hidden_layers": 2 * 10**9}, "num_hidden_layers = 2000000000; .* of at most 10,000"),
        ({"intermediate_size": 2**31}, "intermediate_size = 2147483648; expected a positive integer below 2\\^31"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'; expected true or false, without quotes"),
        ({"use_sliding_window": "false"}, "use_sliding_window = 'false'; expected true or false"),
        ({"use_sliding_window": 2}, "use_sliding_window = 2; expected true or false"),
        (
            {"head_dim": 128, "max_position_embeddings": 2**22},
            "tables of 4,194,304 positions would take 4.0 GiB, more than 2. .* at most 2,097,152",
        ),
        (
            {"head_dim": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "head_dim = 2 is too small for RoPE scaling 'dynamic'; it needs 4 or more",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}},
            "rope_theta = 1; yarn needs more than 1",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 32}},
            "'yarn': beta_fast = 1 must not be less than beta_slow = 32",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": "false"}},
            "'yarn': truncate = 'false'; expected true or false",
        ),
        ({"max_position_embeddings": 2**25}, r"3.355e\+07 tokens are longer than 16777216 \(2\^24\)"),
        ({"num_experts": 4}, "num_experts = 4"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config = {'quant_method': 'awq'}"),
        ({"hidden_act": "gelu_pytorch_tanh"}, r"hidden_act 'gelu_pytorch_tanh' \(only 'silu'\)"),
        ({"mlp_bias": True}, "type qwen2: mlp_bias = True"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "RoPE scaling 'longrope'"),
        ({"use_sliding_window": True, "sliding_window": 0, "layer_types": None}, "sliding_window = 0"),
        ({"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention"]}, "2 entries"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer 1 a sliding window, but use_sliding_window"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": None, "max_window_layers": -1},
            "max_window_layers = -1",
        ),
        ({"rms_norm_eps": 0}, "rms_norm_eps = 0"),
        ({"eos_token_id": 5000}, "eos_token_id holds 5000; expected token ids between 0 and 1099"),
        ({"hidden_size": 66}, "hidden_size = 66 is no multiple of num_attention_heads = 4"),
    ],
)
def test_unsupported_is_named_before_weights_are_read(folder, changes, named):
    for file in (*shards(folder), folder / "generation_config.json"):
        file.unlink()
    change_config(folder, **changes)
    refused(folder, named)


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("LlamaForCausalLM", {"sliding_window": 8}, "type llama: sliding_window = 8"),
        ("LlamaForCausalLM", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ("LlamaForCausalLM", {"attention_bias": "false"}, "attention_bias = 'false'; expected true or false"),
        ("LlamaForCausalLM", {"mlp_bias": "no"}, "mlp_bias = 'no'; expected true or false"),
        ("Qwen3ForCausalLM", {"attention_bias": [False]}, r"attention_bias = \[False\]; expected true or false"),
        ("MistralForCausalLM", {"layer_types": ["sliding_attention", "full_attention"]}, "type mistral: layer_types"),
    ],
)
def test_unsupported_in_this_family(folder, architecture, changes, named):
    values = {"sliding_window": None, "layer_types": None, "architectures": [architecture]}
    change_config(folder, **values | changes)
    refused(folder, named)


def test_defaults_of_transformers_where_config_json_leaves_out():
    values = {
        "vocab_size": 64, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 30,
        "num_attention_heads": 32, "max_position_embeddings": 256,
    }  # fmt: skip
    for family, name in FAMILIES.items():
        import transformers

        theirs = getattr(transformers, f"{name}Config")(**values)
        ours = ModelConfig.from_dict(values | {"architectures": [f"{name}ForCausalLM"]})
        assert ours.num_kv_heads == theirs.num_key_value_heads, family
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 2), family
        assert ours.rms_norm_eps == theirs.rms_norm_eps
        assert ours.sliding_window == (4096 if family == "mistral" else None)
    on = values | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    assert ModelConfig.from_dict(on).sliding_layers == (28, 29)


@pytest.mark.parametrize("family", FAMILIES)
def test_save_checkpoint_writes_what_transformers_reads(tmp_path, family):
    """The way back: minipaged's own folder, read by transformers."""
    source = make_checkpoint(tmp_path / "source", family, num_hidden_layers=2)
    model, _ = load_model(source.folder)
    save_checkpoint(model, tmp_path, torch.float32)
    write_json(tmp_path / "config.json", model.config.to_dict())
    again = type(source.model).from_pretrained(tmp_path, dtype=torch.float32)
    token_ids = torch.arange(40)[None]
    torch.testing.assert_close(again(token_ids).logits, source.model(token_ids).logits)
    assert ModelConfig.from_dict(model.config.to_dict()) == model.config


def test_places_cover_every_row_of_every_parameter_once():
    values = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True, "vocab_size": 7,
        "hidden_size": 12, "intermediate_size": 5, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_key_value_heads": 1, "max_position_embeddings": 8,
    }  # fmt: skip
    model = LlamaModel(ModelConfig.from_dict(values))
    rows = {name: torch.zeros(parameter.shape[0]) for name, parameter in model.named_parameters()}
    for place in places(model.config).values():
        rows[place.parameter][place.first_row : place.first_row + place.shape[0]] += 1
    assert all((count == 1).all() for count in rows.values())


def test_progress_bar_where_asked(folder, capsys):
    load_model(folder)  # not in a terminal
    assert capsys.readouterr().err == ""
    load_model(folder, progress=True)
    assert "Loading" in capsys.readouterr().err
    load_model(folder, progress=False)
    assert capsys.readouterr().err == ""


MEASURE = """
import sys
import minipaged, torch
from minipaged.model import load_model

def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

load_model("tiny")  # whatever is loaded once is loaded now
for dtype in (torch.bfloat16, torch.float32):
    model = None
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
    before = kilobytes("VmHWM")
    model, _ = load_model(sys.argv[1], dtype=dtype)
    print(kilobytes("VmHWM") - before, sum(weight.nbytes for weight in model.parameters()) // 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_weights_are_never_in_memory_twice(random_folder):
    """The peak of a process that loads 103 MB: the model and one tensor, not the model and the file."""
    config = ModelConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=2048, num_layers=6, num_heads=8, num_kv_heads=8,
        head_dim=64, max_position_embeddings=64, eos_token_id=0,
    )  # fmt: skip
    write_json(random_folder / "config.json", config.to_dict())
    save_file(
        {name: torch.ones(shape) for name, shape in checkpoint_shapes(config).items()},
        random_folder / "model.safetensors",
    )
    command = [sys.executable, "-c", MEASURE, str(random_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        peak, weights = map(int, line.split())
        assert weights > 50_000
        assert peak < weights + 12_000  # the largest tensor is 4 MB
    assert len(done.stdout.splitlines()) == 2
