"""Checks for Month 7's exercises on tensor parallelism: 7.1, 7.2 and 7.8."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minipaged.attention import AttentionMetadata, ReferenceBackend
from minipaged.attention.reference import attention
from minipaged.course.framework import Expect, exercise
from minipaged.course.own_process import can_fork
from minipaged.course.plug_in_month_5 import tiny
from minipaged.course.two_ranks import RankMissing, ThreadGroup, TwoRankModel
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.model.rope import RotaryEmbedding
from minipaged.parallel.portable import portable

SUM = "Each rank holds only part of the sum: its heads times its columns of W_O."


@exercise(
    "7.1",
    title="Bytes per token and rank",
    stars=1,
    minutes=10,
    hints=(
        "Which part of a token's K and V does a rank keep? What happens when there are more ranks than KV heads?",
        "The KV heads are shared out. A head cannot be cut: with more ranks than heads, several ranks keep the same.",
        "heads_here = max(1, num_kv_heads // num_ranks); bytes_per_token // num_kv_heads * heads_here",
    ),
    vllm="vllm/config/model.py · ModelConfig.get_num_kv_heads",
)
def check_bytes_per_rank(answer: Callable[[int, int, int], int], expect: Expect) -> None:
    """bytes_per_rank(bytes_per_token, num_kv_heads, num_ranks)."""
    rule = "Each rank keeps its share of the KV heads, at least one whole head."
    whole = "A head cannot be cut. With more ranks than KV heads, heads are replicated, not halved."
    share = "8 KV heads on so many ranks: how many heads does each of them keep?"
    expect.returns(131_072, answer, 131_072, 8, 1, rule=rule, hint="One rank keeps everything.")
    expect.returns(
        32_768, answer, 131_072, 8, 4, rule=rule, hint=share,
        mistakes={131_072: "Each rank keeps its own heads only: 2 of 8."},
    )  # fmt: skip
    expect.returns(16_384, answer, 131_072, 8, 8, rule=rule, hint=share)
    expect.returns(16_384, answer, 131_072, 8, 16, rule=rule, hint=whole, mistakes={8_192: whole, 0: whole})
    for heads in (1, 2, 4, 8):
        for ranks in (1, 2, 4, 8, 16):
            kept = heads // ranks if ranks < heads else 1
            hint = whole if ranks > heads else share
            expect.returns(kept * 96, answer, heads * 96, heads, ranks, rule=rule, hint=hint)


@exercise(
    "7.2",
    title="Two ranks, one block table",
    stars=2,
    minutes=30,
    hints=(
        "Which blocks does rank 1 need? Has it another table than rank 0? And whose sum is the layer's output?",
        "One allocation and one slot mapping for all. Each rank writes and reads its heads at these slots, and "
        "multiplies by its columns of W_O. The output is the sum over the ranks.",
        "manager.allocate_slots once; metadata once; for rank, (k, v) in enumerate(caches): take chunk [rank] of "
        "query, key, value (dim 1) and of wo (dim 1); backend.write, backend.attend; total += attended.flatten(-2) @ "
        "part.T",
    ),
    vllm="vllm/model_executor/layers/linear.py · QKVParallelLinear, RowParallelLinear.forward (the all-reduce)",
    requires=("torch",),
)
def check_two_ranks(answer: Callable[..., Tensor], expect: Expect) -> None:
    """attention_on_ranks(query, key, value, wo, caches, manager, request) -> [T, hidden]."""
    for num_ranks, num_heads, num_kv_heads in ((1, 2, 2), (2, 2, 2), (2, 4, 2), (2, 8, 4)):
        _serve_on_ranks(answer, expect, num_ranks, num_heads, num_kv_heads)


ONE_MANAGER = "One manager, one block table: the slot of a token is the same on every rank. "


def _serve_on_ranks(answer: Callable, expect: Expect, num_ranks: int, num_heads: int, num_kv_heads: int) -> None:
    """A prompt of 7 tokens and three more, in blocks that lie scattered; after each step everything is compared."""
    generator = torch.Generator().manual_seed(num_heads)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    dim, size = 8, 12
    manager = KVCacheManager(9, 4, enable_caching=False, free_order=[7, 1, 3])
    request = CacheRequest("r0", list(range(7)))
    caches = [
        tuple(torch.full((9, 4, num_kv_heads // num_ranks, dim), float("nan")) for _ in range(2))
        for _ in range(num_ranks)
    ]
    wo = random(size, num_heads * dim)
    keys, values = random(0, num_kv_heads, dim), random(0, num_kv_heads, dim)
    for step, num_new in enumerate((7, 1, 1, 1)):
        if step:
            request.append_token(40 + step)
        query, key, value = (random(num_new, heads, dim) for heads in (num_heads, num_kv_heads, num_kv_heads))
        keys, values = torch.cat((keys, key)), torch.cat((values, value))
        case = f"{num_ranks} ranks, {num_heads} query and {num_kv_heads} KV heads, " + (
            f"decode step {step}" if step else "a prompt of 7 tokens"
        )
        got = expect.call(answer, query, key, value, wo, caches, manager, request)
        length = request.num_tokens
        used, rule = 9 - manager.num_free_blocks, "Blocks are counted once, however many ranks there are."
        hint = ONE_MANAGER + (
            "allocate_slots(request, T) once, outside of the loop over the ranks: T counts the new tokens, not all."
        )
        expect.equal(used, -(-length // 4), rule=rule, case=f"{case}: blocks in use", hint=hint)
        hint = "allocate_slots gives this request its blocks: for all its new tokens, before anything is written."
        expect.that(manager.has_blocks("r0"), rule="The request has a block table.", case=case, hint=hint)
        slots = torch.tensor(manager.block_table("r0").slot_mapping(0, length))
        for rank, cache in enumerate(caches):
            for name, tensor, full in zip("KV", cache, (keys, values), strict=True):
                want = full.chunk(num_ranks, dim=1)[rank]
                here = tensor.flatten(0, 1)[slots]
                rule = "Every rank holds its own heads of every token, at the slot that the one block table gives."
                hint = ONE_MANAGER + (
                    "Rank r takes the r-th part of the KV heads, in order, and writes it at slot_mapping(start, stop): "
                    "the new tokens start at request.num_computed_tokens."
                )
                expect.close(here, want, rule=rule, case=f"{case}: {name} on rank {rank}", hint=hint)
        parts = _parts(query, keys, values, wo, num_ranks)
        hint = _sum_hint(got, parts)
        rule = "The output is the sum of what the ranks compute: what one rank would compute alone."
        expect.close(got, sum(parts[1:], start=parts[0]), rule=rule, case=case, hint=hint, rtol=1e-4, atol=1e-4)
        request.num_computed_tokens = length


def _parts(query: Tensor, keys: Tensor, values: Tensor, wo: Tensor, num_ranks: int) -> list[Tensor]:
    """What each rank contributes to the output: [T, hidden] each."""
    attended, _ = attention(query, keys, values, query.shape[-1] ** -0.5)
    heads = zip(attended.chunk(num_ranks, dim=1), wo.chunk(num_ranks, dim=1), strict=True)
    return [here.flatten(-2) @ columns.T for here, columns in heads]


def _sum_hint(got: Any, parts: list[Tensor]) -> str:
    """What the wrong output gives away."""
    total = sum(parts[1:], start=parts[0])
    if not isinstance(got, Tensor) or got.shape != total.shape:
        return f"One tensor of shape {tuple(total.shape)}: [tokens, hidden]."
    got = got.to(total.dtype)
    if len(parts) == 1:
        return (
            "One rank is plain attention: write the new keys, values; attend to all so far with the scale D ** -0.5, "
            "and multiply by wo.T."
        )
    if len(parts) > 1 and any(torch.allclose(got, part, atol=1e-4) for part in parts):
        return SUM + " Add the parts of all ranks: that is the all-reduce."
    if torch.allclose(got * len(parts), total, atol=1e-4):
        return SUM + " A sum, not a mean."
    return (
        "Query heads, KV heads and columns of W_O are cut in the same places: rank r has the r-th part of each, and "
        "writes its new keys and values before it attends. " + SUM
    )


@exercise(
    "7.8",
    title="Plug in: your tensor-parallel attention",
    stars=3,
    minutes=60,
    plug_in=True,
    hints=(
        "qkv_proj packs the rows of all query, all key and all value heads. Which rows are this rank's?",
        "Cut the three parts one by one, and o_proj by columns. Run the layer with these heads on this rank's cache. "
        "One all-reduce, of the output.",
        "rows = weight.unflatten(0, (-1, head_dim)).split((heads, kv_heads, kv_heads)); cat of chunk(num_ranks)[rank] "
        "of each; forward: linear, split, rotate query and key, write, attend, linear with this rank's columns, "
        "all_reduce",
    ),
    vllm="vllm/model_executor/models/llama.py · LlamaAttention (QKVParallelLinear, RowParallelLinear)",
    reference=("minipaged.model.decoder.Attention", "minipaged.parallel.shard.load_shard"),
    requires=("torch",),
)
def check_my_attention(answer: type, expect: Expect) -> None:
    """MyTensorParallelAttention."""
    expect.that(isinstance(answer, type), rule="A class.", got=answer, hint="Hand the class itself to the check.")
    hint = "Keep the names of the cell: __init__ cuts this rank's part out, forward computes a step."
    has_forward = callable(getattr(answer, "forward", None))
    expect.that(has_forward, rule="The class has the method forward.", got=answer, hint=hint)
    try:
        _check_layer(answer, expect)
        _check_texts(answer, expect)
    except RankMissing as missing:
        expect.fail(
            rule="All ranks enter every all-reduce.", case=str(missing),
            hint="An all-reduce is a meeting: every rank must come, as often as the others, rank 0 as rank 1. In "
            "__init__ there is nothing to add up yet.",
        )  # fmt: skip


def _check_layer(answer: type, expect: Expect) -> None:
    """One layer of the tiny model, a prompt of 7 tokens and a decode step."""
    model, _ = tiny()
    whole, config = model.layers[0].self_attn, model.config
    group = ThreadGroup()
    ranks = [expect.call(answer, whole, rank, 2, group.all_reduce(rank)) for rank in range(2)]
    backend, hidden = ReferenceBackend(), torch.randn(8, config.hidden_size, generator=torch.Generator().manual_seed(1))
    ours = KVCacheStorage(1, 4, 4, config.num_kv_heads, config.head_dim)
    theirs = [KVCacheStorage(1, 4, 4, config.num_kv_heads // 2, config.head_dim) for _ in range(2)]
    for told, start, stop in (("a prompt of 7 tokens", 0, 7), ("a decode step", 7, 8)):
        metadata = AttentionMetadata.build([[2, 1]], [stop], [stop - start], [(8, 9, 10, 11, 4, 5, 6, 7)[i] for i in
                                           range(start, stop)])  # fmt: skip
        cos, sin = model.rope.lookup(torch.arange(start, stop))
        step = hidden[start:stop]
        with torch.no_grad():
            want = whole(step, cos, sin, ours.k_cache[0], ours.v_cache[0], metadata, backend)
        before = group.meetings

        def on_rank(rank: int, at: tuple = (step, cos, sin), metadata: AttentionMetadata = metadata) -> Tensor:
            storage = theirs[rank]
            return expect.call(ranks[rank].forward, *at, storage.k_cache[0], storage.v_cache[0], metadata, backend)

        got = group.run(on_rank)
        columns = whole.o_proj.weight.detach().chunk(2, dim=1)
        for rank in range(2):
            case = f"{told}, rank {rank}"
            for name, mine, all_heads in (("K", theirs[rank].k_cache, ours.k_cache), ("V", theirs[rank].v_cache,
                                                                                      ours.v_cache)):  # fmt: skip
                expect.close(
                    mine[0].flatten(0, 1)[4:12], all_heads[0].chunk(2, dim=2)[rank].flatten(0, 1)[4:12],
                    rule="Rank r holds the r-th part of the KV heads.", case=f"{case}: {name} in the cache",
                    hint=_cache_hint(mine[0].flatten(0, 1)[metadata.slot_mapping], name, whole, (step, cos, sin), rank),
                )  # fmt: skip
            with torch.no_grad():
                full = whole.project(step, cos, sin)[0]
                seen = backend.attend(full, ours.k_cache[0], ours.v_cache[0], metadata, whole.scale)
                parts = [a.flatten(-2) @ b.T for a, b in zip(seen.chunk(2, dim=1), columns, strict=True)]
            rule = "After the all-reduce every rank has what one rank would compute alone."
            hint = _sum_hint(got[rank], parts)
            expect.close(got[rank], want, rule=rule, case=case, hint=hint, rtol=1e-4, atol=1e-4)
            hint = "The next layer goes on with this tensor: give it the type that hidden has."
            expect.that(
                isinstance(got[rank], Tensor) and got[rank].dtype == step.dtype, rule="A tensor of hidden's type.",
                case=case, want=step.dtype, got=getattr(got[rank], "dtype", got[rank]), hint=hint,
            )  # fmt: skip
        met, rule = group.meetings - before, "One all-reduce a layer: it is the dear part."
        hint = "Add up what is ready to be added: after o_proj, once. Before it, heads are not sums."
        expect.equal(met, 1, rule=rule, case=f"{told}: all-reduces", hint=hint)


PACKED = (
    "qkv_proj is packed: all query heads, then all key heads, then all value heads. Cut each of the three by itself; "
    "one cut through the whole gives a rank heads of another kind."
)


def _cache_hint(got: Tensor, name: str, whole: Any, step: tuple[Tensor, Tensor, Tensor], rank: int) -> str:
    """What wrong keys or values [T, this rank's heads, D] in a rank's cache give away."""
    hidden, cos, sin = step
    with torch.no_grad():
        turned = whole.project(hidden, cos, sin)
        plain = whole.project(hidden, torch.ones_like(cos), torch.zeros_like(sin))
        value_turned = RotaryEmbedding.rotate(plain[2], cos, sin)

    def is_it(heads: Tensor, part: int = rank) -> bool:
        return torch.allclose(got, heads.chunk(2, dim=1)[part], atol=1e-4)

    if name == "K" and is_it(plain[1]):
        return "These keys are not rotated yet: RotaryEmbedding.rotate(key, cos, sin) comes before they are written."
    if name == "V" and is_it(value_turned):
        return "These values are rotated. RoPE turns queries and keys only."
    if is_it(turned[1 if name == "K" else 2], 1 - rank):
        return "These are the other rank's heads: rank 0 takes the first part of each kind, rank 1 the second."
    if not got.any():
        return "Nothing was written: backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)."
    return PACKED


def _check_texts(answer: type, expect: Expect) -> None:
    """The real engine: one scheduler, one manager, two ranks; the tokens of one rank."""
    from minipaged.serving import LLM, SamplingParams

    model, tokenizer = tiny()
    prompts = ["Four score and seven years ago our", "A block table maps", "Four score and seven years ago we"]
    results = []
    sharded = TwoRankModel(model, lambda *args: expect.call(answer, *args))
    for two in (model, sharded):
        llm = LLM((two, tokenizer), num_blocks=10, block_size=4, attention="reference", check_integrity=True)
        with expect.no_error(
            rule="The engine runs on two ranks.", hint="What does forward get, and what must it return?"
        ):
            results.append([out.outputs[0].token_ids for out in llm.generate(prompts, SamplingParams(max_tokens=10))])
    hint = SUM + " And each rank reads its own cache, at the slots of the one block table."
    for prompt, want, got in zip(prompts, *results, strict=True):
        expect.equal(got, want, rule="Two ranks give the tokens of one.", case=repr(prompt), hint=hint)
    expect.equal(
        sharded.differences, 0, rule="The ranks agree after every step.", case="steps with a difference", hint=SUM
    )
    _check_processes(answer, expect, prompts, results[0])


def _check_processes(answer: type, expect: Expect, prompts: list[str], want: list[list[int]]) -> None:
    """The same once more in two processes over gloo: they share nothing but what goes through all_reduce."""
    from minipaged.parallel import RankError, run_parallel
    from minipaged.serving import SamplingParams

    try:
        portable(answer)
    except ValueError:  # typed where no source is kept: it cannot go to another process
        return
    rule, case = "Two processes give the tokens of one.", "two processes, torch.distributed with gloo"
    hint = "Two processes share no memory: only what goes through all_reduce comes to the other rank. " + SUM
    try:
        run = run_parallel(
            prompts, SamplingParams(max_tokens=10), num_ranks=2, attention="reference", num_blocks=10, block_size=4,
            parts={"tensor_parallel_attention": answer}, start="fork" if can_fork() else "spawn", timeout=120.0,
        )  # fmt: skip
    except RankError as failed:
        expect.fail(rule=rule, case=f"{case}: {failed}", hint=hint)
    for prompt, tokens, output in zip(prompts, want, run.outputs, strict=True):
        mine = output.outputs[0].token_ids
        expect.equal(mine, tokens, rule=rule, case=f"{case}: {prompt!r}", hint=hint)
