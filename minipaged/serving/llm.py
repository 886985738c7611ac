"""``LLM``: a model, a pool and an engine in one object, and text out of it in one call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from minipaged.attention import AttentionBackend, get_backend
from minipaged.attention.launch import cache_dtype
from minipaged.attention.window import with_window
from minipaged.kv_cache import BlockPool, BlockTable, KVCacheManager
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.kv_cache.swap import SwapSpace
from minipaged.model import load_model
from minipaged.serving.engine import LLMEngine
from minipaged.serving.outputs import RequestOutput
from minipaged.serving.parts import check_part, check_parts, make_part
from minipaged.serving.protocols import SchedulerConfig
from minipaged.serving.runner import ModelRunner
from minipaged.serving.sampling import BeamSearchParams, SamplingParams, check_bool, check_int, recommended_sampling
from minipaged.serving.scheduler import Scheduler

DEFAULT_CACHE_BYTES = 2**30  # of KV cache, when num_blocks is not given
DEFAULT_FULL_SEQUENCES = 4  # … or enough for so many sequences of the model's full length, if that is less

Prompt = str | Sequence[int]
Params = SamplingParams | BeamSearchParams


class LLM:
    """A paged serving engine around one model.

    Args:
        model: "tiny", a checkpoint folder, a name on the Hugging Face hub, or what ``load_model`` returned: (model,
            tokenizer). In a model with a sliding window the blocks that slid out of it stay: only the reading stops.
        num_blocks: physical blocks in the pool; None: as many as ``default_num_blocks`` finds sensible.
        block_size: tokens a block.
        attention: "auto", "reference", "triton", "cpu", or a backend of your own.
        dtype: of the weights and of the KV cache. On a CPU, "auto" and "cpu" keep a float32 cache for 16-bit weights:
            their kernels read nothing else. It takes twice the memory; None for num_blocks takes that into account.
        enable_prefix_caching: reuse the KV of equal prefixes.
        preemption: "recompute", or "swap" with num_cpu_blocks (None: as many as num_blocks) in host memory and
            num_disk_blocks in a file in swap_folder.
        parts: your own classes for "block_table", "block_pool", "prefix_cache", "scheduler", "attention".
        null_block: reserve block 0, as vLLM does.
        free_order: block ids to be handed out first, as after a busy day (the paper's 7, 1, 3).
        check_integrity: prove the pool's rules after every step (slow; for tests and lessons).
        scheduling: any field of ``SchedulerConfig``: max_num_seqs, max_num_batched_tokens, policy, watermark,
            enable_chunked_prefill, trace.

    Raises TypeError or ValueError that names the argument, the value and the way out.
    """

    def __init__(
        self,
        model: str | Path | tuple = "tiny",
        *,
        num_blocks: int | None = None,
        block_size: int = 16,
        attention: str | AttentionBackend | type = "auto",
        enable_prefix_caching: bool = True,
        preemption: str = "recompute",
        parts: Mapping[str, object] | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        seed: int = 0,
        null_block: bool = False,
        free_order: Sequence[int] | None = None,
        num_cpu_blocks: int | None = None,
        num_disk_blocks: int = 0,
        swap_folder: str | Path | None = None,
        check_integrity: bool = False,
        **scheduling,
    ) -> None:
        _check_sizes(num_blocks, block_size, null_block)
        check_bool("enable_prefix_caching", enable_prefix_caching)
        check_int("seed", seed)
        check_bool("check_integrity", check_integrity)
        _check_model(model)
        _check_dtype_and_device(dtype, device)
        _check_swap(preemption, num_cpu_blocks, num_disk_blocks, swap_folder)
        unknown = scheduling.keys() - inspect.signature(SchedulerConfig).parameters.keys()
        if unknown:
            known = ", ".join(inspect.signature(SchedulerConfig).parameters)
            raise TypeError(f"LLM has no argument {sorted(unknown)[0]!r}; scheduling arguments are {known}")
        config = SchedulerConfig(preemption=preemption, **scheduling)
        parts = check_parts(parts)
        backend = check_part("attention", get_backend(parts.get("attention", attention), device=device))
        check_block_size(backend, block_size)

        if isinstance(model, tuple):  # loaded before: the cache is made to fit it
            self.model, self.tokenizer = model
            dtype, device = getattr(self.model, "dtype", dtype), getattr(self.model, "device", device)
        else:
            self.model, self.tokenizer = load_model(model, dtype, device)
        sizes = self.model.config
        with_window(backend, getattr(sizes, "sliding_window", None))  # a backend that has none is refused here
        cache_type = cache_dtype(backend, dtype)
        num_blocks = num_blocks or default_num_blocks(sizes, block_size, cache_type)
        storage = KVCacheStorage(
            sizes.num_layers,
            num_blocks,
            block_size,
            sizes.num_kv_heads,
            sizes.head_dim,
            dtype=cache_type,
            device=device,
            copy_blocks=backend.copy_blocks,
        )
        manager = _make_manager(parts, num_blocks, block_size, enable_prefix_caching, null_block, free_order)
        swap_space = None
        if preemption == "swap":
            cpu_blocks = num_cpu_blocks if num_cpu_blocks is not None else num_blocks
            swap_space = SwapSpace(storage, cpu_blocks, num_disk_blocks, swap_folder)
        extra = {"swap_space": swap_space} if swap_space is not None else {}
        scheduler = make_part("scheduler", parts.get("scheduler", Scheduler), config, manager, **extra)
        runner = ModelRunner(self.model, storage, backend, manager, swap_space)
        self.engine = LLMEngine(runner, scheduler, config, self.tokenizer, seed, check_integrity)

    @property
    def stats(self):
        """The engine's counts so far: an ``EngineStats``."""
        return self.engine.stats

    def get_default_sampling_params(self, **changes) -> SamplingParams:
        """What the checkpoint's generation_config.json recommends, with ``changes``; vLLM's method of this name.

        ``generate`` does not use it by itself: without params it is greedy, whatever the checkpoint recommends. The
        end tokens of generation_config.json always count. Raises ValueError for a recommendation that minipaged
        cannot follow.
        """
        return SamplingParams(**recommended_sampling(getattr(self.model.config, "generation", {})) | changes)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params | Sequence[Params] | None = None,
        *,
        progress: bool = False,
        cache_salt: str | None = None,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; the outputs come in the prompts' order.

        A prompt is a string or a list of token ids. ``params``: one for all, or one a prompt. All are checked before
        the first one starts. If a step raises, every request of this call is aborted and the error goes on.
        """
        prompts, all_params = self.validate_prompts(prompts, params)
        priorities = _one_each("priority", priority, len(prompts))
        ids: list[str] = []
        try:
            for prompt, one, rank in zip(prompts, all_params, priorities, strict=True):
                ids.append(self.engine.add_request(prompt, one, priority=rank, cache_salt=cache_salt))
            finished = self._run(set(ids), progress)
        except BaseException:
            for request_id in ids:
                self.engine.abort(request_id)
            self.engine.take_failed()
            raise
        return [finished[request_id] for request_id in ids]

    def validate_prompts(
        self, prompts: Prompt | Sequence[Prompt], params: Params | Sequence[Params] | None = None
    ) -> tuple[list[Prompt], list[Params]]:
        """Raise what ``generate`` would raise, and run nothing. Returns the prompts, and the parameters of each."""
        prompts = _as_list(prompts)
        all_params = _one_each("params", params if params is not None else SamplingParams(), len(prompts))
        for number, (prompt, one) in enumerate(zip(prompts, all_params, strict=True)):
            try:
                self.engine.validate_request(prompt, one)
            except (TypeError, ValueError) as error:
                if len(prompts) > 1:
                    error.add_note(f"(prompt {number} of {len(prompts)})")
                raise
        return prompts, all_params

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, **kwargs
    ) -> list[RequestOutput]:
        """``generate`` with BeamSearchParams, under the name that vLLM gives it."""
        return self.generate(prompts, params, **kwargs)

    def _run(self, ids: set[str], progress: bool) -> dict[str, RequestOutput]:
        """Step until all of ``ids`` are finished. Other requests of the engine move on, too."""
        from tqdm import tqdm

        finished: dict[str, RequestOutput] = {}
        with tqdm(total=len(ids), desc="Requests", unit="request", disable=not progress, leave=False) as bar:
            start = self.stats.num_generated_tokens
            while len(finished) < len(ids):
                for output in self.engine.step():
                    if output.finished and output.request_id in ids:
                        finished[output.request_id] = output
                        bar.update()
                if progress:
                    bar.set_postfix_str(f"{self.stats.num_generated_tokens - start} tokens", refresh=False)
        return finished

    def __repr__(self) -> str:
        manager = self.engine.manager
        return (
            f"LLM({manager.num_usable_blocks} blocks of {manager.block_size} tokens, {manager.num_free_blocks} free, "
            f"attention={self.engine.runner.backend.name!r})"
        )


def default_num_blocks(sizes, block_size: int, dtype: torch.dtype) -> int:
    """Enough blocks for four sequences of the model's full length, within 1 GiB. dtype: of the cache."""
    block_bytes = 2 * sizes.num_layers * block_size * sizes.num_kv_heads * sizes.head_dim * dtype.itemsize
    one_sequence = -(-sizes.max_position_embeddings // block_size)
    return max(2, min(DEFAULT_FULL_SEQUENCES * one_sequence, DEFAULT_CACHE_BYTES // block_bytes))


def check_block_size(backend: AttentionBackend, block_size: int) -> None:
    """A backend may name the block sizes that it can read, in an attribute ``block_sizes``; without it: any."""
    allowed = getattr(backend, "block_sizes", None)
    if allowed is not None and block_size not in allowed:
        raise ValueError(
            f"block_size is {block_size}, but the attention backend {backend.name!r} reads {allowed}; choose one of "
            "these, or another backend"
        )


def _check_sizes(num_blocks: int | None, block_size: int, null_block: bool) -> None:
    check_bool("null_block", null_block)
    check_int("block_size", block_size)
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; a block holds at least 1 token, 16 is usual")
    if num_blocks is None:
        return
    check_int("num_blocks", num_blocks)
    fewest = 1 + null_block
    if num_blocks < fewest:
        reason = " (one is the null block)" if null_block else ""
        raise ValueError(f"num_blocks is {num_blocks}; a pool needs at least {fewest}{reason}, or None for a default")


def _check_model(model: object) -> None:
    pair = isinstance(model, tuple) and len(model) == 2 and hasattr(model[0], "config")
    if not pair and not isinstance(model, str | Path):
        raise TypeError(
            f'model is a {type(model).__name__}; give "tiny", the path of a checkpoint folder, or the pair '
            "(model, tokenizer) that load_model returned"
        )


def _check_swap(preemption: str, num_cpu_blocks: object, num_disk_blocks: object, folder: object) -> None:
    given = {"num_cpu_blocks": num_cpu_blocks, "num_disk_blocks": num_disk_blocks or None, "swap_folder": folder}
    for name, value in given.items():
        if value is not None and preemption != "swap":
            raise ValueError(f'{name} is {value!r}, but preemption is {preemption!r}; pass preemption="swap" with it')
    if folder is not None and not (isinstance(folder, str | Path) and Path(folder).is_dir()):
        raise ValueError(f"swap_folder is {folder!r}; give a folder that exists")


def _check_dtype_and_device(dtype: object, device: object) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {dtype!r} ({type(dtype).__name__}); give torch.float32, float16 or bfloat16")
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device is {device!r}; give "cpu", or "cuda" on a machine with a GPU') from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'device is {str(device)!r}, but this torch finds no GPU here; leave it at "cpu"')


def _make_manager(parts, num_blocks, block_size, enable_caching, null_block, free_order) -> KVCacheManager:
    table = parts.get("block_table", BlockTable)
    make_part("block_table", table, block_size)  # one to look at, before any request needs it
    cache = make_part("prefix_cache", parts["prefix_cache"]) if "prefix_cache" in parts else None
    if "block_pool" not in parts:
        pool = BlockPool(num_blocks, enable_caching, null_block, cache, free_order)
    else:
        pool = _make_pool(parts["block_pool"], num_blocks, enable_caching, null_block, cache, free_order)
    if "block_pool" in parts and enable_caching and getattr(pool, "prefix_cache", None) is None:
        enable_caching = False  # a pool that keeps no contents: the engine runs, without prefix caching
    return KVCacheManager(
        num_blocks, block_size, enable_caching=enable_caching, null_block=null_block, pool=pool, block_table=table
    )


def _make_pool(factory, num_blocks, enable_caching, null_block, cache, free_order):
    """A pool of one's own is made as YourPool(num_blocks); options go to it only if it knows their names."""
    options = {"enable_caching": enable_caching, "null_block": null_block, "prefix_cache": cache}
    if free_order is not None:
        options["free_order"] = free_order
    known = inspect.signature(factory).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    given = {name: value for name, value in options.items() if takes_all or name in known}
    if null_block and "null_block" not in given:
        raise ValueError("null_block=True needs a pool that takes null_block; yours does not, so leave it False")
    return make_part("block_pool", factory, num_blocks, **given)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise TypeError(f"prompts is a {type(prompts).__name__}; give a string, or a list of strings or of token ids")
    single = prompts and all(isinstance(token, int) and not isinstance(token, bool) for token in prompts)
    return [list(prompts)] if single else list(prompts)


def _one_each(name: str, values, count: int) -> list:
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} {name} for {count} prompts; give one for all, or one for each")
    return list(values)
