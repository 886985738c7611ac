"""The numbers that describe a Llama-family decoder, read from a checkpoint's `config.json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)
_SIZES = {  # our name → the name in config.json; each must be a positive integer
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_position_embeddings": "max_position_embeddings",
}
_MUST_BE_OFF = ("attention_bias", "mlp_bias", "quantization_config", "sliding_window")


class CheckpointError(ValueError):
    """A checkpoint folder cannot be loaded; the message names the file, what is wrong, and the way out."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Llama-family decoder. The fields' names are Hugging Face's, with `num_layers`, `num_heads` and
    `num_kv_heads` for its three longer ones.

    Query head h reads key/value head h // (num_heads / num_kv_heads): grouped-query attention (GQA).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    eos_token_id: int | None = None
    bos_token_id: int | None = None

    @classmethod
    def from_folder(cls, path: str | Path) -> "ModelConfig":
        """Read `config.json` of a checkpoint folder. Raises CheckpointError if it is missing or unsuitable."""
        file = Path(path) / "config.json"
        if not file.is_file():
            raise CheckpointError(
                f"{file} does not exist: a checkpoint folder holds config.json, model.safetensors and "
                f'tokenizer.json. Give the path of such a folder, or "tiny" for the bundled model.'
            )
        return cls.from_dict(read_json(file), source=str(file))

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config.json") -> "ModelConfig":
        """Build from the contents of a `config.json`. Raises CheckpointError naming each unsupported setting."""
        _refuse_unsupported(values, source)
        sizes = {ours: _positive_int(values, theirs, source) for ours, theirs in _SIZES.items()}
        values = {key: value for key, value in values.items() if value is not None}
        num_heads, hidden_size = sizes["num_heads"], sizes["hidden_size"]
        num_kv_heads = _positive_int(values, "num_key_value_heads", source, default=num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"{source}: num_attention_heads = {num_heads} is no multiple of num_key_value_heads = "
                f"{num_kv_heads}; each key/value head must serve the same number of query heads."
            )
        head_dim = _positive_int(values, "head_dim", source, default=hidden_size // num_heads)
        if head_dim % 2:
            raise CheckpointError(f"{source}: head_dim = {head_dim} is odd; RoPE rotates pairs, so it must be even.")
        eos = values.get("eos_token_id")
        return cls(
            **sizes,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope_theta=float(_rope_parameters(values).get("rope_theta", values.get("rope_theta", 10000.0))),
            rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
            eos_token_id=eos[0] if isinstance(eos, list) else eos,
            bos_token_id=values.get("bos_token_id"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The contents of a `config.json` that describes this model to transformers and vLLM."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "eos_token_id": self.eos_token_id,
            "bos_token_id": self.bos_token_id,
            "pad_token_id": None,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
        }


def read_json(file: Path) -> dict[str, Any]:
    """Parse a JSON object, or raise CheckpointError with the place where it breaks off."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{file} is not valid JSON ({error}): the file is truncated or damaged. Copy the checkpoint again."
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds a {type(values).__name__}; expected a JSON object {{…}}.")
    return values


def _rope_parameters(values: dict[str, Any]) -> dict[str, Any]:
    """RoPE settings: `rope_parameters` in checkpoints of transformers 5, `rope_scaling` in older ones."""
    return values.get("rope_parameters") or values.get("rope_scaling") or {}


def _refuse_unsupported(values: dict[str, Any], source: str) -> None:
    """Name every setting that this decoder would silently compute wrongly."""
    architectures = values.get("architectures") or []
    problems = []
    if not set(architectures) & set(SUPPORTED_ARCHITECTURES):
        name = ", ".join(architectures) or f"none given (model_type {values.get('model_type')!r})"
        problems.append(f"architecture {name}")
    if values.get("hidden_act", "silu") != "silu":
        problems.append(f"hidden_act {values['hidden_act']!r} (only 'silu')")
    rope = _rope_parameters(values)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        problems.append(f"RoPE scaling {rope_type!r} (only unscaled RoPE)")
    problems += [f"{key} = {values[key]!r}" for key in _MUST_BE_OFF if values.get(key)]
    if problems:
        raise CheckpointError(
            f"{source} asks for what this decoder does not compute: {'; '.join(problems)}. It runs "
            f"{', '.join(SUPPORTED_ARCHITECTURES)} without biases, unquantised, with unscaled RoPE. Choose such a "
            f'checkpoint, or "tiny".'
        )


def _positive_int(values: dict[str, Any], key: str, source: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = f"{key} = {value!r}" if key in values else f"{key} is missing"
        raise CheckpointError(f"{source}: {found}; expected a positive integer. Is this a Llama checkpoint?")
    return value
