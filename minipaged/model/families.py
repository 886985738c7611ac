"""The architectures that the decoder computes, in what they differ, and the settings that it does not compute."""

from dataclasses import dataclass, field
from typing import Any

from minipaged.model.settings import CheckpointError, positive_int, switch


@dataclass(frozen=True)
class Family:
    """In what an architecture differs from Llama.

    defaults   what transformers assumes where config.json leaves a setting out
    switches   the settings that config.json may switch on
    qkv_bias   the query, key and value projections always have a bias
    qk_norm    an RMSNorm on each head's query and key, before RoPE
    """

    model_type: str
    defaults: dict[str, int | None] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES = {
    "LlamaForCausalLM": Family("llama", switches=("attention_bias", "mlp_bias")),
    "MistralForCausalLM": Family(
        "mistral", {"num_key_value_heads": 8, "sliding_window": 4096}, switches=("sliding_window",)
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2",
        {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
        switches=("sliding_window", "use_sliding_window"),
        qkv_bias=True,
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        switches=("attention_bias", "sliding_window", "use_sliding_window"),
        qk_norm=True,
    ),
}
# Each of these changes what is computed, or how weights are stored.
_ALWAYS_OFF = ("quantization_config", "num_experts", "num_local_experts", "is_encoder_decoder")
_SWITCHES = ("attention_bias", "mlp_bias", "sliding_window", "use_sliding_window")
LAYER_TYPES = ("full_attention", "sliding_attention")


def read_architecture(values: dict[str, Any], source: str) -> str:
    given = values.get("architectures") or []
    given = given if isinstance(given, list) else [given]
    known = [name for name in map(str, given) if name in FAMILIES]
    if not known:
        name = ", ".join(map(str, given)) or f"none given (model_type {values.get('model_type')!r})"
        raise CheckpointError(
            f"{source} asks for architecture {name}, which minipaged does not compute. It runs {', '.join(FAMILIES)}, "
            f'unquantised: choose such a checkpoint, or "tiny".'
        )
    return known[0]


def refuse_unsupported(values: dict[str, Any], family: Family, source: str) -> None:
    """Name every setting that this decoder would silently compute wrongly."""
    problems = []
    if values.get("hidden_act", "silu") != "silu":
        problems.append(f"hidden_act {values['hidden_act']!r} (only 'silu')")
    off = (*_ALWAYS_OFF, *(name for name in _SWITCHES if name not in family.switches))
    if family.model_type in ("mistral", "qwen2"):  # transformers does not read it there; the weights have no such bias
        off = tuple(name for name in off if name != "attention_bias")
    problems += [f"{key} = {values[key]!r}" for key in off if values.get(key)]
    if "use_sliding_window" not in family.switches and not _is_all_full(values.get("layer_types")):
        problems.append(f"layer_types = {values['layer_types']!r}")
    if problems:
        raise CheckpointError(
            f"{source} asks for what minipaged does not compute in a model of type {family.model_type}: "
            f"{'; '.join(problems)}. Choose an unquantised checkpoint of {', '.join(FAMILIES)} without it."
        )


def _is_all_full(layer_types: Any) -> bool:
    return layer_types is None or (
        isinstance(layer_types, list) and all(kind == "full_attention" for kind in layer_types)
    )


def read_sliding(
    values: dict[str, Any], family: Family, num_layers: int, source: str
) -> tuple[int | None, tuple[int, ...]]:
    """(window, layers that have it). Mistral: all layers. Qwen: those of layer_types, or from max_window_layers on."""
    by_layer = "use_sliding_window" in family.switches
    on = "sliding_window" in family.switches and (not by_layer or switch(values, "use_sliding_window", source))
    window = positive_int(values, "sliding_window", source) if on and values["sliding_window"] is not None else None
    layers = range(num_layers)
    if by_layer and values.get("layer_types") is not None:
        kinds = values["layer_types"]
        if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in LAYER_TYPES for kind in kinds):
            raise CheckpointError(
                f"{source}: layer_types = {kinds!r}; expected a list of {num_layers} entries (one a layer), each "
                f"{' or '.join(map(repr, LAYER_TYPES))}."
            )
        layers = tuple(layer for layer in layers if kinds[layer] == "sliding_attention")
        if layers and window is None:
            raise CheckpointError(
                f"{source}: layer_types gives layer {layers[0]} a sliding window, but use_sliding_window is off or "
                f"sliding_window is null. Set both, or make all layers 'full_attention'."
            )
    elif by_layer and window is not None:
        first = values["max_window_layers"]
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise CheckpointError(f"{source}: max_window_layers = {first!r}; expected a layer's number, from 0 on.")
        layers = layers[first:]
    return (window, tuple(layers)) if window is not None and layers else (None, ())
