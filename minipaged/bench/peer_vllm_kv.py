"""Run by the interpreter where vLLM is installed: vLLM's own pool and manager behind the adapter of kv_rows.py.

Written against vLLM 0.32 (vllm/v1/core). Started by `minipaged bench kv --against vllm --python PATH`.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from kv_rows import serve
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    hash_block_tokens,
    init_none_hash,
    make_block_hash_with_group_id,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


class VllmAdapter:
    name = f"vLLM {vllm.__version__}"

    def __init__(self):
        self.sha256 = get_hash_fn_by_name("sha256")
        init_none_hash(self.sha256)
        self.params = SamplingParams(max_tokens=10_000)
        self.params.update_from_generation_config({}, eos_token_id=-100)

    def make_pool(self, num_blocks, caching):
        return BlockPool(num_blocks, caching, hash_block_size=16)

    def get(self, pool, n):
        return pool.get_new_blocks(n)

    def free(self, pool, blocks):
        pool.free_blocks(blocks)

    def touch(self, pool, blocks):
        pool.touch(blocks)

    def fill_cache(self, pool, n):
        blocks = pool.get_new_blocks(n)
        keys = [i.to_bytes(32, "big") for i in range(n)]
        for key, block in zip(keys, blocks, strict=True):
            pool._insert_block_hash(make_block_hash_with_group_id(key, 0), block, num_tokens=16)
        pool.free_blocks(blocks)
        return keys

    def lookup(self, pool, keys):
        return [pool.get_cached_block(key, [0])[0] for key in keys]

    def hash_block(self, algorithm):
        function = get_hash_fn_by_name(algorithm)
        return lambda parent, tokens: hash_block_tokens(function, parent, tokens)

    def make_manager(self, num_blocks, block_size):
        self.hasher = get_request_block_hasher(block_size, self.sha256)
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        return KVCacheManager(
            config, max_model_len=100_000, scheduler_block_size=block_size, hash_block_size=block_size
        )

    def make_request(self, manager, name, prompt):
        return Request(name, prompt, self.params, None, block_hasher=self.hasher)

    def prefill(self, manager, request):
        # Two values in older releases, three since 0.33.
        blocks, hit, *_ = manager.get_computed_blocks(request)
        n = request.num_tokens - hit
        if manager.allocate_slots(request, n, hit, blocks) is None:
            return False
        request.num_computed_tokens = hit + n
        return True

    def decode(self, manager, request, token):
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(token)
        if manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True

    def finish(self, manager, request):
        manager.free(request)


if __name__ == "__main__":
    serve(VllmAdapter())
