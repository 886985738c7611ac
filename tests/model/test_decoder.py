"""The decoder against transformers, and the paged way against the dense one."""

import pytest
import torch

from minipaged.attention import AttentionMetadata, ReferenceBackend
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.model import TINY_FOLDER, LlamaModel
from minipaged.model.decoder import RMSNorm, RotaryEmbedding

TEXTS = [
    "Four score and seven years ago our fathers brought forth on this continent, a new nation",
    "A block table maps the logical blocks of a request to physical blocks.",
    "你好, and 4127 🙂",
]


def transformers_model(folder):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("text", TEXTS)
def test_tiny_equals_transformers(tiny, text):
    model, tokenizer = tiny
    token_ids = torch.tensor(tokenizer.encode(text))
    with torch.no_grad():
        expected = transformers_model(TINY_FOLDER)(token_ids[None]).logits[0]
    torch.testing.assert_close(model.forward_dense(token_ids), expected, atol=1e-4, rtol=0)


def test_tiny_equals_transformers_at_its_last_positions(tiny):
    model, tokenizer = tiny
    token_ids = torch.arange(model.config.max_position_embeddings) * 31 % tokenizer.vocab_size
    with torch.no_grad():
        expected = transformers_model(TINY_FOLDER)(token_ids[None]).logits[0, -8:]
    torch.testing.assert_close(model.forward_dense(token_ids)[-8:], expected, atol=1e-4, rtol=0)


def test_random_weights_equal_transformers(random_model, random_folder):
    token_ids = torch.randint(0, 1100, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = transformers_model(random_folder)(token_ids).logits
    torch.testing.assert_close(random_model.forward_dense(token_ids), expected, atol=1e-4, rtol=0)


class Request:
    """What a scheduler would remember of one sequence: its tokens, its blocks, how far it has come."""

    def __init__(self, token_ids: list[int], block_ids: list[int]) -> None:
        self.token_ids, self.block_ids, self.done = token_ids, block_ids, 0

    def slots(self, count: int, block_size: int) -> list[int]:
        positions = range(self.done, self.done + count)
        return [self.block_ids[p // block_size] * block_size + p % block_size for p in positions]


def run_step(model: LlamaModel, storage: KVCacheStorage, parts: list[tuple[Request, int]]) -> torch.Tensor:
    """Compute the next `count` tokens of each request in one flattened step; return their logits."""
    size = storage.block_size
    metadata = AttentionMetadata.build(
        [request.block_ids for request, _ in parts],
        [request.done + count for request, count in parts],
        [count for _, count in parts],
        [slot for request, count in parts for slot in request.slots(count, size)],
    )
    spans = [range(request.done, request.done + count) for request, count in parts]
    tokens = [request.token_ids[p] for (request, _), span in zip(parts, spans, strict=True) for p in span]
    positions = [p for span in spans for p in span]
    hidden = model(torch.tensor(tokens), torch.tensor(positions), storage, metadata, ReferenceBackend())
    for request, count in parts:
        request.done += count
    return model.compute_logits(hidden)


def poisoned_storage(model: LlamaModel, num_blocks: int, block_size: int) -> KVCacheStorage:
    """A cache in which every slot not yet written is NaN: reading one shows."""
    config = model.config
    storage = KVCacheStorage(config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
    for cache in (*storage.k_cache, *storage.v_cache):
        cache.fill_(float("nan"))
    return storage


@pytest.mark.parametrize("block_size", [1, 4, 5, 16])
@pytest.mark.parametrize("length", [1, 4, 15, 16, 17, 23])
def test_paged_equals_dense(random_model, block_size, length):
    """Two requests in shuffled blocks: prefill in chunks of unequal size, then decode, in mixed steps."""
    generator = torch.Generator().manual_seed(length)
    num_blocks = 4 + 2 * (24 // block_size + 1)
    ids = torch.randperm(num_blocks, generator=generator).tolist()
    needed = -(-length // block_size)
    tokens = torch.randint(0, 1100, (2, length), generator=generator)
    first = Request(tokens[0].tolist(), ids[:needed])
    second = Request(tokens[1].tolist(), ids[needed : 2 * needed])
    storage = poisoned_storage(random_model, num_blocks, block_size)

    logits: dict[Request, list[torch.Tensor]] = {first: [], second: []}
    while first.done < length or second.done < length:
        wanted = [(first, 7 if first.done == 0 else 1), (second, 5)]
        parts = [(r, min(n, length - r.done)) for r, n in wanted if r.done < length]
        rows = run_step(random_model, storage, parts).split([count for _, count in parts])
        for (request, _), row in zip(parts, rows, strict=True):
            logits[request].append(row)

    expected = random_model.forward_dense(tokens)
    for request, row in ((first, expected[0]), (second, expected[1])):
        torch.testing.assert_close(torch.cat(logits[request]), row, atol=1e-4, rtol=1e-4)


def test_dense_takes_one_sequence_or_a_batch(random_model):
    batch = torch.arange(20).view(2, 10)
    torch.testing.assert_close(random_model.forward_dense(batch)[1], random_model.forward_dense(batch[1]))


def test_logits_are_fp32_in_half_precision_too(random_model, random_folder):
    from minipaged.model import load_model

    model, _ = load_model(random_folder, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    logits = model.forward_dense(torch.arange(8))
    assert logits.dtype == torch.float32
    assert (logits - random_model.forward_dense(torch.arange(8))).abs().max() < 2  # near, with 8 bits of mantissa


@pytest.mark.parametrize(
    ("token", "position", "message"),
    [
        (1100, 0, "token id 1100 .* vocabulary size is 1100"),
        (-1, 0, "token id -1 "),
        (0, 128, "position 128 .* model length is 128"),
        (0, -1, "position -1 "),
    ],
)
def test_out_of_range_is_named_and_nothing_is_written(random_model, token, position, message):
    storage = poisoned_storage(random_model, num_blocks=1, block_size=4)
    metadata = AttentionMetadata.build([[0]], [2], [2], [0, 1])
    with pytest.raises(ValueError, match=message):
        random_model(torch.tensor([1, token]), torch.tensor([0, position]), storage, metadata, ReferenceBackend())
    assert all(cache.isnan().all() for cache in (*storage.k_cache, *storage.v_cache))


def test_dense_refuses_a_sequence_beyond_the_model_length(random_model):
    with pytest.raises(ValueError, match="position 128 is out of range: the model length is 128"):
        random_model.forward_dense(torch.zeros(129, dtype=torch.int64))


def test_rms_norm_is_its_formula():
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    norm = RMSNorm(8, eps=1e-5).double()
    torch.testing.assert_close(norm(x).detach(), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())


def test_rope_scores_depend_on_distance_only():
    rope = RotaryEmbedding(16, 64, 10000.0)
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(2))

    def score(query_position: int, key_position: int) -> torch.Tensor:
        turned_query = rope.rotate(query, *rope.lookup(torch.tensor([query_position])))
        return (turned_query * rope.rotate(key, *rope.lookup(torch.tensor([key_position])))).sum()

    torch.testing.assert_close(score(9, 4), score(55, 50), atol=1e-4, rtol=1e-4)
    assert (score(9, 4) - score(9, 5)).abs() > 1e-3
