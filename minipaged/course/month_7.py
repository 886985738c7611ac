"""Helpers of Month 7's lesson: a model's sizes, what a rank looks like inside, a rank that fails, and a pool that is
watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from minipaged.kv_cache import BlockPool, CacheRequest, KVCacheBlock, KVCacheManager
from minipaged.model import ModelConfig
from minipaged.parallel import RankGroup
from minipaged.serving import LLM, SamplingParams


def llama_3_1_70b() -> ModelConfig:
    """The sizes of Llama 3.1 70B, as its config.json has them. Only sizes: no weights."""
    return ModelConfig.from_dict(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        }
    )


def inside(runner: Any) -> dict[str, Any]:
    """What one rank has in memory: the shapes of layer 0's K cache and attention weights, and who decides here."""
    attention = runner.model.layers[0].self_attn
    return {
        "K cache of a layer": tuple(runner.storage.k_cache[0].shape),
        "qkv_proj": tuple(attention.qkv_proj.weight.shape),
        "o_proj": tuple(attention.o_proj.weight.shape),
        "has a manager": getattr(runner, "manager", None) is not None,
    }


def stumble(group: RankGroup) -> int:
    """What a rank does whose GPU is lost: rank 1 raises, and rank 0 waits for it in an all-reduce."""
    import torch

    if group.rank == 1:
        raise RuntimeError("the device was lost")
    return int(group.all_reduce(torch.ones(1)).item())


def watched_burst(pool_class: type) -> tuple[LLM, list[float]]:
    """Twelve requests at once on a pool of 24 blocks of one's own class; `manager.usage` as somebody sees it who looks
    before and after, but not in between."""
    llm = LLM("tiny", num_blocks=24, block_size=4, attention="reference", parts={"block_pool": pool_class})
    seen = [llm.engine.manager.usage]
    llm.generate(["Four score and seven years ago our"] * 12, SamplingParams(max_tokens=12))
    seen.append(llm.engine.manager.usage)
    return llm, seen


def peak_after(pool_class: type, story: Callable[[KVCacheManager], None]) -> int:
    """`pool.peak` after a story of requests on a fresh manager: 8 blocks of 4."""
    manager = KVCacheManager(8, 4, pool=pool_class(8))
    story(manager)
    return manager.pool.peak


def one_after_the_other(manager: KVCacheManager) -> None:
    """Two requests of two blocks each; the second begins when the first has ended."""
    for start in (0, 100):
        request = CacheRequest("r", list(range(start, start + 8)))
        manager.allocate_slots(request, 8)
        manager.free(request)


def together_then_a_stranger(manager: KVCacheManager) -> None:
    """Two requests with the same prompt at the same time: three blocks, two of them shared. When both have ended, a
    stranger takes six."""
    prompt = list(range(8))
    first, second = CacheRequest("first", prompt), CacheRequest("second", [*prompt, 8])
    manager.allocate_slots(first, 8)
    blocks, hit = manager.get_computed_blocks(second)
    manager.allocate_slots(second, second.num_tokens - hit, hit, blocks)
    for request in (first, second):
        manager.free(request)
    manager.allocate_slots(CacheRequest("stranger", list(range(50, 74))), 24)


class CountingPool(BlockPool):
    """A first attempt at `peak`: it keeps its own count of the blocks in use."""

    in_use = peak = 0

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        self.in_use += num_blocks
        self.peak = max(self.peak, self.in_use)
        return super().get_new_blocks(num_blocks)

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        blocks = list(blocks)
        self.in_use -= len(blocks)
        super().free_blocks(blocks)
