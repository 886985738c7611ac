"""Checks for Month 3, the prefix cache."""

import random
from collections.abc import Callable

from minipaged.course.faulty_caches import FAULTY, RULES
from minipaged.course.framework import Expect, exercise
from minipaged.kv_cache import CacheRequest, KVCacheBlock, KVCacheManager, PrefixCache, hash_block_tokens


@exercise(
    "3.1",
    title="A chain of names",
    stars=1,
    minutes=15,
    hints=(
        "The same four tokens after another beginning: are their K and V the same? So may their names be?",
        "The name of a block covers the name of the block before it and the block's own tokens.",
        'name = b""; for each full block: name = sha256(name + repr(tokens of the block).encode()).digest(); append',
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · hash_block_tokens",
    reference=("minipaged.kv_cache.hashing.hash_block_tokens",),
)
def check_hash_chain(answer: Callable[[list[int], int], list[bytes]], expect: Expect) -> None:
    """hash_chain(token_ids, block_size) -> one name per full block."""
    full = "Only full blocks have a name."
    for num_tokens, names in ((0, 0), (3, 0), (4, 1), (7, 1), (8, 2)):
        got = expect.call(answer, list(range(num_tokens)), 4)
        case = f"hash_chain of {num_tokens} tokens, blocks of 4"
        hint = "The last block may be only partly filled: leave it out."
        expect.that(isinstance(got, list), rule="A list of names.", case=case, got=got, hint="Return a list.")
        expect.equal(len(got), names, rule=full, case=case, hint=hint)
    first, other = expect.call(answer, [1, 2, 3, 4, 5, 6, 7, 8], 4), expect.call(answer, [9, 9, 9, 9, 5, 6, 7, 8], 4)
    expect.that(
        all(isinstance(name, bytes) for name in first),
        rule="A name is a string of bytes.",
        got=first,
        hint="hashlib.sha256(…).digest() gives bytes. Python's hash() is made for dictionaries, not for names.",
    )
    expect.that(
        all(len(name) == 32 for name in first),
        rule="A name is one sha256 digest, 32 bytes, however long the past.",
        got=[f"{len(name)} bytes" for name in first],
        hint="Do not keep what you hash, only its digest: hashlib.sha256(…).digest().",
    )
    again = expect.call(answer, [1, 2, 3, 4, 5, 6, 7, 8], 4)
    expect.equal(
        again, first, rule="Equal pasts have equal names.", case="the same tokens twice", hint="Use no random seed."
    )
    rule = "Blocks with equal tokens after unequal pasts have different names."
    case = "5 6 7 8 after 1 2 3 4, and after 9 9 9 9"
    expect.that(first[1] != other[1], rule=rule, case=case, hint="Add the parent's name to what you hash.")
    far = [expect.call(answer, [start, 2, 3, 4, 5, 6, 7, 8], 2)[3] for start in (1, 7)]
    hint = "The parent's name, not the parent's tokens: then the whole past is covered, however long it is."
    expect.that(far[0] != far[1], rule=rule, case="the fourth block, where the first one differs", hint=hint)
    pairs = [expect.call(answer, tokens, 2)[0] for tokens in ([1, 23], [12, 3])]
    hint = "Text of numbers needs something between them: 1, 23 and 12, 3 must not look alike. repr() of a list has it."
    expect.that(pairs[0] != pairs[1], rule="Different tokens, different names.", case="[1, 23] and [12, 3]", hint=hint)
    order = [expect.call(answer, tokens, 2)[0] for tokens in ([1, 2], [2, 1])]
    hint = "The order of the tokens counts: do not sort or add them."
    expect.that(order[0] != order[1], rule="Different tokens, different names.", case="[1, 2] and [2, 1]", hint=hint)


@exercise(
    "3.2",
    title="How much of it hits?",
    stars=1,
    minutes=5,
    hints=(
        "Which blocks of the first request are full, and equal to the second's from its first token on?",
        "Only full blocks are in the cache. A block hits when all of its tokens, and all before it, are equal.",
        "10 shared tokens // 4 tokens a block = blocks that hit; times 4 = tokens",
    ),
    vllm="vllm/v1/core/single_type_kv_cache_manager.py · FullAttentionManager.find_longest_cache_hit",
)
def check_partial_hit(answer: int, expect: Expect) -> None:
    """hit_tokens."""
    expect.equal(
        answer,
        8,
        rule="The cache holds full blocks only: a hit is a whole number of blocks.",
        case="14 tokens, the first 10 as in an earlier request, blocks of 4",
        hint="How many blocks lie wholly within the 10 shared tokens?",
        mistakes={
            10: "Full blocks only: the third block holds 2 shared tokens and 2 others, so it has another name.",
            12: "Full blocks only: the third block has 2 tokens that differ. A block hits as a whole or not at all.",
            2: "That is the number of blocks. The question asks for tokens.",
            14: "Only the first 10 tokens are equal.",
            0: "Two blocks lie wholly within the shared 10 tokens; the rest does not spoil them.",
        },
    )


@exercise(
    "3.3",
    title="What is left to compute",
    stars=1,
    minutes=5,
    hints=(
        "Which part of the second prompt has been computed before? What about the rest of it?",
        "The prefill starts behind the hit and runs over all tokens that are left.",
        "hit = 16 // 16 blocks of 16; compute = 16 + 6 - hit",
    ),
    vllm="vllm/v1/core/sched/scheduler.py · Scheduler.schedule (num_new_tokens = num_tokens - num_computed_tokens)",
)
def check_suffix(answer: tuple[int, int], expect: Expect) -> None:
    """(hit, computed)."""
    suffix = "The suffix is still prefilled: all tokens behind the hit run through the model."
    expect.equal(
        answer,
        (16, 6),
        rule="Tokens of the prompt = tokens that hit + tokens that are computed.",
        case="16 + 5 tokens were served; now 16 + 6 arrive, blocks of 16",
        hint="The system prompt is exactly one block. Everything behind it is new.",
        mistakes={
            (16, 0): suffix,
            (0, 22): "The system prompt fills one whole block, and that block is in the cache: 16 tokens hit.",
            (16, 1): suffix,
            (16, 22): "The 16 tokens that hit are not computed again: that is what the cache saves.",
            (22, 0): "The question is new: nobody computed its 6 tokens.",
            (21, 1): "The two questions differ from their first block on; and hits come in whole blocks of 16.",
        },
    )


@exercise(
    "3.4",
    title="The last token must run",
    stars=2,
    minutes=15,
    hints=(
        "All tokens of a prompt are in the cache. From which position do you get the logits of the next token?",
        "At most num_tokens - 1 tokens may come from the cache, and only in whole blocks.",
        "min(cached_blocks, (num_tokens - 1) // block_size) * block_size",
    ),
    vllm="vllm/v1/core/kv_cache_manager.py · KVCacheManager.get_computed_blocks (max_cache_hit_length)",
    reference=("minipaged.kv_cache.manager.KVCacheManager.get_computed_blocks",),
)
def check_last_token(answer: Callable[[int, int, int], int], expect: Expect) -> None:
    """usable_hit(num_tokens, cached_blocks, block_size) -> tokens."""
    rule = "At most n - 1 tokens come from the cache, in whole blocks."
    last = "The last token must run: its logits choose the next token, and logits are not in the cache."
    whole = "Whole blocks only: round down to a multiple of the block size."
    expect.returns(0, answer, 16, 1, 16, rule=rule, hint=last, mistakes={15: whole, 16: last})
    expect.returns(16, answer, 17, 1, 16, rule=rule, hint="Token 17 runs, so the 16 before it may come from the cache.")
    expect.returns(16, answer, 32, 2, 16, rule=rule, hint=last, mistakes={31: whole, 32: last})
    found = "Not more than the cache holds: cached_blocks blocks match, and no more."
    expect.returns(4, answer, 40, 1, 4, rule=rule, hint=found)
    expect.returns(0, answer, 40, 0, 4, rule=rule, hint=found)
    expect.returns(0, answer, 1, 0, 4, rule=rule, hint="One token, and that one must run.")
    for num_tokens in range(1, 40):
        for size in (1, 3, 4):
            for cached in range(num_tokens // size + 1):
                want = max(k * size for k in range(cached + 1) if k * size <= num_tokens - 1)
                expect.returns(want, answer, num_tokens, cached, size, rule=rule, hint="Does it use block_size?")


TWO_GONE = [6, 4, 7, 8, 9, 3, 2, 5, 1, 0]


@exercise(
    "3.5",
    title="The free queue after two requests",
    stars=2,
    minutes=20,
    hints=(
        "Which blocks bear a name when their request ends, and which are only partly filled? Who still uses 0 and 1?",
        "A request gives its blocks back from its tail. Unnamed ones go to the front of the queue, named ones to its "
        "back, in that order.",
        "write both tables; r0 ends: front [4], back [3, 2]; 1 and 0 are in use; r1 ends: front [6], back [5, 1, 0]",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockPool.free_blocks",
)
def check_free_queue(answer: list[int], expect: Expect) -> None:
    """free_queue."""
    expect.equal(
        answer,
        TWO_GONE,
        rule="Unnamed blocks go to the front of the free queue; named ones to its back, the tail of a sequence first.",
        case="the free queue, front first, after r0 and then r1 have ended",
        hint="Draw both tables first: r0 has 0 1 2 3 4, r1 has 0 1 5 6. Only blocks 4 and 6 are partly filled.",
        mistakes={
            (6, 4, 7, 8, 9, 2, 3, 0, 1, 5): "The tail first: a block is of no use without those before it, so the last "
            "block of a sequence must be evicted before its first.",
            (6, 4, 7, 8, 9, 0, 1, 2, 3, 5): "Tail first: the oldest block is the head of the chain, and without it the "
            "others cannot be found. It must go last.",
            (6, 4, 7, 8, 9, 5, 3, 2, 1, 0): "r0 ended before r1: its named blocks stand before r1's in the queue.",
            (7, 8, 9, 4, 3, 2, 6, 5, 1, 0): "That is the rule of older vLLM releases. Blocks 4 and 6 bear no name: "
            "they can never hit, so they are handed out first.",
            (4, 6, 7, 8, 9, 3, 2, 5, 1, 0): "r1 ends last, and its unnamed block 6 is put before everything else.",
            (6, 4, 7, 8, 9, 3, 2, 1, 0, 5): "When r0 ends, r1 still uses 0 and 1: they become free with r1, and 5 is "
            "r1's tail, so it goes before them.",
            (6, 4, 7, 8, 9, 5, 1, 0, 3, 2): "The least recently used stand in front: r0 ended first.",
        },
    )


@exercise(
    "3.6",
    title="Touch before allocating",
    stars=3,
    minutes=30,
    hints=(
        "A hit that nobody uses stands in the free queue. What happens if new blocks are taken before it is touched?",
        "Count first, change nothing. Then touch the hits (out of the queue, count up), then take the new blocks.",
        "new = blocks needed - hits; idle = hits with count 0; if new > len(queue) - len(idle): return None; "
        "touch every hit; pop `new` blocks from the front; return (tokens that hit, hits + new blocks)",
    ),
    vllm="vllm/v1/core/kv_cache_manager.py · KVCacheManager.allocate_slots",
)
def check_touch_first(answer: Callable[..., tuple[int, list[int]] | None], expect: Expect) -> None:
    """start(num_tokens, hits, free_queue, ref_counts, block_size) -> (hit tokens, table) | None."""
    touch = "Touch before allocating: a hit leaves the queue first, or it is handed out as a new block."
    case = "r2 after exercise 3.5: 29 tokens, the first 12 are r0's"
    queue, counts = list(TWO_GONE), dict.fromkeys(range(10), 0)
    got = expect.call(answer, 29, [0, 1, 2], queue, counts, 4)
    expect.equal(
        got,
        (12, [0, 1, 2, 6, 4, 7, 8, 9]),
        rule="The table is the blocks that hit, then new ones from the front of the queue.",
        case=case,
        hint="29 tokens need 8 blocks; 3 of them hit, so 5 are taken from the front.",
    )
    expect.equal(queue, [3, 5], rule="A block in use is not in the free queue.", case=case, hint=touch)
    in_use = {block: int(block not in (3, 5)) for block in range(10)}
    hint = "Each block of the table has one more user: the touched ones and the new ones."
    expect.equal(counts, in_use, rule="The count is the number of tables.", case=case, hint=hint)

    case = "a hit stands at the front of the queue"
    queue, counts = [4, 7, 2], {4: 0, 7: 0, 2: 0}
    got = expect.call(answer, 9, [4], queue, counts, 4)
    rule = "A block that hits cannot be handed out as a new one."
    expect.equal(got, (4, [4, 7, 2]), rule=rule, case=case, hint=touch)
    expect.equal((queue, counts), ([], {4: 1, 7: 1, 2: 1}), rule=rule, case=case, hint=touch)

    case = "a hit that another request uses"
    queue, counts = [8, 3], {5: 1, 8: 0, 3: 0}
    got = expect.call(answer, 6, [5], queue, counts, 4)
    shared = "A hit in use is not in the queue: only its count goes up."
    expect.equal((got, queue), ((4, [5, 8]), [3]), rule="A shared block stays where it is.", case=case, hint=shared)
    expect.equal(counts, {5: 2, 8: 1, 3: 0}, rule="The count is the number of tables.", case=case, hint=shared)

    refuse = "A refusal changes nothing: count what is needed before the first change."
    for case, num_tokens, hits, queue, counts in (
        ("2 new blocks and a hit, 2 blocks in the queue, one of them the hit", 12, [6], [6, 1], {6: 0, 1: 0}),
        ("3 blocks needed, 2 in the queue", 12, [], [6, 1], {6: 0, 1: 0}),
    ):
        before = (list(queue), dict(counts))
        got = expect.call(answer, num_tokens, hits, queue, counts, 4)
        idle = "The hit itself stands in the queue: it counts among the free blocks, and it will leave them."
        expect.equal(got, None, rule="Too few blocks: None.", case=case, hint=idle if hits else "Compare first.")
        expect.equal((queue, counts), before, rule="A refused allocation changes nothing.", case=case, hint=refuse)
    _replay_starts(answer, expect, touch)


def _replay_starts(answer: Callable, expect: Expect, hint: str) -> None:
    """Many pools, against the manager's arithmetic written down once more."""
    rng = random.Random(4)
    for _ in range(200):
        size, blocks = rng.choice((1, 2, 4)), rng.sample(range(12), 8)
        counts = {block: rng.choice((0, 0, 1, 2)) for block in blocks}
        queue = [block for block in blocks if counts[block] == 0]
        hits = rng.sample(blocks, rng.randint(0, 3))
        num_tokens = len(hits) * size + rng.randint(1, 3 * size)
        need = -(-num_tokens // size) - len(hits)
        rest = [block for block in queue if block not in hits]
        case = f"{num_tokens} tokens, hits {hits}, queue {queue}, block size {size}"
        want = (len(hits) * size, hits + rest[:need]) if need <= len(rest) else None
        after = rest[need:] if want else list(queue)
        got = expect.call(answer, num_tokens, list(hits), queue, counts, size)
        expect.equal(got, want, rule="Hits first, then new blocks from the front.", case=case, hint=hint)
        expect.equal(queue, after, rule="A block in use is not in the free queue.", case=case, hint=hint)


@exercise(
    "3.7",
    title="The stale name",
    stars=2,
    minutes=20,
    hints=(
        "Block 0 is handed out and will be overwritten. Who can still find it under its old name?",
        "When a block is handed out, its name is forgotten in both places: at the block, and in the map from names.",
        "block = free.pop(0); name = name_of.pop(block, None); if found.get(name) == block: delete it; return block",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockPool._maybe_evict_cached_block",
)
def check_stale_name(answer: type, expect: Expect) -> None:
    """NamedPool."""
    who = "Who else points here? The map from names still leads to this block, whose content is about to change."
    rule = "A name leads only to a block that still bears it."
    pool = expect.call(answer, 2)
    block = pool.take()
    pool.insert("Four score and seven", block)
    pool.give_back(block)
    kept = "Free does not mean forgotten: a freed block keeps its name until it is handed out."
    expect.equal(pool.lookup("Four score and seven"), block, rule=kept, case="named, given back", hint=kept)
    taken = [expect.call(pool.take), expect.call(pool.take)]
    expect.equal(taken, [1, 0], rule="Blocks are taken from the front of `free`.", hint="pop(0).")
    got = pool.lookup("Four score and seven")
    expect.equal(got, None, rule=rule, case="block 0 has a name, is given back and taken again", hint=who)
    hint = "The block itself must forget its name too: `name_of`."
    expect.equal(pool.name_of, {}, rule=rule, case="the same", hint=hint)

    case = "blocks 0 and 1 hold the same content; block 1 is taken again"
    pool = expect.call(answer, 3)
    first, second = pool.take(), pool.take()
    pool.insert("seven", first)
    pool.insert("seven", second)
    pool.give_back(second)
    expect.equal([pool.take(), expect.call(pool.take)], [2, 1], rule="From the front.", case=case, hint="pop(0).")
    twin = "Block 1 was a duplicate: the name leads to block 0, which still bears it. Remove it only if it leads here."
    expect.equal(pool.lookup("seven"), 0, rule="Evicting one duplicate keeps the other.", case=case, hint=twin)
    _replay_names(answer, expect, who)


def _replay_names(answer: type, expect: Expect, hint: str) -> None:
    """Random use: what a lookup finds must still hold that content."""
    rng, pool, content, used = random.Random(5), expect.call(answer, 5), {}, []
    for _ in range(300):
        if used and (rng.random() < 0.5 or not pool.free):
            pool.give_back(used.pop(rng.randrange(len(used))))
        else:
            block, name = expect.call(pool.take), f"content {rng.randrange(8)}"
            content[block] = name
            if rng.random() < 0.8:
                pool.insert(name, block)
            used.append(block)
        for name in {f"content {i}" for i in range(8)}:
            found = pool.lookup(name)
            expect.that(
                found is None or content[found] == name,
                rule="A name leads only to a block that still bears it.",
                case=f"lookup({name!r}) after some use",
                want=name,
                got=content.get(found),
                hint=hint,
            )


@exercise(
    "3.8",
    title="The identical second request",
    stars=2,
    minutes=10,
    hints=(
        "How many of the 6 prompt tokens lie in full blocks? Where do the others go?",
        "Block 1 of r0 now holds prompt and generated tokens: r1's second block starts with a block of its own. Tables "
        "are append-only: an entry never changes afterwards.",
        "hit: block 0; new: the first free block; eight tokens fit into these two",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockHashToBlockMap (duplicates are kept, tables are append-only)",
)
def check_duplicate(answer: list[int], expect: Expect) -> None:
    """table_r1."""
    expect.equal(
        answer,
        [0, 3],
        rule="A table is append-only: blocks that turn out equal are kept as duplicates, never exchanged.",
        case="r1 after 6 prompt tokens and the same 2 generated ones; r0 has [0, 1, 2]",
        hint="4 of the 6 prompt tokens hit; the other 2 go into a new block.",
        mistakes={
            (0, 1): "Append-only in V1: r1 got a block of its own for tokens 4 and 5; when that one is full and "
            "equal to block 1 it stays in the table. Both are kept.",
            (0, 1, 3): "When r1 arrives, 6 tokens is all it has: block 1 needs 8. It cannot hit.",
            (0, 1, 2): "r1 has 8 tokens, two blocks; and only full blocks of its prompt can hit.",
            (3, 4): "The first 4 tokens are a full block, equal from the beginning on: block 0 hits.",
            (0, 3, 4): "8 tokens need two blocks.",
        },
    )


@exercise(
    "3.9",
    title="Keys that keep tenants apart",
    stars=2,
    minutes=20,
    hints=(
        "Two tenants send the same prompt. Which block's name must differ so that all later ones differ too?",
        "The salt goes into the first block; the chain hands it on. Tag each key, so that an adapter named like a "
        "salt stays different from it.",
        'keys = []; if adapter: add ("adapter", adapter); if block 0 and salt: add ("cache_salt", salt); as a tuple',
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · generate_block_hash_extra_keys",
    reference=("minipaged.kv_cache.hashing.extra_keys",),
)
def check_extra_keys(answer: Callable[..., tuple], expect: Expect) -> None:
    """keys_of(block_index, adapter, cache_salt) -> tuple of tagged keys."""

    def names(adapter: str | None = None, salt: str | None = None) -> list[bytes]:
        chain: list[bytes] = []
        for index, tokens in enumerate(([1, 2, 3, 4], [5, 6, 7, 8])):
            keys = expect.call(answer, index, adapter, salt)
            expect.that(
                isinstance(keys, tuple),
                rule="Extra keys are a tuple of (tag, value) pairs.",
                case=f"keys_of({index}, {adapter!r}, {salt!r})",
                got=keys,
                hint="Return a tuple; the empty one, (), where nothing is special.",
            )
            chain.append(hash_block_tokens(chain[-1] if chain else None, tokens, keys))
        return chain

    apart = "No block of one tenant hits for another."
    first = "Put the salt into the first block's name: what is equal there is shared, and so is its timing."
    shop, bank = names(salt="shop"), names(salt="bank")
    expect.that(shop[0] != bank[0], rule=apart, case="block 0 of salts 'shop' and 'bank'", hint=first)
    expect.that(shop[1] != bank[1], rule=apart, case="block 1 of salts 'shop' and 'bank'", hint=first)
    expect.that(names()[0] != shop[0], rule=apart, case="block 0 with and without a salt", hint=first)
    hint = "Another adapter means other K and V, in every block."
    a, b = names(adapter="fr"), names(adapter="de")
    expect.that(a[0] != b[0] and a[1] != b[1], rule="Another adapter, other names.", case="'fr' and 'de'", hint=hint)
    expect.that(a[0] != names()[0], rule="Another adapter, other names.", case="'fr' and no adapter", hint=hint)
    tag = 'Tag your keys: ("adapter", …) and ("cache_salt", …). Else an adapter named like a salt shares its blocks.'
    case = "an adapter named 'x', and a salt 'x'"
    expect.that(names(adapter="x")[0] != names(salt="x")[0], rule="Keys of two kinds never meet.", case=case, hint=tag)
    both = [names(adapter="x", salt="y")[0], names(adapter="y", salt="x")[0]]
    case = "adapter 'x' with salt 'y', and the other way round"
    expect.that(both[0] != both[1], rule="Keys of two kinds never meet.", case=case, hint=tag)
    same = "Two users of one tenant share: the keys depend on adapter and salt only."
    again = names(salt="shop")
    expect.equal(again, shop, rule="Equal salts, equal names.", case="salt 'shop' twice", hint=same)
    plain = [hash_block_tokens(None, [1, 2, 3, 4], None)]
    hint = "Where nothing is special there is no key: return ()."
    expect.equal(names()[:1], plain, rule="Plain requests share.", case="no adapter, no salt", hint=hint)


@exercise(
    "3.10",
    title="When 0 % is right",
    stars=2,
    minutes=10,
    hints=(
        "How many full blocks of 784 tokens are there in a prefix of 240 tokens?",
        "A prefix shorter than one block can never hit, however often it comes.",
        "(240 // 784) * 784, (240 // 16) * 16, and the smallest n with n // 784 == 1",
    ),
    vllm="vllm/platforms/interface.py · Platform._align_hybrid_block_size (it logs the larger block size)",
)
def check_zero_is_right(answer: tuple[int, int, int], expect: Expect) -> None:
    """(hit_784, hit_16, shortest)."""
    expect.equal(
        answer,
        (0, 240, 784),
        rule="Hits come in full blocks: a prefix shorter than one block never hits.",
        case="a prefix of 240 tokens; blocks of 784, blocks of 16; the shortest prefix that hits with blocks of 784",
        hint="(240 // block size) * block size, for each of the two.",
        mistakes={
            (240, 240, 784): "0 % can be right: 240 tokens do not fill one block of 784, so nothing is ever cached.",
            (240, 240, 240): "0 % can be right: 240 tokens do not fill one block of 784, so nothing is ever cached.",
            (0, 0, 784): "240 tokens are exactly 15 blocks of 16, and the requests go on behind them: all 240 hit.",
            (0, 224, 784): "240 tokens are exactly 15 blocks of 16. The last token that must run comes after them.",
            (0, 15, 784): "15 is the number of blocks; the question asks for tokens.",
            (0, 240, 785): "The prefix itself needs one full block: 784. Behind it each request has tokens of its own.",
        },
    )


SHOP = "You are a helpful customer service agent for our shop. Answer briefly and politely."
LAB_PROMPTS = [
    SHOP + question
    for question in (
        " how do I return this?",
        " how do I change the address?",
        " how do I return this?",
        " where is my order?",
        " how do I get a refund?",
        " how do I change the address?",
    )
]


@exercise(
    "3.11",
    title="Plug in: your prefix cache",
    stars=3,
    minutes=45,
    plug_in=True,
    hints=(
        "Six methods, one dictionary. What does a lookup need, and what must it never return?",
        "hash_block chains; insert names the block and keeps duplicates; remove forgets this block, its twins stay.",
        "self.blocks: hash -> list of blocks; lookup: the first of the list or None; remove: out of the list, delete "
        "an empty list, block.block_hash = None",
    ),
    vllm="vllm/v1/core/block_pool.py · BlockHashToBlockMap, and kv_cache_utils.py · hash_block_tokens",
    reference=(
        "minipaged.kv_cache.prefix_cache.PrefixCache",
        *(f"minipaged.kv_cache.prefix_cache.PrefixCache.{name}" for name in ("lookup", "insert", "remove")),
    ),
    requires=("torch",),
)
def check_my_prefix_cache(answer: type, expect: Expect) -> None:
    """MyPrefixCache."""
    _check_hashes(expect.call(answer), expect)
    _check_map(expect.call(answer), expect)
    _check_replay(answer, expect)
    _check_engine(answer, expect)


def _check_hashes(cache: PrefixCache, expect: Expect) -> None:
    one, other = (expect.call(cache.hash_block, None, tokens, None) for tokens in ([1, 2], [3, 4]))
    digest = "Return the digest of a hash, as in 3.1."
    expect.that(isinstance(one, bytes), rule="A name is a string of bytes.", got=one, hint=digest)
    past = "The same block, another past: its K and V are different. Hash the parent's name too."
    names = [expect.call(cache.hash_block, parent, [5, 6], None) for parent in (one, other, None)]
    rule = "A name covers the whole past."
    expect.that(len(set(names)) == 3, rule=rule, case="tokens 5 6 after two pasts and after none", hint=past)
    salted = expect.call(cache.hash_block, None, [1, 2], (("cache_salt", "a"),))
    hint = "The extra keys belong into the name: adapter, image, salt."
    expect.that(salted != one, rule="Extra keys keep requests apart.", case="with and without a salt", hint=hint)
    again = expect.call(cache.hash_block, None, [1, 2], None)
    expect.equal(again, one, rule="Equal content, equal name.", hint="No randomness in a name.")


def _check_map(cache: PrefixCache, expect: Expect) -> None:
    first, twin = KVCacheBlock(4), KVCacheBlock(7)
    expect.equal(expect.call(cache.lookup, b"a"), None, rule="An unknown name: None.", hint="Use get().")
    cache.insert(b"a", first)
    cache.insert(b"a", twin)
    expect.equal(first.block_hash, b"a", rule="insert names the block.", hint="Set block.block_hash in insert.")
    expect.that(
        cache.lookup(b"a") is first,
        rule="A lookup returns the block inserted first.",
        case="blocks 4 and 7 with the same content",
        want="block 4",
        got=cache.lookup(b"a"),
        hint="Keep both; return the oldest.",
    )
    expect.equal(len(cache), 1, rule="len counts contents, not blocks.", hint="Two blocks, one content.")
    expect.call(cache.remove, first)
    twin_hint = "Its duplicate still holds the content: forget this block only."
    expect.that(cache.lookup(b"a") is twin, rule="Evicting one duplicate keeps the other.", hint=twin_hint)
    expect.equal(first.block_hash, None, rule="A removed block bears no name.", hint="Set block_hash back to None.")
    expect.call(cache.remove, twin)
    stale = "The last block with this content is gone: nothing may be found under its name any more."
    expect.equal((cache.lookup(b"a"), len(cache)), (None, 0), rule="No stale names.", case="both removed", hint=stale)
    expect.equal(expect.call(cache.remove, twin), False, rule="Nothing to forget: False.", hint="Look at block_hash.")
    block = KVCacheBlock(1)
    cache.insert(b"b", block)
    cache.clear()
    hint = "clear() also takes the names off the blocks."
    expect.equal((cache.lookup(b"b"), block.block_hash), (None, None), rule="clear forgets all.", hint=hint)


def _check_replay(answer: type, expect: Expect) -> None:
    """The same random requests, with the learner's cache and with ours: equal hits at every step."""
    past = "Compare your cache with the rules: same block, other past; twins; names of blocks that were handed out."
    rng = random.Random(6)
    managers = [KVCacheManager(12, 2, prefix_cache=cache) for cache in (PrefixCache(), expect.call(answer))]
    running: list[tuple[CacheRequest, CacheRequest]] = []
    for step in range(250):
        tokens = [rng.randrange(2) for _ in range(rng.randint(1, 9))]
        salt = rng.choice((None, "x"))
        pair = tuple(CacheRequest(f"r{step}", tokens, cache_salt=salt) for _ in managers)
        hits = []
        for manager, request in zip(managers, pair, strict=True):
            with expect.no_error(rule="The manager runs with your cache.", case=f"step {step}", hint=past):
                blocks, hit = manager.get_computed_blocks(request)
                hits.append((hit, [block.block_id for block in blocks]))
                got = manager.allocate_slots(request, len(tokens) - hit, hit, blocks)
                request.num_computed_tokens = len(tokens)
        case = f"step {step}, tokens {tokens}"
        expect.equal(hits[1], hits[0], rule="The hits are the reference's, step by step.", case=case, hint=past)
        if got is not None:
            running.append(pair)
        while running and (len(running) > 3 or rng.random() < 0.4 or got is None):
            pair = running.pop(rng.randrange(len(running)))
            for manager, request in zip(managers, pair, strict=True):
                manager.free(request)
            got = ()
        with expect.no_error(rule="The pool's rules hold.", case=f"step {step}", hint=past):
            managers[1].check_integrity()


def _check_engine(answer: type, expect: Expect) -> None:
    """The real engine on the shared-prompt lab: same text, same hits."""
    from minipaged.serving import LLM, SamplingParams

    results = []
    for parts in ({}, {"prefix_cache": answer}):
        llm = LLM("tiny", num_blocks=12, block_size=4, attention="reference", parts=parts)
        outputs = []
        with expect.no_error(rule="The engine runs with your cache.", hint="Which of the six methods did it call?"):
            for prompt in LAB_PROMPTS:
                outputs += llm.generate(prompt, SamplingParams(max_tokens=8))
            llm.engine.manager.check_integrity()
        results.append([(out.num_cached_tokens, out.outputs[0].text) for out in outputs])
    hint = "The text may never depend on the cache; the hits must be the reference's."
    for number, (want, got) in enumerate(zip(*results, strict=True)):
        case = f"prompt {number} of the shared-prompt lab"
        expect.equal(got, want, rule="Same text, same tokens from the cache.", case=case, hint=hint)


@exercise(
    "3.12",
    title="Bug hunt",
    stars=3,
    minutes=45,
    hints=(
        "For each rule: which few calls come out differently when it is broken? Start with an empty pool each time.",
        "A stale hash shows after all blocks were handed out again; a missing chain after two beginnings with one "
        "block in common; a hit beyond n - 1 on an exact multiple; a lost count after a refused allocation.",
        "stale: run a, free, fill the pool with another, free, look a up -> 0. chain: run [1,2,3,4,5,6,7,8], look up "
        "[9,9,9,9,5,6,7,8] and [5,6,7,8,9] -> 0. last: the same 8 tokens again -> 4. count: free, look up, ask for "
        "too much -> None; all blocks are still free",
    ),
    vllm="tests/v1/core/test_prefix_caching.py hunts the same bugs in vLLM's manager",
    reference=("minipaged.course.faulty_caches.FAULTY",),
)
def check_bug_hunt(answer: Callable, expect: Expect) -> None:
    """broken_rules(make_manager) -> list of rules."""
    healthy = expect.call(answer, KVCacheManager)
    name = "Your test must pass a manager that is right, or nobody will believe it when it fails."
    rule = "A good test finds the bug, and only the bug."
    _expect_names(healthy, expect)
    expect.equal(sorted(healthy), [], rule=rule, case="a manager without a bug", hint=name)
    missed = {
        "stale hash": "After another request has used every block, the first one's content is gone: 0 tokens may hit.",
        "unchained hash": "Let two prompts share their second block but not their first: nothing may hit.",
        "hit beyond n - 1": "Ask again for a prompt whose length is a multiple of the block size, and look at the hit.",
        "count not restored": "Let an allocation with hits be refused, and compare counts or free blocks with before.",
    }
    for bug in RULES:
        found = expect.call(answer, FAULTY[bug])
        _expect_names(found, expect)
        hint = missed[bug]
        if set(found) - {bug}:
            hint = "One bug at a time: this manager breaks one rule, so the probes for the others must not see it."
        case = f"a manager with the bug: {bug}"
        expect.equal(sorted(found), [bug], rule=rule, case=case, hint=hint)


def _expect_names(found: object, expect: Expect) -> None:
    expect.that(
        isinstance(found, list | set | tuple) and all(isinstance(name, str) for name in found),
        rule="broken_rules returns a list of rules.",
        got=found,
        hint="Collect the names of the broken rules in a list, and return it in every case.",
    )
