"""Checks for Month 6 that read and write a paged cache (6.5 to 6.10). `checks/month_6.py` loads this module."""

from collections.abc import Callable

import torch
from torch import Tensor

from minipaged.attention import paged_attention
from minipaged.attention.judge import Case, fenced, make_case
from minipaged.attention.reference import write_slots
from minipaged.course.framework import Expect, exercise
from minipaged.course.kernel_runs import LIMIT, agrees, expect_close, launch, unwritten

TRITON_ATTENTION = tuple(
    f"minipaged.attention.triton.{name}"
    for name in (
        "decode.decode_kernel", "split.split_kernel", "split.merge_kernel", "cache.write_kernel",
        "softmax.attend_range", "prefill.prefill_kernel", "launch_kernels.decode",
    )
)  # fmt: skip
FAR = 2**30
CAST = "A block id times stride_block passes 2³¹ here: cast the id with .to(tl.int64) before you multiply."
NAN = "0 · NaN is NaN: a weight of 0 does not hide an unwritten value. Mask the load of V, with other=0.0."
TAIL = "The positions 0 … seq_len − 1 hold a token, no others: mask the load of K by position < seq_len."
ROW_OF_HEAD = "Row (seq, head) of q, and of the result, begins at (seq · num_heads + head) · D."
SCALE = "The scores are scale · (q · k): the scale is missing."


def truth(case: Case) -> Tensor:
    """The right output [S, H, D], in float64."""
    return paged_attention(
        case.query, case.k_cache, case.v_cache, case.metadata, case.scale, compute_dtype=torch.float64
    )[0]


def decode_arguments(case: Case, out: Tensor) -> dict:
    """name → value, as far as all decode kernels of the exercises agree."""
    stride_block, stride_slot, stride_head, _ = case.k_cache.stride()
    return {
        "out": out, "query": case.query, "k_cache": case.k_cache, "v_cache": case.v_cache,
        "block_tables": case.metadata.block_tables, "seq_lens": case.metadata.seq_lens, "scale": case.scale,
        "num_heads": case.query.shape[1], "stride_block": stride_block, "stride_slot": stride_slot,
        "stride_head": stride_head, "tables_stride": case.metadata.block_tables.stride(0),
    }  # fmt: skip


def written_in(case: Case, *results: str) -> dict[str, Tensor | bool]:
    return {"k_cache": case.written, "v_cache": case.written, **dict.fromkeys(results, False)}


@exercise(
    "6.5",
    title="Paged decode",
    stars=3,
    minutes=60,
    hints=(
        "You have written all parts: the block from the table (6.3), the running softmax (6.4). What differs in the "
        "last block of a sequence?",
        "One program per (sequence, head): for each block of the sequence, read the entry, load K and V with a mask on "
        "the positions, scores −inf where there is no token, one step of the online softmax.",
        "q at (seq * num_heads + head) * D + d; for i in range(0, tl.cdiv(seq_len, BLOCK_SIZE)): block = "
        "tl.load(tables_ptr + seq * tables_stride + i).to(tl.int64); there = i * BLOCK_SIZE + slot < seq_len; at = "
        "block * stride_block + slot[:, None] * stride_slot + head * stride_head + d[None, :]; k, v = load(…, "
        "mask=there[:, None], other=0.0); scores = where(there, scale * sum(q * k, 1), -inf); then as in 6.4",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · kernel_unified_attention",
    reference=TRITON_ATTENTION,
    requires=("triton",),
    own_process=LIMIT,
)
def check_paged_decode(answer, expect: Expect) -> None:
    """paged_decode_kernel(out, q, k, v, tables, seq_lens, scale, num_heads, 4 strides, BLOCK_SIZE, D)."""
    row = "Each sequence has its own query, and its own row of the tables, from seq · tables_stride on."
    blocks = f"A sequence of n tokens has cdiv(n, BLOCK_SIZE) blocks. {row}"
    for told, seq_lens, heads, far, hint in (
        ("one head, one full block", [4], 1, 0, "Softmax of scale · (q · k) over the 4 slots, then the mean of V."),
        ("one head, 3 tokens", [3], 1, 0, "The fourth slot holds no token: its score is −inf, its weight 0."),
        ("one head, two blocks", [8], 1, 0, "Carry m, l and acc from block to block; rescale l and acc."),
        ("two heads", [4], 2, 0, "Head h's K and V lie h · stride_head further on; its query at (seq · num_heads + h) "
         "· D."),
        ("lengths 7, 1, 9", [7, 1, 9], 2, 0, blocks),
        ("blocks 2³⁰ elements apart", [5, 4], 1, FAR, CAST),
    ):  # fmt: skip
        case = make_case(told, seq_lens, num_heads=heads, num_kv_heads=heads, far=far, seed=2)
        out = unwritten(*case.query.shape)
        arguments = {**decode_arguments(case, out), "BLOCK_SIZE": 4, "D": 16}
        hints = {
            "unwritten v_cache": NAN,
            "unwritten k_cache": CAST if far else f"{TAIL} {row}" if len(seq_lens) > 1 else TAIL,
            "outside load": CAST if far else blocks,
            "outside store": ROW_OF_HEAD,
            "twice": "One program per (sequence, head): program_id(0) is the sequence, program_id(1) the head.",
        }
        told, want = f"{told}; B = 4, D = 16, shuffled blocks", truth(case)  # before the kernel can change the cache
        launch(
            expect, answer, (len(seq_lens), heads), arguments, case=told, hints=hints, written=written_in(case, "out")
        )
        _expect_attention(expect, out, want, case, told, blocks if out.isnan().all() else hint)


def _expect_attention(expect: Expect, out: Tensor, want: Tensor, case: Case, told: str, hint: str) -> None:
    unscaled = paged_attention(case.query, case.k_cache, case.v_cache, case.metadata, 1.0)[0]
    if agrees(out, unscaled):
        hint = SCALE
    rule = "The output is attention over the sequence's own tokens."
    expect_close(expect, out, want, rule=rule, case=told, hint=hint)


@exercise(
    "6.6",
    title="Grouped-query heads",
    stars=2,
    minutes=30,
    hints=(
        "8 query heads share 2 KV heads. Which KV head does query head 3 read? And 4?",
        "Query head h reads KV head h // GROUP. So KV head j serves the heads j · GROUP … j · GROUP + GROUP − 1: load "
        "its keys once, for all of them.",
        "j = program_id(0); head = j * GROUP + arange(0, GROUP); q = load [GROUP, D]; k = load [N, D] at (token * "
        "num_programs(0) + j) * D; scores = sum(q[:, None, :] * k[None, :, :], axis=2), or tl.dot(q, tl.trans(k))",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · kernel_unified_attention (query_offset_1)",
    reference=TRITON_ATTENTION,
    requires=("triton",),
    own_process=LIMIT,
)
def check_gqa(answer, expect: Expect) -> None:
    """gqa_scores_kernel(out, q, k, scale, GROUP, N, D)."""
    first = "KV head j serves the heads from j · GROUP on."
    hints = {
        "twice": f"Two programs write the scores of one head. {first}",
        "outside": f"There are num_kv_heads · GROUP query heads. {first}",
    }
    for heads, kv_heads in ((1, 1), (2, 2), (4, 1), (8, 2)):
        group = heads // kv_heads
        generator = torch.Generator().manual_seed(heads)
        query, keys = (fenced(torch.randn(n, 16, generator=generator)) for n in (heads, 8 * kv_heads))
        keys = keys.view(8, kv_heads, 16)
        out = unwritten(heads, 8)
        arguments = {"out": out, "query": query, "keys": keys, "scale": 0.25, "GROUP": group, "N": 8, "D": 16}
        case = f"{heads} query heads, {kv_heads} KV heads"
        report = launch(expect, answer, (kv_heads,), arguments, case=case, hints=hints, written={"out": False})
        by_head = torch.einsum("hd,nkd->hkn", query, keys) * 0.25  # [head, KV head, token]
        want, modulo = (
            torch.stack([by_head[h, kv] for h, kv in enumerate(kv_of)])
            for kv_of in ([h // group for h in range(heads)], [h % kv_heads for h in range(heads)])
        )
        hint = f"out[head, token] = scale · (q[head] · k[token, KV head]). {first}"
        if agrees(out, want / 0.25):
            hint = SCALE
        elif agrees(out, modulo):
            hint = "Floor-divide by the group: head h reads KV head h // GROUP. A modulo tears neighbours apart."
        rule = "Query head h reads KV head h // GROUP: heads 0–3 → 0, 4–7 → 1."
        expect_close(expect, out, want, rule=rule, case=case, hint=hint)
        rule = "Each key is loaded once, for all heads of its group."
        hint = "Load the keys once, outside of any loop over the heads: that is what sharing saves."
        case += ", bytes of keys loaded"
        expect.equal(report.loaded.get("keys", 0), 4 * keys.numel(), rule=rule, case=case, hint=hint)


@exercise(
    "6.7",
    title="Write new tokens into their slots",
    stars=2,
    minutes=25,
    hints=(
        "A captured graph runs with a fixed number of tokens. What stands in the slot mapping for those that are "
        "padding, and where must they go?",
        "Block: slot // BLOCK_SIZE. Place in it: slot % BLOCK_SIZE. A slot of −1 is padding: nothing to store.",
        "slot = tl.load(slots_ptr + program_id(0)); if slot >= 0: at = slot // BLOCK_SIZE * stride_block + slot % "
        "BLOCK_SIZE * stride_slot + arange(0, ROW); store key to k_ptr + at, value to v_ptr + at",
    ),
    vllm="vllm/v1/attention/ops/triton_reshape_and_cache_flash.py · reshape_and_cache_kernel_flash (slot_idx < 0)",
    reference=TRITON_ATTENTION,
    requires=("triton",),
    own_process=LIMIT,
)
def check_write(answer, expect: Expect) -> None:
    """write_kernel(key, value, k, v, slots, stride_block, stride_slot, BLOCK_SIZE, ROW)."""
    place = "Slot n is place n % BLOCK_SIZE of block n // BLOCK_SIZE."
    skip = "Skip padding: a slot of −1 means that this token is not stored at all. In torch, −1 would be the last slot."
    strides = "Blocks lie stride_block elements apart, slots stride_slot: here there are gaps between the blocks."
    twice = "One program per token: program_id(0) is the token. Its key goes to K, and its value to V, once each."
    for told, slots, gap, hint in (
        ("one token in slot 0", [0], 0, "Copy the ROW numbers of the token from key to K, and from value to V."),
        ("one token in slot 6", [6], 0, place),
        ("slots 3 and 16", [3, 16], 0, f"Token t is row t of key and value. {place}"),
        ("slots 5 and 23", [5, 23], 8, strides),
        ("slots 7, −1, 12", [7, -1, 12], 0, skip),
    ):
        shape, strides_of = (6, 4, 2, 8), (64 + gap, 16, 8, 1)
        flat = [fenced(torch.full((6 * strides_of[0],), -3.0)) for _ in range(2)]
        caches = [storage.as_strided(shape, strides_of, storage.storage_offset()) for storage in flat]
        want = [cache.clone() for cache in caches]
        generator = torch.Generator().manual_seed(len(slots))
        key, value = (fenced(torch.randn(len(slots), 2, 8, generator=generator)) for _ in range(2))
        write_slots(key, value, *want, torch.tensor(slots))
        arguments = {
            "key": key, "value": value, "k_cache": caches[0], "v_cache": caches[1],
            "slots": fenced(torch.tensor(slots)), "stride_block": strides_of[0], "stride_slot": 16, "BLOCK_SIZE": 4,
            "ROW": 16,
        }  # fmt: skip
        hints = {"outside": hint, "twice": twice}
        launch(
            expect, answer, (len(slots),), arguments, case=told, hints=hints, written={},
            results=("k_cache", "v_cache"),
        )  # fmt: skip
        for name, got, right in (("k_cache", caches[0], want[0]), ("v_cache", caches[1], want[1])):
            wrong = (got != right).any(dim=-1).any(dim=-1).nonzero().tolist()
            if wrong:
                block, offset = wrong[0]
                new = block * 4 + offset in slots
                rule = "The token of each slot stands in it." if new else "All other slots keep what they held."
                expect.fail(rule=rule, case=f"{told}: {name}, block {block}, place {offset}", hint=hint)


@exercise(
    "6.8",
    title="Move the blocks",
    stars=2,
    minutes=20,
    hints=(
        "A program sees a sequence only through its table. What must change in the table when a block moves?",
        "Block b's content goes to the place new_ids[b], and each table entry b becomes new_ids[b]. The order of the "
        "entries in a row stays: it is the order of the tokens.",
        "k, v = empty_like(...); k[new_ids] = k_cache; v[new_ids] = v_cache; "
        "tables = where(block_tables >= 0, new_ids[block_tables.clamp(min=0)], -1)",
    ),
    vllm="a block table names blocks in logical order; vllm/v1/worker/block_table.py · BlockTable",
    requires=("triton",),
    own_process=LIMIT,
)
def check_move_blocks(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]], expect: Expect
) -> None:
    """move_blocks(k_cache, v_cache, block_tables, new_ids) -> (k_cache, v_cache, block_tables)."""
    from minipaged.attention.triton import TritonBackend

    order = "Logical order only: the table names each token's block. Each entry's new place stands where the old did."
    for told, seq_lens, new_ids in (
        ("one sequence, two blocks swap places", [7], [1, 0, 2, 3]),
        ("one sequence, all blocks move on by one", [7], [1, 2, 3, 0]),
        ("lengths 7, 1, 9, shuffled", [7, 1, 9], [5, 2, 0, 7, 1, 3, 6, 4]),
    ):
        case = make_case(told, seq_lens, seed=3)
        moved_to, tables = torch.tensor(new_ids), case.metadata.block_tables
        before = TritonBackend().attend(case.query, case.k_cache, case.v_cache, case.metadata, case.scale)
        old_k, old_v, old_tables = (x.clone() for x in (case.k_cache, case.v_cache, tables))
        told = f"{told}: new_ids = {new_ids}"
        got = expect.call(answer, case.k_cache.clone(), case.v_cache.clone(), tables.clone(), moved_to)
        three = isinstance(got, tuple | list) and len(got) == 3 and all(isinstance(x, Tensor) for x in got)
        expect.that(three, rule="move_blocks returns three tensors.", got=got, hint="return k_cache, v_cache, tables")
        for name, new, old in (("k_cache", got[0], old_k), ("v_cache", got[1], old_v)):
            expect.equal(new.shape, old.shape, rule="A cache keeps its shape.", case=name, hint="Move blocks, axis 0.")
            hint = "new_ids[b] says where block b goes; cache[new_ids] would read the other way round."
            if torch.equal(new.nan_to_num(7e7), old.nan_to_num(7e7)):
                hint = f"{name} is as it was: its blocks must move too."
            for block, place in enumerate(new_ids):
                expect.that(
                    torch.equal(new[place].nan_to_num(7e7), old[block].nan_to_num(7e7)),
                    rule="The content of block b lies at new_ids[b].", case=f"{told}, {name}, block {block}", hint=hint,
                )  # fmt: skip
        want = torch.where(old_tables >= 0, moved_to.int()[old_tables.clamp(min=0).long()], old_tables)
        expect.equal(list(got[2].shape), list(want.shape), rule="The tables keep their shape.", case=told, hint=order)
        hint = order
        if bool((got[2][old_tables < 0] >= 0).any()):
            hint = "−1 marks an unused entry, and it stays −1: in torch, index −1 would take the last of new_ids."
        expect.equal(got[2].tolist(), want.tolist(), rule="Entry b becomes new_ids[b].", case=told, hint=hint)
        case.metadata.block_tables = fenced(got[2].to(torch.int32))
        after = TritonBackend().attend(case.query, got[0].contiguous(), got[1].contiguous(), case.metadata, case.scale)
        expect.equal(after, before, rule="The output is the same, bit for bit.", case=told, hint=order)


@exercise(
    "6.9",
    title="Split the context, merge the parts",
    stars=3,
    minutes=60,
    hints=(
        "Two parts of a context have been attended on their own. One holds the key that matters. May their outputs be "
        "averaged?",
        "A part's weight is its share of the whole sum: exp(its log-sum-exp − that of all parts). An empty part has "
        "the log-sum-exp −inf, and the weight 0.",
        "split: blocks = cdiv(seq_len, BLOCK_SIZE); per = cdiv(blocks, num_splits); loop i from split * per to "
        "min((split + 1) * per, blocks) as in 6.5; store acc / l and m + log(l), but 0 and -inf where l == 0.  merge: "
        "w = exp(lse - max(lse)); w = w / sum(w); out = sum(w[:, None] * parts, axis=0)",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · reduce_segments",
    reference=TRITON_ATTENTION,
    requires=("triton",),
    own_process=LIMIT,
)
def check_split(answer, expect: Expect) -> None:
    """(split_kernel, merge_kernel)."""
    expect.that(
        isinstance(answer, tuple | list) and len(answer) == 2, rule="The answer is two kernels.", got=answer,
        hint="check takes (split_kernel, merge_kernel).",
    )  # fmt: skip
    split_kernel, merge_kernel = answer
    _check_merge(merge_kernel, expect)
    for seq_lens, num_splits in (([4], 1), ([7], 2), ([7, 1, 9], 1), ([7, 1, 9], 2), ([7, 1, 9], 5)):
        _check_one_split(split_kernel, merge_kernel, seq_lens, num_splits, expect)


MERGE = {
    "outside load": "A row has num_splits parts, so row r begins at r · num_splits; SPLITS counts padded lanes.",
    "outside store": "Row r of the result begins at r · D.",
    "twice": "One program per row: program_id(0) is the row.",
}
PART = "Part s of row r, which is (seq, head), is number r · num_splits + s: its mean begins at that · D."
SHARE = "Weight each part by exp(LSE): exp(its log-sum-exp − the largest), divided by the sum of these weights."
EMPTY = "An empty part has l = 0, and 0 / 0 is NaN: store the mean 0 and the log-sum-exp −inf; then it weighs nothing."


def _check_merge(merge_kernel, expect: Expect) -> None:
    """The merge alone, on parts made by torch."""
    infinite = float("inf")
    for told, lse, padded, hint in (
        ("one part", [[0.5]], 1, "A single part is the result."),
        ("two parts of equal weight", [[1.0, 1.0]], 2, "Weights are divided by their sum."),
        ("two parts, log-sum-exps 0 and 3", [[0.0, 3.0]], 2, SHARE),
        ("log-sum-exps 500 and 501", [[500.0, 501.0]], 2, "exp(500) overflows: subtract the largest of them first."),
        ("three parts, padded to 4 lanes", [[1.0, 0.0, 2.0]], 4, "Lanes from num_splits on are no parts: mask the "
         "loads, with other=-inf for the log-sum-exp and 0 for the mean."),
        ("an empty part, and two rows", [[0.3, -infinite], [-infinite, 1.0]], 2, EMPTY),
    ):  # fmt: skip
        lses = fenced(torch.tensor(lse))
        rows, num_splits = lses.shape
        parts = fenced(torch.randn(rows, num_splits, 16, generator=torch.Generator().manual_seed(9)))
        parts[lses == -infinite] = 0.0
        out = unwritten(rows, 16)
        arguments = {"out": out, "parts": parts, "lse": lses, "num_splits": num_splits, "SPLITS": padded, "D": 16}
        launch(
            expect, merge_kernel, (rows,), arguments, case=f"merge of {told}", written={"out": False},
            hints={**MERGE, "outside load": hint if padded > num_splits else MERGE["outside load"]},
        )  # fmt: skip
        want = torch.einsum("rn,rnd->rd", torch.softmax(lses.double(), dim=1), parts.double())
        if agrees(out, parts.mean(dim=1)):
            hint = SHARE
        rule = "A part's weight is its share of the whole softmax."
        expect_close(expect, out, want, rule=rule, case=f"merge of {told}", hint=hint)


def _check_one_split(split_kernel, merge_kernel, seq_lens: list[int], num_splits: int, expect: Expect) -> None:
    case = make_case("", seq_lens, num_heads=2, num_kv_heads=2, seed=4)
    want, lse_truth = paged_attention(
        case.query, case.k_cache, case.v_cache, case.metadata, case.scale, compute_dtype=torch.float64
    )
    num_seqs, heads, _ = case.query.shape
    parts, lse = unwritten(num_seqs, heads, num_splits, 16), unwritten(num_seqs, heads, num_splits)
    told = f"lengths {', '.join(map(str, seq_lens))}; {num_splits} part{'s' * (num_splits > 1)}, B = 4"
    arguments = {"parts": parts, "lse": lse, **decode_arguments(case, parts)}
    del arguments["out"]
    arguments |= {"num_splits": num_splits, "BLOCK_SIZE": 4, "D": 16}
    own = "Each program takes its own part of the blocks: from split · per to min((split + 1) · per, blocks)."
    hints = {
        "outside load": own,
        "outside store": PART,
        "unwritten v_cache": NAN,
        "unwritten k_cache": TAIL,
        "twice": "program_id(0) is the sequence, program_id(1) the head, program_id(2) the part.",
    }
    report = launch(
        expect, split_kernel, (num_seqs, heads, num_splits), arguments, case=told, hints=hints,
        written=written_in(case, "parts", "lse"),
    )  # fmt: skip
    tokens = sum(seq_lens)
    loaded = report.loaded.get("k_cache", 0) // (4 * heads * 16)
    rule = "The parts share the context: each token is read by one part."
    expect.equal(loaded, tokens, rule=rule, case=f"{told}: tokens of K read, by each head", hint=own)
    for name, stored in (("mean", parts), ("log-sum-exp", lse)):
        hint, case_of = EMPTY if num_splits > 1 else "Store acc / l, and m + log(l).", f"{told}: the {name} of a part"
        expect.that(not stored.isnan().any(), rule="No part is NaN.", case=case_of, got=stored, hint=hint)
    out = unwritten(num_seqs, heads, 16)
    padded = 1 << (num_splits - 1).bit_length()
    arguments = {"out": out, "parts": parts, "lse": lse, "num_splits": num_splits, "SPLITS": padded, "D": 16}
    launch(
        expect, merge_kernel, (num_seqs * heads,), arguments, case=f"{told}, merged", hints=MERGE,
        written={"out": False},
    )  # fmt: skip
    expect_close(
        expect, torch.logsumexp(lse, dim=2), lse_truth, rule="The parts' sums add up to the whole sum.",
        case=f"{told}, log-sum-exp", hint="A part's log-sum-exp is m + log(l): m is the largest scaled score.",
    )  # fmt: skip
    _expect_attention(expect, out, want, case, told, SHARE)


@exercise(
    "6.10",
    title="Plug in: your paged decode kernel",
    stars=3,
    minutes=90,
    plug_in=True,
    hints=(
        "In 6.5 a step was one block. A matrix unit wants at least 16 keys a step, and a block may hold 8. Must a step "
        "be a block?",
        "A step is a TILE of positions, not a block: each lane reads the table entry of its own position, pos // "
        "BLOCK_SIZE. The rows of the product are the heads of one group, so each K is loaded once.",
        "TILE: tl.constexpr = 32; head = kv_head * GROUP + arange(0, GROUP); q [GROUP, D]; for start in range(0, "
        "seq_len, TILE): pos = start + arange(0, TILE); there = pos < seq_len; block = load(table + pos // BLOCK_SIZE, "
        "mask=there, other=0).to(int64); k, v [TILE, D] masked; scores = tl.dot(q, tl.trans(k)) * scale [GROUP, TILE]; "
        "m, l per row; acc = acc * c[:, None] + tl.dot(w, v)",
    ),
    vllm="vllm/v1/attention/ops/triton_unified_attention.py · kernel_unified_attention (TILE_SIZE)",
    reference=TRITON_ATTENTION,
    requires=("triton",),
    own_process=LIMIT,
)
def check_my_kernel(answer, expect: Expect) -> None:
    """my_paged_decode_kernel(out, q, k, v, tables, seq_lens, scale, num_heads, 4 strides, GROUP, BLOCK_SIZE, D)."""
    from minipaged.course import plug_in_month_6 as plug_in

    floor = "KV head j serves the query heads j · GROUP … j · GROUP + GROUP − 1."
    for told, seq_lens, heads, block_size, far, hint in (
        ("one block", [8], (1, 1), 8, 0, "The same sum as in 6.5, with a group of one head."),
        ("lengths 1, 7, 8, 9", [1, 7, 8, 9], (2, 2), 8, 0, TAIL),
        ("a group of 4", [9], (4, 1), 8, 0, floor),
        ("8 query heads, 2 KV heads", [5, 70], (8, 2), 8, 0, floor),
        ("blocks of 16, lengths 70 and 2", [70, 2], (4, 2), 16, 0, "BLOCK_SIZE is an argument: the table entry of a "
         "position is pos // BLOCK_SIZE."),
        ("blocks 2³⁰ elements apart", [17, 9], (2, 1), 8, FAR, CAST),
    ):  # fmt: skip
        shape = {"num_heads": heads[0], "num_kv_heads": heads[1], "block_size": block_size}
        case = make_case(told, seq_lens, **shape, far=far, seed=5)
        out = unwritten(*case.query.shape)
        constants = {"GROUP": heads[0] // heads[1], "BLOCK_SIZE": block_size, "D": 16}
        told, want = f"{told}; B = {block_size}, D = 16", truth(case)
        launch(
            expect, answer, (len(seq_lens), heads[1]), {**decode_arguments(case, out), **constants}, case=told,
            hints={**(dict.fromkeys(plug_in.HINTS, CAST) if far else plug_in.HINTS), "outside store": ROW_OF_HEAD},
            written=written_in(case, "out"),
        )  # fmt: skip
        _expect_attention(expect, out, want, case, told, hint)
    _check_compiles(answer, expect)
    mine = plug_in.texts(plug_in.PluggedIn(answer, expect))
    expect.equal(
        mine, plug_in.reference_texts(), rule="The engine's text is the reference's.", case=str(list(plug_in.PROMPTS)),
        hint="The small cases above are right, so look at what only the engine brings: other lengths, shared blocks.",
    )  # fmt: skip


def _check_compiles(kernel, expect: Expect) -> None:
    from minipaged.attention.own_kernel import DoesNotCompile, inspect_own
    from minipaged.course.kernel_runs import Words

    pointers = ["*fp32"] * 4 + ["*i32"] * 2
    types = dict(zip(kernel.arg_names, [*pointers, "fp32", *["i32"] * 5], strict=False))
    constants = dict(zip(kernel.arg_names[-3:], (4, 8, 64), strict=True))
    try:
        inspect_own(kernel, types, constants, target="sm90")
    except DoesNotCompile as error:
        hint = "The interpreter accepts more than the compiler does: its own words stand above, with the line."
        if "K >= 16" in str(error):
            hint = (
                "The compiler wants at least 16 for the inner size of tl.dot, and a block of 8 has less: let a step be "
                "a TILE of 16 or more positions, whatever the block size."
            )
        elif "loop" in str(error) and "type" in str(error):
            hint = "A variable that a loop carries on keeps one type: start it as a float32 (tl.zeros, tl.full)."
        rule = "The kernel compiles for a GPU (sm90; GROUP 4, BLOCK_SIZE 8, D 64)."
        expect.that(False, rule=rule, got=Words(error), hint=hint)
