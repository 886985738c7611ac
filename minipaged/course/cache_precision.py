"""How much a cache of few bits changes: the bundled model reads its K and V from caches of several types."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minipaged.attention import AttentionMetadata, AttentionOptions, ReferenceBackend
from minipaged.course.charts import Table
from minipaged.kv_cache.storage import KVCacheStorage

BLOCK_SIZE = 16


@dataclass
class CacheRun:
    """One text through the model, with every K and V read from a cache of one type.

    logits [T, vocab]; k_cache, v_cache: what the cache holds, times its scales, float32; num_bytes: of K and V.
    """

    logits: Tensor
    k_cache: Tensor
    v_cache: Tensor
    num_bytes: int


def run_with_cache(
    model, token_ids: list[int], dtype: torch.dtype, k_scale: float = 1.0, v_scale: float = 1.0
) -> CacheRun:
    """Prefill ``token_ids`` in one step. The cache stores ``k / k_scale`` and ``v / v_scale`` in ``dtype``."""
    config, length = model.config, len(token_ids)
    blocks = -(-length // BLOCK_SIZE)
    storage = KVCacheStorage(config.num_layers, blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype)
    metadata = AttentionMetadata.build([list(range(blocks))], [length], [length], list(range(length)))
    backend = ReferenceBackend(options=AttentionOptions(k_scale=k_scale, v_scale=v_scale))
    hidden = model.forward(torch.tensor(token_ids), torch.arange(length), storage, metadata, backend)
    keys = torch.stack(storage.k_cache).float() * k_scale
    values = torch.stack(storage.v_cache).float() * v_scale
    return CacheRun(model.compute_logits(hidden), keys, values, storage.num_bytes)


def scale_for(cache: Tensor, dtype: torch.dtype) -> float:
    """The scale with which the largest value just fits into ``dtype``."""
    return float(cache.abs().max()) / torch.finfo(dtype).max


def precision_table(model, token_ids: list[int]) -> tuple[Table, list[float]]:
    """The bundled model's text from caches of several types, each compared with one of float32; as a table, and the
    share of positions whose likeliest token changed, one for each row."""
    truth, e4m3 = run_with_cache(model, token_ids, torch.float32), torch.float8_e4m3fn
    k_scale, v_scale = scale_for(truth.k_cache, e4m3), scale_for(truth.v_cache, e4m3)
    trials = {
        "bfloat16": (torch.bfloat16, 1.0, 1.0),
        "fp8 e4m3": (e4m3, k_scale, v_scale),
        "fp8 e5m2": (torch.float8_e5m2, 1.0, 1.0),
        "fp8 e4m3, scales 8 × too small": (e4m3, k_scale / 8, v_scale / 8),
    }
    rows, changed = [], []
    for name, trial in trials.items():
        run = run_with_cache(model, token_ids, *trial)
        e = compare(run, truth)
        share = f"{run.num_bytes / truth.num_bytes:.0%} of float32"
        rows.append([name, share, f"{e['kv']:.1%}", f"{e['logits']:.1f}", f"{e['kl']:.4f}", f"{e['changed']:.0%}"])
        changed.append(e["changed"])
    heads = ["cache", "bytes", "error of K and V", "logits, largest difference", "KL, nats", "likeliest token changed"]
    return Table(heads, rows), changed


def compare(run: CacheRun, truth: CacheRun) -> dict[str, float]:
    """Errors of ``run`` against ``truth``.

    kv: the root mean square error of K and V over their root mean square; logits: the largest difference;
    kl: the mean Kullback-Leibler divergence of the next-token distributions, in nats; changed: share of positions
    whose most likely token is another one.
    """
    got, want = (torch.cat([r.k_cache.flatten(), r.v_cache.flatten()]) for r in (run, truth))
    p, q = truth.logits.log_softmax(-1), run.logits.log_softmax(-1)
    return {
        "kv": float((got - want).norm() / want.norm()),
        "logits": float((run.logits - truth.logits).abs().max()),
        "kl": float((p.exp() * (p - q)).sum(-1).mean()),
        "changed": float((p.argmax(-1) != q.argmax(-1)).float().mean()),
    }
