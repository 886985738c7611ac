"""How fast decoding could be at best on a machine whose copy bandwidth and matrix rate were measured.

Every step reads all weights once and multiplies them with the step's rows; the slower of the two is the limit.
Everything else (attention, the KV cache, norms, sampling, Python) is taken to cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from minipaged.model.config import ModelConfig


def layer_weights(config: ModelConfig) -> int:
    """The numbers in the matrices of all layers."""
    attention = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim * config.hidden_size
    return config.num_layers * (attention + 3 * config.intermediate_size * config.hidden_size)


def head_weights(config: ModelConfig) -> int:
    """The numbers in the matrix that makes logits."""
    return config.vocab_size * config.hidden_size


def products(config: ModelConfig, rows: int) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of the large products of a step, whose rate is to be measured."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return [(rows, hidden, 2 * inner), (rows, inner, hidden), (rows, hidden, config.num_heads * config.head_dim)]


def least_seconds(
    config: ModelConfig,
    prompt_tokens: int,
    lengths: Sequence[int],
    bytes_per_weight: int,
    bytes_per_second: float,
    operations_per_second: float,
) -> float:
    """The least time for a batch of equal prompts and given output lengths, without padding.

    Step 0 computes all prompts and everybody's first token; in step k those compute whose output is longer than k.
    """
    layers, head = layer_weights(config), head_weights(config)
    reading = (layers + head) * bytes_per_weight / bytes_per_second
    seconds = 0.0
    for step in range(max(lengths)):
        sequences = sum(length > step for length in lengths)
        rows = sequences * prompt_tokens if step == 0 else sequences
        computing = 2 * (rows * layers + sequences * head) / operations_per_second
        seconds += max(reading, computing)
    return seconds
