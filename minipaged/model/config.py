"""The numbers that describe a decoder of the Llama kind, read from a checkpoint's `config.json`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minipaged.model.families import FAMILIES, LAYER_TYPES, read_architecture, read_sliding, refuse_unsupported
from minipaged.model.rope import RopeScaling, read_rope
from minipaged.model.settings import CheckpointError, positive_int, positive_number, read_json, switch

__all__ = ["CheckpointError", "ModelConfig", "read_json"]

LONGEST = 2**24
MOST_LAYERS = 10_000  # far above all models; every one is listed before the files are compared with the list
MOST_ROPE_BYTES = 2**31
_SIZES = {  # our name → the name in config.json; each must be a positive integer
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_position_embeddings": "max_position_embeddings",
}


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder. The fields' names are Hugging Face's, with `num_layers`, `num_heads` and
    `num_kv_heads` for its three longer ones.

    Query head h reads key/value head h // (num_heads / num_kv_heads): grouped-query attention (GQA).

    max_position_embeddings   the longest sequence; a RoPE scaling that stretches it is included
    qkv_bias, o_bias, mlp_bias   which projections add a bias
    sliding_window, sliding_layers   those layers see only the last `sliding_window` tokens
    stop_token_ids            tokens that end a text, beside eos_token_id
    generation                what generation_config.json recommends for sampling; used only where somebody asks
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
    architecture: str = "LlamaForCausalLM"
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    generation: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def from_folder(cls, path: str | Path) -> "ModelConfig":
        """Read `config.json` of a checkpoint folder, and `generation_config.json` where there is one.

        Raises CheckpointError if the first is missing or one of them is unsuitable.
        """
        file = Path(path) / "config.json"
        if not file.is_file():
            raise CheckpointError(
                f"{file} does not exist: a checkpoint folder holds config.json, model.safetensors and "
                f'tokenizer.json. Give the path of such a folder, or "tiny" for the bundled model.'
            )
        values = read_json(file)
        generation_file = file.with_name("generation_config.json")
        generation = read_json(generation_file) if generation_file.is_file() else {}
        if generation.get("eos_token_id") is not None:  # as in transformers and vLLM, the list that counts
            values["eos_token_id"] = generation["eos_token_id"]
        return cls.from_dict(values, source=str(file), generation=generation)

    @classmethod
    def from_dict(
        cls, values: dict[str, Any], source: str = "config.json", generation: dict[str, Any] | None = None
    ) -> "ModelConfig":
        """Build from the contents of a `config.json`. Raises CheckpointError naming each unsupported setting."""
        architecture = read_architecture(values, source)
        family = FAMILIES[architecture]
        refuse_unsupported(values, family, source)
        sizes = {ours: positive_int(values, theirs, source) for ours, theirs in _SIZES.items() if ours != "num_layers"}
        sizes["num_layers"] = positive_int(values, _SIZES["num_layers"], source, most=MOST_LAYERS)
        num_heads, hidden_size, num_layers = sizes["num_heads"], sizes["hidden_size"], sizes["num_layers"]
        values = family.defaults | values  # a null in config.json is a value, too
        num_kv_heads = positive_int(values, "num_key_value_heads", source, default=num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"{source}: num_attention_heads = {num_heads} is no multiple of num_key_value_heads = "
                f"{num_kv_heads}; each key/value head must serve the same number of query heads."
            )
        if values.get("head_dim") is None and hidden_size % num_heads:
            raise CheckpointError(
                f"{source}: hidden_size = {hidden_size} is no multiple of num_attention_heads = {num_heads}, and no "
                f"head_dim is given. Copy config.json again."
            )
        head_dim = positive_int(values, "head_dim", source, default=hidden_size // num_heads)
        if head_dim % 2:
            raise CheckpointError(f"{source}: head_dim = {head_dim} is odd; RoPE rotates pairs, so it must be even.")
        theta, scaling = read_rope(values, sizes["max_position_embeddings"], source)
        if scaling is not None:
            sizes["max_position_embeddings"] = scaling.max_positions(sizes["max_position_embeddings"])
        longest = sizes["max_position_embeddings"]
        if longest > LONGEST:
            raise CheckpointError(
                f"{source}: sequences of {longest:.4g} tokens are longer than {LONGEST} (2^24), up to which fp32 tells "
                f"positions apart. Correct max_position_embeddings, or the factor of RoPE."
            )
        rope_bytes = longest * head_dim * 8  # cos and sin of each position, in fp32
        if rope_bytes > MOST_ROPE_BYTES:
            fits = MOST_ROPE_BYTES // (head_dim * 8)
            raise CheckpointError(
                f"{source}: the RoPE tables of {longest:,} positions would take {rope_bytes / 2**30:.1f} GiB, more "
                f"than {MOST_ROPE_BYTES / 2**30:g}. Set max_position_embeddings to at most {fits:,} (with a RoPE "
                f"scaling, after its factor): shorter sequences are computed as before."
            )
        if scaling is not None and scaling.rope_type == "dynamic" and head_dim == 2:
            raise CheckpointError(
                f"{source}: head_dim = 2 is too small for RoPE scaling 'dynamic'; it needs 4 or more. Copy config.json "
                f"again."
            )
        sliding_window, sliding_layers = read_sliding(values, family, num_layers, source)
        ends = _end_tokens(values.get("eos_token_id"), sizes["vocab_size"], source)
        attention_bias = "attention_bias" in family.switches and switch(values, "attention_bias", source)
        return cls(
            **sizes,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope_theta=theta,
            rms_norm_eps=positive_number(values, "rms_norm_eps", source, 1e-6),
            tie_word_embeddings=switch(values, "tie_word_embeddings", source),
            eos_token_id=ends[0] if ends else None,
            bos_token_id=values.get("bos_token_id"),
            architecture=architecture,
            rope_scaling=scaling,
            qkv_bias=family.qkv_bias or attention_bias,
            o_bias=attention_bias,
            mlp_bias=switch(values, "mlp_bias", source),
            qk_norm=family.qk_norm,
            sliding_window=sliding_window,
            sliding_layers=sliding_layers,
            stop_token_ids=ends[1:],
            generation=generation or {},
        )

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer sees, the newest included; None: all."""
        return self.sliding_window if layer in self.sliding_layers else None

    def to_dict(self) -> dict[str, Any]:
        """The contents of a `config.json` that describes this model to transformers and vLLM."""
        return {
            "architectures": [self.architecture],
            "model_type": FAMILIES[self.architecture].model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self._positions_before_scaling(),
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "eos_token_id": [self.eos_token_id, *self.stop_token_ids] if self.stop_token_ids else self.eos_token_id,
            "bos_token_id": self.bos_token_id,
            "pad_token_id": None,
            "hidden_act": "silu",
            "attention_bias": self.o_bias,
            "mlp_bias": self.mlp_bias,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
            **({"rope_scaling": self.rope_scaling.to_dict()} if self.rope_scaling else {}),
            **self._sliding_settings(),
        }

    def _positions_before_scaling(self) -> int:
        stretched = self.rope_scaling and self.rope_scaling.rope_type in ("linear", "dynamic")
        return self.rope_scaling.original_max_position_embeddings if stretched else self.max_position_embeddings

    def _sliding_settings(self) -> dict[str, Any]:
        switches = FAMILIES[self.architecture].switches
        if "use_sliding_window" in switches and self.sliding_layers:
            kinds = [LAYER_TYPES[layer in self.sliding_layers] for layer in range(self.num_layers)]
            return {"use_sliding_window": True, "sliding_window": self.sliding_window, "layer_types": kinds}
        return {"sliding_window": self.sliding_window} if "sliding_window" in switches else {}


def _end_tokens(ends: Any, vocab_size: int, source: str) -> tuple[int, ...]:
    """The tokens that end a text: one, several or none."""
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    for token in listed:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{source} (or generation_config.json beside it): eos_token_id holds {token!r}; expected token ids "
                f"between 0 and {vocab_size - 1}."
            )
    return tuple(dict.fromkeys(listed))
