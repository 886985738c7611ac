"""RoPE: the angle by which each pair of elements is turned at each position, and the ways to stretch it.

A model is trained up to some length. Beyond it, angles turn up that it never saw; a RoPE scaling turns them back into
the known range. The formulas are those of transformers' `modeling_rope_utils`; the tests hold the two together.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minipaged.model import ops
from minipaged.model.settings import CheckpointError, positive_number, switch

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
_LENGTH_IS_STRETCHED = ("linear", "dynamic")  # their config.json gives the length before scaling


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE is stretched. The fields' names are those of config.json.

    linear   every angle divided by `factor`: positions are squeezed together (kaiokendev, 2023)
    dynamic  a larger theta, which grows with the position ("NTK-aware", bloc97 and emozilla, 2023)
    llama3   slow pairs divided by `factor`, fast ones untouched, a smooth passage between (Llama 3.1, 2024)
    yarn     as llama3, with a linear ramp over the pairs, and cos and sin times `attention_factor` (Peng et al., 2023)
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def max_positions(self, max_position_embeddings: int) -> int:
        """The longest sequence, given config.json's max_position_embeddings.

        As in vLLM 0.32, linear and dynamic multiply it. llama3 and yarn checkpoints give the length after scaling;
        some yarn ones do not (Qwen2.5's README adds the scaling only), so the product counts where it is larger.
        """
        stretched = int(self.original_max_position_embeddings * self.factor)
        if self.rope_type in _LENGTH_IS_STRETCHED or self.rope_type == "yarn":
            return max(max_position_embeddings, stretched)
        return max_position_embeddings

    def to_dict(self) -> dict[str, Any]:
        """These settings as config.json's `rope_parameters`."""
        names = {
            "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
            "yarn": ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"),
        }
        own = {name: getattr(self, name) for name in names.get(self.rope_type, ())}
        return {"rope_type": self.rope_type, "factor": self.factor, **own}


def read_rope(values: dict[str, Any], max_positions: int, source: str) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from config.json, in its older spelling (`rope_theta`, `rope_scaling`) or transformers 5's
    (`rope_parameters`). Raises CheckpointError for a type or a value that cannot be computed."""
    rope = _rope_settings(values, source)
    rope_type = _rope_type(rope)
    where = f"{source}: RoPE scaling {rope_type!r}"
    theta = positive_number(rope if rope.get("rope_theta") is not None else values, "rope_theta", source, 10000.0)
    if rope_type == "default":
        return theta, None
    if rope_type == "yarn" and theta <= 1:
        raise CheckpointError(f"{source}: rope_theta = {theta:g}; yarn needs more than 1. Copy config.json again.")
    factor = positive_number(rope, "factor", where, low=1.0)
    if rope_type in _LENGTH_IS_STRETCHED:
        return theta, RopeScaling(rope_type, factor, max_positions)
    original_key = "original_max_position_embeddings"
    original = int(positive_number(values if original_key in values else rope, original_key, where, max_positions, 1.0))
    own = _read_llama3(rope, where) if rope_type == "llama3" else _read_yarn(rope, factor, where)
    return theta, RopeScaling(rope_type, factor, original, **own)


def _rope_settings(values: dict[str, Any], source: str) -> dict[str, Any]:
    """The object with the RoPE settings, whichever its name. Refuses what the decoder does not compute."""
    old, new = values.get("rope_scaling") or {}, values.get("rope_parameters") or {}
    for name, given in (("rope_scaling", old), ("rope_parameters", new)):
        if not isinstance(given, dict):
            raise CheckpointError(f'{source}: {name} = {given!r}; expected an object such as {{"rope_type": …}}.')
    if old and new and _rope_type(old) != _rope_type(new):
        raise CheckpointError(
            f"{source} gives two RoPE scalings, rope_scaling = {old} and rope_parameters = {new}: delete the wrong one."
        )
    rope = new | old
    nested = [key for key, value in rope.items() if isinstance(value, dict)]
    part = rope.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    problem = None
    if nested:
        problem = f"RoPE settings for each kind of layer ({', '.join(nested)})"
    elif "mrope_section" in rope:
        problem = f"RoPE over several axes (mrope_section = {rope['mrope_section']!r})"
    elif _rope_type(rope) not in ROPE_TYPES:
        problem = f"RoPE scaling {_rope_type(rope)!r}"
    elif part not in (None, 1):
        problem = f"partial_rotary_factor = {part!r}"
    if problem:
        raise CheckpointError(
            f"{source} asks for {problem}, which minipaged does not compute. It turns whole heads, in all layers "
            f"alike, with RoPE of the type {', '.join(ROPE_TYPES)}: choose such a checkpoint."
        )
    return rope


def _read_llama3(rope: dict[str, Any], where: str) -> dict[str, Any]:
    low, high = (positive_number(rope, name, where) for name in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise CheckpointError(f"{where}: high_freq_factor = {high} must be greater than low_freq_factor = {low}.")
    return {"low_freq_factor": low, "high_freq_factor": high}


def _read_yarn(rope: dict[str, Any], factor: float, where: str) -> dict[str, Any]:
    def number(name: str, default: float | None = None) -> float:
        return positive_number(rope, name, where, default)

    def mscale(weight: float) -> float:  # how much sharper attention must be at `factor` times the length
        return 0.1 * weight * math.log(factor) + 1.0

    inferred = mscale(1.0)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        inferred = mscale(number("mscale")) / mscale(number("mscale_all_dim"))
    fast, slow = number("beta_fast", 32.0), number("beta_slow", 1.0)
    if fast < slow:
        raise CheckpointError(f"{where}: beta_fast = {fast:g} must not be less than beta_slow = {slow:g}.")
    return {
        "attention_factor": number("attention_factor", inferred),
        "beta_fast": fast,
        "beta_slow": slow,
        "truncate": switch(rope, "truncate", where, default=True),
    }


def _rope_type(rope: dict[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


class RotaryEmbedding(nn.Module):
    """RoPE (Su et al., 2021): turn each pair (x[i], x[i + D/2]) by the angle position · theta^(−2i/D).

    The cosines and sines of all positions are computed once. In fp32, as transformers and vLLM do: a checkpoint is
    trained with these very roundings, which at position 4000 are 10⁻⁴ rad away from float64.
    """

    def __init__(self, head_dim: int, max_positions: int, theta: float, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        # The device is named, so that these tables are real also when the model is built on "meta".
        positions = torch.arange(max_positions, dtype=torch.float32, device="cpu")
        angles = (positions[:, None] * frequencies(head_dim, positions, theta, scaling)).repeat(1, 2)
        factor = scaling.attention_factor if scaling else 1.0
        self.register_buffer("cos", angles.cos() * factor, persistent=False)
        self.register_buffer("sin", angles.sin() * factor, persistent=False)

    def lookup(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions [T], each [T, 1, D]. A position outside the table is an IndexError."""
        # index_select refuses negative positions, where plain indexing would count from the end.
        cos, sin = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        return cos.unsqueeze(1), sin.unsqueeze(1)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn x [..., T, heads, D] by the angles of its positions."""
        return ops.rotate(x, cos, sin)


def frequencies(head_dim: int, positions: Tensor, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Angle a position of each pair: fp32 [D/2], or [positions, D/2] where it depends on the position."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / theta**exponents
    if scaling is None:
        return plain
    if scaling.rope_type == "linear":
        return plain / scaling.factor
    if scaling.rope_type == "dynamic":
        return _dynamic(head_dim, positions, theta, scaling, exponents)
    return (_llama3 if scaling.rope_type == "llama3" else _yarn)(head_dim, theta, scaling, plain)


def _dynamic(head_dim: int, positions: Tensor, theta: float, scaling: RopeScaling, exponents: Tensor) -> Tensor:
    """The theta of a position is that of a sequence that ends there.

    transformers takes the longest sequence of each call. But KV blocks are shared between requests and computed in
    pieces, so here a key may depend on its own position only. The result is that of transformers up to the original
    length, and beyond it wherever transformers computes token by token, as in decoding.
    """
    length = (positions + 1).clamp(min=scaling.original_max_position_embeddings)
    growth = scaling.factor * length / scaling.original_max_position_embeddings - (scaling.factor - 1)
    return 1.0 / (theta * growth ** (head_dim / (head_dim - 2)))[:, None] ** exponents


def _llama3(head_dim: int, theta: float, scaling: RopeScaling, plain: Tensor) -> Tensor:
    """Pairs that turn fully less than `low` times in the original length are divided, more than `high` times kept."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


def _yarn(head_dim: int, theta: float, scaling: RopeScaling, plain: Tensor) -> Tensor:
    """Pairs before `first` are kept, after `last` divided; a straight ramp in between."""

    def pair_that_turns(times: float) -> float:
        length = scaling.original_max_position_embeddings
        return head_dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    last += 0.001 if first == last else 0
    divided = ((torch.arange(head_dim // 2, dtype=torch.float32, device="cpu") - first) / (last - first)).clamp(0, 1)
    return divided * plain / scaling.factor + (1 - divided) * plain
