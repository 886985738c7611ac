"""Checks for Month 6, the Triton kernel: the first steps (6.1 to 6.4). Each runs in a process of its own."""

import torch

from minipaged.attention.judge import fenced, sparse_storage
from minipaged.course.checks import paged_kernels  # noqa: F401  (the exercises from 6.5 on)
from minipaged.course.framework import Expect, exercise
from minipaged.course.kernel_runs import LIMIT, agrees, expect_close, launch, unwritten, watch


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return fenced(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


@exercise(
    "6.1",
    title="Add, with a mask",
    stars=1,
    minutes=15,
    hints=(
        "The last program has more lanes than there are elements left. What must the others not do?",
        "Program p works on the elements p · BLOCK … p · BLOCK + BLOCK − 1, as far as they are below n. A mask keeps "
        "the rest from being loaded and from being stored.",
        "offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK); mask = offsets < n; "
        "x = tl.load(x_ptr + offsets, mask=mask); y likewise; tl.store(out_ptr + offsets, x + y, mask=mask)",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · reduce_segments (segm_mask, dim_mask)",
    requires=("triton",),
    own_process=LIMIT,
)
def check_masked_add(answer, expect: Expect) -> None:
    """add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK)."""
    hints = {
        "outside": "Mask load and store: lanes at n and beyond have no element. The check's tensors end at n.",
        "twice": "All programs work on the same elements. This program's begin at tl.program_id(0) · BLOCK.",
    }
    for n, block in ((8, 8), (5, 8), (16, 8), (1000, 256), (1, 4)):
        x, y, out = numbers(n, seed=1), numbers(n, seed=2), unwritten(n)
        programs = -(-n // block)
        case = f"n = {n}, BLOCK = {block}, {programs} program{'s' * (programs > 1)}"
        arguments = {"x": x, "y": y, "out": out, "n": n, "BLOCK": block}
        launch(expect, answer, (programs,), arguments, case=case, hints=hints, written={"out": False})
        hint = "Store x + y at the same offsets from which you loaded."
        if out.isnan().any():
            hint = "NaN stands where nothing was stored. Which program stores these elements?"
        expect.close(out, x + y, rule="out[i] = x[i] + y[i] for every i below n.", case=case, hint=hint)


@exercise(
    "6.2",
    title="A head size of 96",
    stars=1,
    minutes=20,
    hints=(
        "tl.arange makes 16, 32, 64 or 128 lanes, never 96. What do you do with the lanes that are too many?",
        "D_PAD is the next power of two from D on; the lanes from D on are masked out and count as 0.",
        "kernel: d = tl.arange(0, D_PAD); q = tl.load(q_ptr + d, mask=d < D, other=0.0); k at k_ptr + "
        "tl.program_id(0) * D + d likewise; store scale * tl.sum(q * k, axis=0). "
        "launch: scores_kernel[(N,)](query, keys, out, scale, D, triton.next_power_of_2(D))",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · unified_attention (HEAD_SIZE_PADDED)",
    requires=("triton",),
    own_process=LIMIT,
)
def check_head_dim(answer, expect: Expect) -> None:
    """scores(query, keys, scale) -> [N]."""
    pad = "tl.arange wants a power of two: give the kernel triton.next_power_of_2(D) lanes, and mask those from D on."
    mask = (
        "next_power_of_2 makes lanes that have no element: mask them out of both loads, with other=0.0, so that they "
        "add nothing."
    )
    hints = {"outside": mask, "twice": "One program per key: it stores one score, at its own place."}
    for head_dim, num_keys in ((4, 1), (64, 3), (96, 1), (96, 5), (80, 4), (1, 2)):
        query, keys = numbers(head_dim, seed=3), numbers(num_keys, head_dim, seed=4)
        case = f"head size {head_dim}, {num_keys} key{'s' * (num_keys > 1)}, scale 0.5"
        got: list = []
        try:
            report = watch(
                expect, lambda q=query, k=keys, got=got: got.append(answer(q, k, 0.5)), {"query": query, "keys": keys},
                case=case, hints=hints,
            )  # fmt: skip
        except Exception as error:
            if "power of 2" not in repr(error.__cause__):
                raise
            expect.fail(rule="tl.arange has a power of two of lanes.", case=case, hint=pad)
        want = 0.5 * keys @ query
        expect.that(
            isinstance(got[0], torch.Tensor),
            rule="scores returns a tensor [N].",
            got=got[0],
            hint="Make `out` with torch.empty, launch the kernel, return `out`.",
        )
        hint = mask
        if agrees(got[0], want / 0.5):
            hint = "The score is scale · (query · key): the scale is missing."
        expect_close(expect, got[0], want, rule="score = scale · Σ q[d] · k[d].", case=case, hint=hint)
        expect.that(
            report.loaded.get("keys", 0) > 0,
            rule="The kernel reads the keys.",
            case=case,
            hint="This result comes from torch. Let your kernel compute it.",
        )


@exercise(
    "6.3",
    title="Gather through a block table",
    stars=2,
    minutes=25,
    hints=(
        "Program i is logical block i. Where does it learn which physical block that is?",
        "physical = table[i]; the block begins at physical · stride_block, and its slot s lies s · stride_slot "
        "further on. Tokens from seq_len on do not exist. A product with stride_block may pass 2³¹: first make it 64 "
        "bits wide.",
        "block = tl.load(table_ptr + i).to(tl.int64); slot = tl.arange(0, BLOCK_SIZE); e = tl.arange(0, ROW); "
        "mask = (i * BLOCK_SIZE + slot < seq_len)[:, None]; "
        "rows = tl.load(cache_ptr + block * stride_block + slot[:, None] * stride_slot + e[None, :], mask=mask); "
        "tl.store(out_ptr + (i * BLOCK_SIZE + slot)[:, None] * ROW + e[None, :], rows, mask=mask)",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · kernel_unified_attention (physical_block_idx)",
    requires=("triton",),
    own_process=LIMIT,
)
def check_gather(answer, expect: Expect) -> None:
    """gather_kernel(out_ptr, cache_ptr, table_ptr, seq_len, stride_block, stride_slot, BLOCK_SIZE, ROW)."""
    read = "Read the entry: logical block i of the sequence is physical block table[i]."
    cast = (
        "Cast the block id to int64 before you multiply: block · stride passes 2³¹ here, and 32 bits wrap around. "
        "Read the entry, then .to(tl.int64)."
    )
    stride = "Blocks lie stride_block elements apart, slots stride_slot: here there are gaps between them."
    tail = "The last block is only partly filled: mask the slots whose position is seq_len or more."
    for told, seq_len, far, gap, table, hint in (
        ("one full block, table [0]", 4, 0, 0, [0], "Slot s of the block goes to row s of the result."),
        ("one full block, table [2]", 4, 0, 0, [2], read),
        ("table [3, 1]", 8, 0, 0, [3, 1], read),
        ("table [3, 1], 7 tokens", 7, 0, 0, [3, 1], tail),
        ("table [3, 0, 2], gaps between slots and blocks", 9, 0, 8, [3, 0, 2], stride),
        ("table [2, 0], blocks 2³⁰ elements apart", 7, 2**30, 0, [2, 0], cast),
    ):
        cache, written = _scattered(seq_len, table, far, gap)
        out = unwritten(seq_len, 8)
        want = torch.stack([cache[table[pos // 4], pos % 4] for pos in range(seq_len)])
        arguments = {
            "out": out, "cache": cache, "table": fenced(torch.tensor(table, dtype=torch.int32)), "seq_len": seq_len,
            "stride_block": cache.stride(0), "stride_slot": cache.stride(1), "BLOCK_SIZE": 4, "ROW": 8,
        }  # fmt: skip
        hints = {
            "outside load": hint if far or gap else "Load from table[i] only, and from the block that it names.",
            "outside store": tail,
            "unwritten": tail if seq_len % 4 and not (far or gap) and hint is tail else hint,
            "twice": "Logical block i goes to the rows i · BLOCK_SIZE … of the result.",
        }
        case = f"{told}, {seq_len} tokens" if "tokens" not in told else told
        launch(
            expect, answer, (len(table),), arguments, case=case, hints=hints, written={"out": False, "cache": written}
        )
        expect.close(out, want, rule="Row p of the result is the token at position p.", case=case, hint=hint)


def _scattered(seq_len: int, table: list[int], far: int, gap: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache [5, 4, 8] that holds seq_len tokens in the blocks of ``table``, NaN elsewhere; written [5, 4]."""
    stride_slot = 8 + gap
    stride_block = far or 4 * stride_slot + gap
    storage = sparse_storage(stride_block * 5) if far else fenced(torch.full((stride_block * 5,), float("nan")))
    cache = storage.as_strided((5, 4, 8), (stride_block, stride_slot, 1), storage.storage_offset())
    cache.fill_(float("nan"))
    written = torch.zeros(5, 4, dtype=torch.bool)
    for pos in range(seq_len):
        written[table[pos // 4], pos % 4] = True
        cache[table[pos // 4], pos % 4] = torch.arange(8.0) + 10 * (pos + 1)
    return cache, written


@exercise(
    "6.4",
    title="Online softmax",
    stars=2,
    minutes=35,
    hints=(
        "exp(100) is too large for float32. Whatever you subtract from all scores, the softmax stays the same: so what "
        "do you subtract, when you have not yet seen all scores?",
        "Keep m (largest score so far), l (sum of exp(score − m)) and acc (sum of exp(score − m) · value). When a tile "
        "brings a larger m, l and acc are both multiplied by exp(old m − new m).",
        "for start in range(0, n, TILE): load scores (other=-inf) and values (other=0); m_new = maximum(m, "
        "max(scores)); c = exp(m - m_new); w = exp(scores - m_new); l = l * c + sum(w); acc = acc * c + sum(w[:, None] "
        "* values, 0); m = m_new.  At the end store acc / l",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · kernel_unified_attention (M, L, acc)",
    reference=("minipaged.attention.triton.softmax.softmax_update",),
    requires=("triton",),
    own_process=LIMIT,
)
def check_online_softmax(answer, expect: Expect) -> None:
    """softmax_mean_kernel(out_ptr, scores_ptr, values_ptr, n, TILE, D)."""
    rescale = "A new maximum changes the base: rescale both l and acc by exp(old m − new m)."
    divide = "The weights add up to 1: divide acc by l at the end. (With one score, the result is its value.)"
    ragged = "A lane without a score must weigh nothing: its score is −inf (not 0), and its value 0."
    large = "exp(10000) overflows to inf, and inf / inf is NaN: subtract the running maximum before exp, then rescale "
    large += "l and acc when it grows."
    start = "m starts at −inf. Any other start may be larger than all scores, and then every weight is exp(−…) = 0."
    generator = torch.Generator().manual_seed(6)
    noise = torch.randn(150, generator=generator)
    for told, scores, tile, hint in (
        ("one score", [0.0], 1, divide),
        ("one tile of 4", [0.5, 1.0, -1.0, 0.0], 4, divide),
        ("two tiles, the largest score in the first", [3.0, 1.0, 0.0, 2.0, 1.0, 0.0, -1.0, 2.0], 4, "l and acc go on "
         "from tile to tile: start them once, before the loop, and keep one base for all: the largest score so far."),
        ("two tiles, the largest score in the second", [0.0, 1.0, 0.0, 2.0, 1.0, 5.0, 4.0, 2.0], 4, rescale),
        ("6 scores in tiles of 4", [-3.0, -1.0, -2.0, -2.5, -1.0, -4.0], 4, ragged),
        ("scores up to 10000", (noise[:40] * 1e4 / noise[:40].abs().max()).tolist(), 16, large),
        ("scores about 10000", (noise[:40] + 1e4).tolist(), 16, large),
        ("scores about −20000", (noise[:20] - 2e4).tolist(), 8, start),
        ("150 scores", noise.tolist(), 16, "Go through all n scores, TILE of them at a time."),
    ):  # fmt: skip
        n = len(scores)
        arguments = {
            "out": unwritten(16), "scores": fenced(torch.tensor(scores)), "values": numbers(n, 16, seed=5),
            "n": n, "TILE": tile, "D": 16,
        }  # fmt: skip
        weights = torch.softmax(arguments["scores"].double(), dim=0)
        case = f"{told}, TILE = {tile}"
        hints = {"outside": ragged, "twice": "Store once, after the loop."}
        report = launch(expect, answer, (1,), arguments, case=case, hints=hints, written={"out": False})
        expect_close(
            expect, arguments["out"], weights @ arguments["values"].double(),
            rule="out = Σ softmax(scores)[i] · values[i], in one pass over the tiles.", case=case, hint=hint,
        )  # fmt: skip
        expect.equal(
            report.loaded.get("scores", 0), 4 * n, rule="One pass: each score is read once.",
            case=f"{case}, bytes of scores loaded", hint="The result is right, but a first pass looked for the largest "
            "score. Do without: when a tile brings a larger one, rescale what was summed so far.",
        )  # fmt: skip
