"""Checks for Month 0, the KV cache and the driving question."""

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from minipaged.course.framework import Expect, exercise
from minipaged.course.month_0 import OneLayer


def expect_number(
    expect: Expect, answer: object, want: int, *, rule: str, case: str, hint: str, mistakes: Mapping[int, str]
) -> None:
    """A whole number, worked out by hand: a wrong one is shown with a hint, never with the right one."""
    whole = isinstance(answer, int) and not isinstance(answer, bool)
    expect.that(
        whole or isinstance(answer, float),
        rule="The answer is a number.", case=case, got=answer, hint="Write the number, or the product that makes it.",
    )  # fmt: skip
    hint = mistakes.get(answer, hint)
    if answer == want and not whole:
        hint = "The answer counts something: make it an integer (// divides without a remainder)."
    expect.that(answer == want and whole, rule=rule, case=case, got=answer, hint=hint)


@exercise(
    "0.1",
    title="KV bytes of one token, OPT-13B",
    stars=1,
    minutes=5,
    hints=(
        "How many numbers does one head of one layer keep for a token? Of what kinds?",
        "bytes per token = 2 · layers · KV heads · head size · bytes per number; the 2 is for K and V.",
        "2 * 40 * 40 * 128 * 2",
    ),
    vllm="vllm/v1/kv_cache_interface.py · AttentionSpec.unpadded_page_size_bytes (one layer, one block)",
)
def check_opt_13b(answer: int, expect: Expect) -> None:
    """Bytes, 819,200."""
    expect_number(
        expect,
        answer,
        819_200,
        rule="Each layer keeps K and V of the token, for every KV head, head size numbers each.",
        case="OPT-13B: 40 layers, 40 heads, head size 128, 2 bytes a number",
        hint="Multiply five numbers: one for K and V, the layers, the KV heads, the head size, the bytes.",
        mistakes={
            409_600: "The cache holds K and V, both.",
            20_480: "That is one layer. Each of the 40 layers has its own cache.",
            800: "800 what? The task asks for bytes; 1 KiB is 1024 bytes.",
            1_638_400: "A number takes 2 bytes in fp16, not 4.",
            20_971_520: "That is 2048 · 5120 · 2: max_len times hidden size counts neither the layers nor K and V.",
        },
    )


@exercise(
    "0.2",
    title="KV bytes of one token, with grouped queries",
    stars=1,
    minutes=5,
    hints=(
        "Four query heads share one KV head here. Which of them have entries in the cache?",
        "The formula of 0.1, with KV heads. The number of query heads does not occur in it.",
        "2 * 32 * 8 * 128 * 2",
    ),
    vllm="vllm/v1/kv_cache_interface.py · AttentionSpec (num_kv_heads, not the number of query heads)",
)
def check_gqa(answer: int, expect: Expect) -> None:
    """Bytes, 131,072."""
    expect_number(
        expect,
        answer,
        131_072,
        rule="Only K and V are cached, so only the KV heads count.",
        case="32 layers, 32 query heads, 8 KV heads, head size 128, bf16",
        hint="2 for K and V, then layers, KV heads, head size, and the bytes of one bf16 number.",
        mistakes={
            524_288: "Count KV heads, not query heads: queries are not cached.",
            65_536: "The cache holds K and V, and a bf16 number takes 2 bytes.",
            655_360: "Query heads have no entry in the cache: count KV heads only.",
            4_096: "That is one layer. Each of the 32 layers has its own cache.",
        },
    )


@exercise(
    "0.3",
    title="Slots in 12 GiB",
    stars=1,
    minutes=5,
    hints=(
        "How many bytes are 12 GiB? And how many of them does one slot of OPT-13B take?",
        "GiB = 2^30 bytes. A slot holds one token's K and V of all layers. Only whole slots count.",
        "12 * 2**30 // 819200",
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · get_kv_cache_config_from_groups (num_blocks)",
)
def check_slots(answer: int, expect: Expect) -> None:
    """Whole slots, 15,728."""
    expect_number(
        expect,
        answer,
        15_728,
        rule="Slots = bytes of memory // bytes of one slot, with GiB = 2^30 bytes.",
        case="12 GiB for the KV cache, 819,200 bytes for each slot",
        hint="Divide bytes by bytes, and drop the remainder.",
        mistakes={
            14_648: "GiB = 2^30 bytes, GB = 10^9 bytes. The paper's 15.7K comes out with GiB.",
            15_729: "Part of a slot holds no token: round down.",
            15_700: "The paper rounds to 15.7K; give the exact number of whole slots.",
            31_457: "A slot takes 819,200 bytes: K and V.",
        },
    )


@exercise(
    "0.4",
    title="What to cache",
    stars=1,
    minutes=5,
    hints=(
        "In step 20, which rows of Q, which of K and which of V are read?",
        "Only what a later step reads again is worth keeping.",
        'cached = the two that a new query is used with; reason = the one about who reads old queries',
    ),
    vllm="vllm/v1/attention/backends/flash_attn.py · FlashAttentionImpl.do_kv_cache_update (it takes key and value)",
)
def check_what_to_cache(answer: tuple[set[str], str], expect: Expect) -> None:
    """({"K", "V"}, "b")."""
    cached, reason = answer
    names = set(cached) if isinstance(cached, set | frozenset | list | tuple | str) else set()
    names = {str(name).upper() for name in names}
    expect.that(
        names and names <= {"Q", "K", "V"},
        rule='The first part is a set of the letters "Q", "K", "V".', got=cached, hint='Write for example {"Q", "V"}.',
    )  # fmt: skip
    rule = "Keep what a later step reads, and nothing else."
    expect.that("Q" not in names, rule=rule, got=cached, hint="Does any later step read an old query?")
    missing = {"K", "V"} - names
    expect.that(
        not missing, rule=rule, got=cached,
        hint=f"A new query is compared with all old keys, and then takes a weighted sum of all old values: "
        f"{' and '.join(sorted(missing))} will be read again.",
    )  # fmt: skip
    wrong = {
        "a": "Size is not the reason: with 8 query and 8 KV heads Q is as large as K, and still not kept.",
        "c": "The prefill computes Q too: each position of the prompt attends. It is just not needed afterwards.",
        "d": "Q cannot be computed from K and V: it comes from the hidden state. Ask who would read it.",
    }
    expect.that(
        str(reason).lower().strip(" .)") == "b", rule="The reason decides, not the luck of the letters.", got=reason,
        hint=wrong.get(str(reason).lower().strip(" .)"), "The reason is one of the letters a, b, c, d."),
    )  # fmt: skip


@exercise(
    "0.5",
    title="A decode step with a cache",
    stars=2,
    minutes=20,
    hints=(
        "Three tokens are in the cache. Which position does the new one have? Which keys does its query look at?",
        "position = length of the cache. Append the new k and v first: a token also attends to itself.",
        "hidden = token_embedding[token] + position_embedding[len(cache_k)]; q, k, v = hidden @ w_q, …; append k, v; "
        "weights = softmax(stacked keys @ q * scale); return weights @ stacked values",
    ),
    vllm="vllm/v1/worker/gpu_model_runner.py · GPUModelRunner._prepare_inputs (positions = num_computed_tokens + …)",
    reference=("minipaged.course.month_0.CachedSequence.decode",),
)
def check_decode_step(answer: Callable[..., torch.Tensor], expect: Expect) -> None:
    """decode_step(model, token_id, cache_k, cache_v) -> [size]."""
    for seed, prompt_len, steps in ((0, 1, 1), (0, 3, 5), (1, 7, 12)):
        model, rng = OneLayer(seed), random.Random(seed)
        tokens = [rng.randrange(16) for _ in range(prompt_len + steps)]
        truth = model.forward_dense(tokens)
        hidden = model.token_embedding[tokens] + model.position_embedding[: len(tokens)]
        keys, values = hidden @ model.w_k, hidden @ model.w_v
        cache_k, cache_v = list(keys[:prompt_len]), list(values[:prompt_len])
        for at in range(prompt_len, len(tokens)):
            case = f"OneLayer(seed={seed}), {at} cached tokens, then token {tokens[at]}"
            mistakes = known_mistakes(model, tokens[at], list(keys[:at]), list(values[:at]))
            got = expect.call(answer, model, tokens[at], cache_k, cache_v)
            otherwise = "Compare with `OneLayer.forward_dense`, line by line."
            hint = next((meant for wrong, meant in mistakes if looks_like(got, wrong)), otherwise)
            expect.close(
                got, truth[at], rtol=1e-9, atol=1e-9, case=case, hint=hint,
                rule="A decode step with the cache gives what the full computation gives for the last position.",
            )  # fmt: skip
            for name, cache, right in (("cache_k", cache_k, keys), ("cache_v", cache_v, values)):
                expect.equal(
                    len(cache), at + 1, case=f"{case}: len({name})",
                    rule="Each step appends one K and one V.",
                    hint="The next step needs this token's k and v: append both.",
                )  # fmt: skip
                expect.close(
                    torch.stack([torch.as_tensor(row) for row in cache]), right[: at + 1], rtol=1e-9, atol=1e-9,
                    case=f"{case}: {name} afterwards", rule="Old entries stay, and the new one goes to the end.",
                    hint="Append k to cache_k and v to cache_v; touch nothing else.",
                )  # fmt: skip


def looks_like(got: object, wrong: torch.Tensor) -> bool:
    return isinstance(got, torch.Tensor) and got.shape == wrong.shape and torch.allclose(got.double(), wrong)


def known_mistakes(
    model: OneLayer, token: int, keys: list[torch.Tensor], values: list[torch.Tensor]
) -> list[tuple[torch.Tensor, str]]:
    """Results that give a mistake away, each with the hint meant for it."""

    def step(position: int, own: bool = True, scale: float = model.scale) -> torch.Tensor:
        hidden = model.token_embedding[token] + model.position_embedding[position]
        all_keys = torch.stack([*keys, hidden @ model.w_k] if own else keys)
        all_values = torch.stack([*values, hidden @ model.w_v] if own else values)
        return torch.softmax(all_keys @ (hidden @ model.w_q) * scale, dim=0) @ all_values

    right = len(keys)
    return [
        (step(0), "The position is the length of the cache, not 0."),
        (step(right + 1), "Take the position before you append: with 3 cached tokens the new one has position 3."),
        (step(right - 1), "That is the position of the newest cached token; the new one comes one later."),
        (step(right, own=False), "A token attends to itself too: its own k and v belong to the keys and values."),
        (step(right, scale=1.0), "The scores are multiplied by model.scale before the softmax."),
    ]


@exercise(
    "0.6",
    title="How many entries has the cache?",
    stars=2,
    minutes=10,
    hints=(
        "Which step computes K and V of the first sampled token: the one that chose it, or the next one?",
        "The cache lags the newest token by one: a sampled token is written when it is fed into the next step.",
        "the prompt, and every sampled token except the newest (if there is one)",
    ),
    vllm="vllm/v1/request.py · Request.num_computed_tokens (against Request.num_tokens)",
)
def check_entries(answer: Callable[[int, int], int], expect: Expect) -> None:
    """cache_entries(num_prompt, num_sampled) -> int."""
    rule = "The cache holds every token that was fed: the prompt, and all sampled tokens but the newest."
    newest = "The newest token is not fed yet: it was only chosen, so its K and V do not exist."
    expect.returns(9, answer, 7, 3, rule=rule, hint=newest, mistakes={10: newest})
    expect.returns(
        7, answer, 7, 1, rule=rule, hint="The first token comes from the prefill's logits; nothing was decoded yet.",
        mistakes={8: newest},
    )  # fmt: skip
    none = "The prefill has run and nothing is sampled yet: the whole prompt is in the cache, not one token less."
    expect.returns(7, answer, 7, 0, rule=rule, hint=none, mistakes={6: none})
    for prompt, sampled in ((1, 0), (1, 1), (1, 2), (100, 28)):
        want = prompt + max(sampled - 1, 0)
        expect.returns(want, answer, prompt, sampled, rule=rule, hint="Does it use both numbers?")


@exercise(
    "0.7",
    title="Count the projections",
    stars=2,
    minutes=10,
    hints=(
        "How many steps are there for 5 new tokens? How many positions does each step compute K and V for?",
        "Without a cache every step computes all positions so far. With it: the prompt once, then one per step.",
        "without: num_prompt + (num_prompt + 1) + … for num_new steps; with: num_prompt + num_new - 1",
    ),
    vllm="vllm/v1/core/sched/scheduler.py · Scheduler.schedule (num_new_tokens)",
)
def check_projections(answer: Callable[[int, int, bool], int], expect: Expect) -> None:
    """kv_projections(num_prompt, num_new, use_cache) -> int."""
    without = "Without a cache each of the num_new steps projects every position so far."
    last = "The last sampled token is never fed, as in 0.6. (And attention is still O(t) in each step.)"
    expect.returns(
        45, answer, 7, 5, False, rule=without, hint="The steps run over 7, 8, 9, 10 and 11 positions.",
        mistakes={
            57: "The last sampled token is never fed, as in 0.6: the last step runs over 11 positions.",
            50: "The first step runs over the prompt alone: 7 positions, not 8.",
            60: "The sequence grows: the first step has 7 positions, only the last has 11.",
            35: "The sequence grows: only the first step has 7 positions.",
            11: "That is the number with a cache. Without it, earlier positions are projected again and again.",
        },
    )  # fmt: skip
    with_cache = "With a cache each position is projected once: the prompt in the prefill, then one token a step."
    expect.returns(
        11, answer, 7, 5, True, rule=with_cache, hint="The prefill brings 7; four decode steps follow it.",
        mistakes={12: last, 5: "The prompt is projected too, in the prefill.",
                  4: "The prompt is projected too, in the prefill.",
                  45: "That is the number without a cache: use_cache is True here."},
    )  # fmt: skip
    for prompt, new in ((1, 1), (7, 1), (3, 2), (100, 28)):
        full = sum(range(prompt, prompt + new))
        expect.returns(full, answer, prompt, new, False, rule=without, hint="Does it use both numbers?")
        expect.returns(prompt + new - 1, answer, prompt, new, True, rule=with_cache, hint="Does it use both numbers?")


LABELS = ("used", "reserved", "internal", "external", "duplicate")
MEMORY = ["used"] * 4 + ["reserved"] + ["internal"] * 3 + ["external"] * 3
MEMORY += ["duplicate"] * 2 + ["used"] + ["reserved"] * 2 + ["internal"] + ["external"] * 3
FACTS = [
    *["request A, written"] * 4, "request A, its fifth and last token will go here",
    *["request A, behind its last token"] * 3,
    *["between A and B"] * 3, *["request B, written; A stores the same token at the same position"] * 2,
    "request B, written", *["request B, a later token will go here"] * 2, "request B, behind its last token",
    *["behind B"] * 3,
]  # fmt: skip


@exercise(
    "0.8",
    title="The driving question: label every slot",
    stars=2,
    minutes=15,
    hints=(
        "For each slot: is it written? If not, is it in a reservation? And will this request ever use it?",
        "Reserved: used later. Internal: in a reservation, never used. External: in no reservation, too short for the "
        "waiting request. Duplicate: equal tokens from the start, so equal K and V, stored a second time.",
        "A: 4 used, 1 reserved, the rest internal; then the hole; B: 2 duplicate, 1 used, 2 reserved, 1 internal",
    ),
    vllm="vllm/v1/core/kv_cache_manager.py · KVCacheManager.allocate_slots (what it does instead: blocks, on demand)",
)
def check_labels(answer: Sequence[str], expect: Expect) -> None:
    """20 labels."""
    kinds = ", ".join(LABELS)
    expect.that(
        isinstance(answer, list | tuple), rule="The answer is a list of 20 labels.", got=answer,
        hint='Begin with ["used"] * 4 + …',
    )  # fmt: skip
    for i, mine in enumerate(answer):
        rule = f"A label is one of {kinds}."
        expect.that(mine in LABELS, rule=rule, case=f"slot {i}", got=mine, hint="Check the spelling.")
    expect.equal(len(answer), 20, rule="One label for each slot.", case="number of labels", hint="Slots 0 to 19.")
    for i, (mine, true) in enumerate(zip(answer, MEMORY, strict=True)):
        expect.that(
            mine == true, rule="A label says what the slot is for: now, later, nothing, or a second copy.",
            case=f"slot {i}: {FACTS[i]}", got=mine, hint=label_hint(mine, true), picture=memory_text(answer, i),
        )  # fmt: skip


def label_hint(mine: str, true: str) -> str:
    if {mine, true} <= {"reserved", "internal", "external"} and "external" not in (mine, true):
        return "Will this request ever use the slot? If yes it is reserved, if never it is internal waste."
    if "external" in (mine, true):
        return "Does the slot belong to a reservation? Internal waste lies inside one, external waste in none."
    if true == "duplicate":
        return "Look at the tokens from the start of both requests: equal tokens at equal positions have equal K and V."
    if mine == "duplicate":
        return "One copy is needed. A duplicate is the second one, and only while all tokens before it agree too."
    return "Is the slot written at this moment? Written is used; not yet written is reserved."


def memory_text(labels: Sequence[str], at: int) -> str:
    letters = "".join(label[0] for label in labels)
    return f"your labels  {letters[:8]} {letters[8:11]} {letters[11:17]} {letters[17:]}\n" + (
        "             " + " " * (at + sum(at >= edge for edge in (8, 11, 17))) + "^"
    )
