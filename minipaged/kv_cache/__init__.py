"""The KV cache's blocks: who owns which, what each holds, and where a token's K and V lie (Months 0, 2 and 3).

Only `storage` and `swap` import torch; everything here is bookkeeping.
"""

from minipaged.kv_cache.block import FreeBlockQueue, KVCacheBlock
from minipaged.kv_cache.block_pool import BlockPool, IntegrityError
from minipaged.kv_cache.block_table import BlockTable
from minipaged.kv_cache.hashing import BlockHasher, hash_block_tokens
from minipaged.kv_cache.manager import KVCacheManager
from minipaged.kv_cache.prefix_cache import PrefixCache
from minipaged.kv_cache.request import CacheRequest, ImageSpan

__all__ = [
    "BlockHasher",
    "BlockPool",
    "BlockTable",
    "CacheRequest",
    "FreeBlockQueue",
    "ImageSpan",
    "IntegrityError",
    "KVCacheBlock",
    "KVCacheManager",
    "PrefixCache",
    "hash_block_tokens",
]
