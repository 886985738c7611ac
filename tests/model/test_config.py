import json

import pytest

from minipaged.model import TINY_FOLDER, CheckpointError, ModelConfig


@pytest.fixture
def values() -> dict:
    return json.loads((TINY_FOLDER / "config.json").read_text())


def test_reads_the_names_of_hugging_face(values):
    config = ModelConfig.from_dict(values)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (4, 8, 2)
    assert config.eos_token_id == values["eos_token_id"]
    assert config.bos_token_id is None


def test_to_dict_and_back(values):
    config = ModelConfig.from_dict(values)
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_left_out_settings_take_llamas_defaults(values):
    for key in ("head_dim", "num_key_value_heads", "rope_theta", "tie_word_embeddings", "bos_token_id"):
        del values[key]
    config = ModelConfig.from_dict(values)
    assert config.head_dim == values["hidden_size"] // values["num_attention_heads"]
    assert config.num_kv_heads == config.num_heads
    assert config.rope_theta == 10000.0
    assert not config.tie_word_embeddings


def test_rope_theta_of_transformers_5(values):
    del values["rope_theta"]
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
    assert ModelConfig.from_dict(values).rope_theta == 500000.0


def test_several_end_tokens_keep_the_first(values):
    values["eos_token_id"] = [3, 5]
    assert ModelConfig.from_dict(values).eos_token_id == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None, "model_type": "bert"}, "bert"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"sliding_window": 512}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"hidden_size": 0}, "hidden_size = 0"),
        ({"vocab_size": "1024"}, "vocab_size = '1024'"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"head_dim": 33}, "head_dim = 33"),
    ],
)
def test_unsupported_setting_is_named(values, change, named):
    with pytest.raises(CheckpointError, match=r"somewhere/config\.json") as error:
        ModelConfig.from_dict(values | change, source="somewhere/config.json")
    assert named in str(error.value)


def test_missing_size_is_named(values):
    del values["intermediate_size"]
    with pytest.raises(CheckpointError, match="intermediate_size is missing"):
        ModelConfig.from_dict(values)


@pytest.mark.parametrize("text", ['{"architectures": ["Llama', "[1, 2]", "\x00\x01"])
def test_damaged_config_file(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_config_json_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON .*recursion"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize("value", [True, False, None, 0, 1])
def test_a_switch_is_true_or_false_or_left_out(values, value):
    assert ModelConfig.from_dict(values | {"mlp_bias": value}).mlp_bias is bool(value)
