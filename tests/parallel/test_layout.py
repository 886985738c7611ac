"""Who holds what, and which numbers of ranks a model allows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.model import ModelConfig
from minipaged.parallel import ParallelLayout, ParallelSizeError
from minipaged.parallel.shard import shard_slices

LLAMA_8B = ModelConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8,
    head_dim=128, max_position_embeddings=8192,
)  # fmt: skip


@given(kv_heads=st.integers(1, 8), group=st.integers(1, 8), num_ranks=st.integers(1, 64))
def test_every_query_head_finds_its_kv_head_on_its_rank(kv_heads: int, group: int, num_ranks: int) -> None:
    config = replace(LLAMA_8B, num_heads=kv_heads * group, num_kv_heads=kv_heads, intermediate_size=64 * 27 * 25 * 49)
    if config.num_heads % num_ranks or (kv_heads % num_ranks and num_ranks % kv_heads):
        with pytest.raises(ParallelSizeError, match=f"on {num_ranks} ranks"):
            ParallelLayout(config, num_ranks)
        return
    layout = ParallelLayout(config, num_ranks)
    dealt = [head for rank in range(num_ranks) for head in layout.heads(rank)]
    assert dealt == list(range(config.num_heads))
    kept = [head for rank in range(num_ranks) for head in layout.kv_heads(rank)]
    assert sorted(set(kept)) == list(range(kv_heads))
    assert len(kept) == max(kv_heads, num_ranks) == kv_heads * layout.ranks_per_kv_head
    part = layout.config_of_a_rank()
    for rank in range(num_ranks):
        read = [
            layout.kv_heads(rank)[local // (part.num_heads // part.num_kv_heads)] for local in range(part.num_heads)
        ]
        assert read == [head // group for head in layout.heads(rank)]


@pytest.mark.parametrize(
    ("num_ranks", "kib"), [(1, 128), (2, 64), (4, 32), (8, 16), (16, 16), (32, 16)]
)  # more ranks than KV heads: copied, not halved
def test_bytes_per_token_and_rank(num_ranks: int, kib: int) -> None:
    layout = ParallelLayout(LLAMA_8B, num_ranks)
    assert layout.kv_bytes_per_token(itemsize=2) == kib * 1024
    assert layout.kv_bytes_per_block(16, itemsize=2) == 16 * kib * 1024


def test_bytes_of_the_all_reduce() -> None:
    two, one = ParallelLayout(LLAMA_8B, 2), ParallelLayout(LLAMA_8B, 1)
    assert two.all_reduces_per_step() == 64
    assert two.all_reduce_bytes(num_tokens=1, itemsize=2) == 8192
    assert two.all_reduce_bytes_per_step(10, itemsize=2) == 64 * 10 * 8192
    assert two.ring_bytes_per_step(10, itemsize=2) == 64 * 10 * 8192
    assert ParallelLayout(LLAMA_8B, 4).ring_bytes_per_step(10, itemsize=2) == 64 * 10 * 8192 * 3 // 2
    assert one.all_reduces_per_step() == one.all_reduce_bytes(10) == one.ring_bytes_per_step(10) == 0


@pytest.mark.parametrize(
    ("changes", "num_ranks", "words"),
    [
        ({}, 3, "on 3 ranks: num_attention_heads = 32 is no multiple of 3. It runs on 1, 2, 4, 8, 16 or 32."),
        ({"num_heads": 12, "num_kv_heads": 3}, 2, "num_key_value_heads = 3 is neither a multiple of 2"),
        ({"num_heads": 12, "num_kv_heads": 6}, 4, "num_key_value_heads = 6 is neither a multiple of 4"),
        ({"intermediate_size": 15}, 2, "intermediate_size = 15 is no multiple of 2. It runs on 1 rank only."),
        ({}, 0, "num_ranks is 0"),
        ({}, True, "num_ranks is True"),
    ],
)
def test_impossible_sizes(changes: dict, num_ranks: int, words: str) -> None:
    with pytest.raises(ParallelSizeError) as caught:
        ParallelLayout(replace(LLAMA_8B, **changes), num_ranks)
    assert words in str(caught.value)


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="rank is 2; there are 2 ranks, 0 … 1"):
        ParallelLayout(LLAMA_8B, 2).kv_heads(2)


def test_the_table_of_who_holds_what() -> None:
    layout = ParallelLayout(replace(LLAMA_8B, num_heads=8, num_kv_heads=2), 4)
    assert layout.rows()[2:] == [
        {"rank": 2, "query heads": "4–5", "KV heads": "1"},
        {"rank": 3, "query heads": "6–7", "KV heads": "1"},
    ]


def test_a_rank_reads_its_slices_only() -> None:
    slices = shard_slices(ParallelLayout(replace(LLAMA_8B, o_bias=True, qkv_bias=True), 16), 3)
    layer = "model.layers.5."
    assert slices[layer + "self_attn.q_proj.weight"] == (slice(768, 1024), slice(0, 4096))
    assert slices[layer + "self_attn.k_proj.weight"] == (slice(128, 256), slice(0, 4096))  # head 1, as rank 2
    assert slices[layer + "self_attn.v_proj.bias"] == (slice(128, 256),)
    assert slices[layer + "self_attn.o_proj.weight"] == (slice(0, 4096), slice(768, 1024))
    assert slices[layer + "self_attn.o_proj.bias"] == (slice(0, 4096),)  # added once, to the sum
    assert slices[layer + "mlp.up_proj.weight"] == (slice(2688, 3584), slice(0, 4096))
    assert slices[layer + "mlp.down_proj.weight"] == (slice(0, 4096), slice(2688, 3584))
    assert slices["model.embed_tokens.weight"] == (slice(0, 128256), slice(0, 4096))
