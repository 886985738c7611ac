"""Each RoPE scaling against transformers, beyond the original length, in both spellings of config.json."""

import json

import pytest
import torch

from minipaged.model import CheckpointError, ModelConfig, load_model
from tests.model.checkpoints import assert_same_as_transformers, make_checkpoint, random_prompts, run_engine

ORIGINAL = 48
LONG = [100, 20, 47]
SCALINGS = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn, every setting": {
        "factor": 8.0, "original_max_position_embeddings": ORIGINAL, "attention_factor": 1.3, "beta_fast": 4.0,
        "beta_slow": 0.5, "truncate": False,
    },
    "yarn, mscale": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, "mscale": 1.0, "mscale_all_dim": 0.5},
    "dynamic": {"factor": 4.0},
}  # fmt: skip


def length_in_config(rope_type: str) -> int:
    return ORIGINAL if rope_type in ("linear", "dynamic") else 256


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    made = {}

    def get(name: str):
        if name not in made:
            rope_type = name.split(",")[0]
            made[name] = make_checkpoint(
                tmp_path_factory.mktemp("rope") / "checkpoint", "qwen3" if rope_type == "yarn" else "llama",
                rope_parameters={"rope_type": rope_type, "rope_theta": 5000.0, **SCALINGS[name]},
                max_position_embeddings=length_in_config(rope_type), num_hidden_layers=2,
            )  # fmt: skip
        return made[name]

    return get


def reload(folder, settings: dict):
    values = json.loads((folder / "config.json").read_text())
    values.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(values | settings))
    return load_model(folder)[0]


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "dynamic"])
def test_logits_beyond_the_original_length(checkpoints, name):
    assert_same_as_transformers(checkpoints(name), random_prompts(LONG))


def test_dynamic_equals_transformers_token_by_token(checkpoints):
    """transformers turns all keys of a call by its longest position; token by token each key has its own."""
    checkpoint = checkpoints("dynamic")
    prompts = random_prompts(LONG)
    tokens, logits = run_engine(checkpoint.folder, prompts, 64)
    for prompt, answer, row in zip(prompts, tokens, logits, strict=True):
        # A short sequence resets the frequencies that the last long one left behind.
        checkpoint.model(torch.tensor([[1]]))
        cache, expected = None, []
        for token in prompt + answer[:-1]:
            out = checkpoint.model(torch.tensor([[token]]), cache=cache, use_cache=True)
            cache = out.cache
            expected.append(out.logits[0, -1])
        expected = torch.stack(expected)[len(prompt) - 1 :]
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=0)
        assert answer == expected.argmax(-1).tolist()


def test_dynamic_is_plain_up_to_the_original_length(checkpoints):
    assert_same_as_transformers(checkpoints("dynamic"), random_prompts([20, 5]), max_tokens=ORIGINAL - 20)


def test_dynamic_does_not_depend_on_chunks(checkpoints):
    prompts = random_prompts([100])
    whole = run_engine(checkpoints("dynamic").folder, prompts, 8)[0]
    assert run_engine(checkpoints("dynamic").folder, prompts, 8, max_num_batched_tokens=16)[0] == whole


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_older_spelling(checkpoints, tmp_path, name, key):
    """rope_theta and rope_scaling, as transformers 4 wrote them: the same angles."""
    source = checkpoints(name).folder
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    new = load_model(source)[0]
    old = reload(tmp_path, {"rope_theta": 5000.0, "rope_scaling": {key: name.split(",")[0], **SCALINGS[name]}})
    assert torch.equal(new.rope.cos, old.rope.cos)
    assert torch.equal(new.rope.sin, old.rope.sin)
    assert new.config == old.config


@pytest.mark.parametrize("name", SCALINGS)
def test_config_survives_to_dict(checkpoints, name):
    config = ModelConfig.from_folder(checkpoints(name).folder)
    assert ModelConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("rope_type", "extra", "length"),
    [
        ("linear", {}, 4 * 256),
        ("dynamic", {}, 4 * 256),
        ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ("yarn", {"original_max_position_embeddings": 64}, 256),
        ("yarn", {"original_max_position_embeddings": 256}, 4 * 256),
    ],
)
def test_longest_sequence(rope_type, extra, length):
    values = config_values() | {"rope_scaling": {"rope_type": rope_type, "factor": 4.0, **extra}}
    assert ModelConfig.from_dict(values).max_position_embeddings == length


def config_values() -> dict:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 256,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "RoPE scaling 'longrope'.*default, linear"),
        ({"rope_scaling": {"type": "su"}}, "RoPE scaling 'su'"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [4, 4]}}, "mrope_section"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear'; expected an object"),
        ({"rope_scaling": {"type": "linear"}}, "'linear': factor is missing; expected a number of at least 1"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor = 0.5; expected a number of at least 1"),
        ({"rope_scaling": {"type": "dynamic", "factor": "2"}}, "factor = '2'"),
        ({"rope_scaling": {"type": "yarn", "factor": float("nan")}}, "factor = nan"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0, "high_freq_factor": 4.0}}, "low_freq_factor is missing"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
            "high_freq_factor = 4.0 must be greater than low_freq_factor = 4.0",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": -1}}, "beta_fast = -1"),
        ({"rope_theta": 0}, "rope_theta = 0; expected a number greater than 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "big"}}, "rope_theta = 'big'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, r"each kind of layer \(full_attention\)"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "yarn"}},
            "two RoPE scalings",
        ),
    ],
)
def test_what_cannot_be_computed_is_named(settings, named):
    with pytest.raises(CheckpointError, match=named):
        ModelConfig.from_dict(config_values() | settings)
