"""Month 6 (and 0): attention over a paged KV cache. One truth in plain torch, and fast ways to it."""

from minipaged.attention.launch import get_backend
from minipaged.attention.metadata import AttentionMetadata
from minipaged.attention.options import AttentionOptions
from minipaged.attention.protocols import AttentionBackend
from minipaged.attention.reference import ReferenceBackend, dense_attention, paged_attention

__all__ = [
    "AttentionBackend",
    "AttentionMetadata",
    "AttentionOptions",
    "ReferenceBackend",
    "dense_attention",
    "get_backend",
    "paged_attention",
]
