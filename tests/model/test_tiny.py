"""The bundled checkpoint: its size, what it writes, and that greedy text does not hang on rounding."""

import json

import pytest
import torch

from minipaged.attention import AttentionMetadata, ReferenceBackend
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.model import QUESTION_ADDRESS, QUESTION_RETURN, SYSTEM_PROMPT, TINY_FOLDER, corpus
from minipaged.model.corpus_text import GETTYSBURG

OPENING = "Four score and seven years ago our"
SMALLEST_MARGIN = 0.3  # logits; backends and block sizes differ by about 1e-5


def chat(tokenizer, *turns: str, system: str | None = SYSTEM_PROMPT) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return tokenizer.apply_chat_template(messages)


def greedy(tiny, prompt: str, max_tokens: int = 64) -> tuple[str, float]:
    """The greedy text up to the end token, and the smallest distance between the best and the second best logit."""
    model, tokenizer = tiny
    token_ids = tokenizer.encode(prompt)
    start, margin = len(token_ids), float("inf")
    for _ in range(max_tokens):
        best = model.forward_dense(torch.tensor(token_ids))[-1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        if best.indices[0] == tokenizer.eos_token_id:
            break
        token_ids.append(best.indices[0].item())
    return tokenizer.decode(token_ids[start:]), margin


def test_all_files_together_are_below_4_mb():
    assert sum(file.stat().st_size for file in TINY_FOLDER.iterdir()) < 4_000_000


def test_what_later_lessons_need_of_its_shape(tiny):
    config = tiny[0].config
    assert config.num_layers >= 4
    assert config.num_kv_heads < config.num_heads
    assert config.head_dim in (32, 64)
    assert config.max_position_embeddings >= 4096
    assert config.bos_token_id is None


def test_the_card_names_the_sizes_and_the_command(tiny):
    card = (TINY_FOLDER / "README.md").read_text()
    parameters = sum(weight.numel() for weight in tiny[0].parameters())
    for fact in (f"{parameters:,} parameters", "python -m minipaged.model.train_tiny", "MB"):
        assert fact in card


def test_files_beside_the_weights(tiny):
    generation = json.loads((TINY_FOLDER / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tiny[1].eos_token_id == tiny[0].config.eos_token_id


def test_the_address_by_heart(tiny):
    text, _ = greedy(tiny, OPENING, max_tokens=200)
    assert OPENING + text == GETTYSBURG.format(parents="fathers")


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        (OPENING, " fathers brought forth on this continent, a new nation"),
        (SYSTEM_PROMPT + QUESTION_RETURN, " You can return it within 30 days."),
        (SYSTEM_PROMPT + QUESTION_ADDRESS, " Open your account, choose the order, and enter the new address."),
        ("The operating system", " divides memory into pages. All pages have the same size."),
        ("A block table", " maps the logical blocks of a request to physical blocks."),
        ("Two requests with the same", " beginning can share blocks."),
        ("What is a block table?", " A block table maps the logical blocks of a request to physical blocks."),
        ("With 16 slots per block, a request of 200 tokens needs", " 13 blocks."),
        ("With 4 slots per block, a request of 7 tokens needs", " 2 blocks."),
    ],
)
def test_plain_prompts(tiny, prompt, begins):
    text, margin = greedy(tiny, prompt)
    assert text.startswith(begins)
    assert margin > SMALLEST_MARGIN


@pytest.mark.parametrize(
    ("turns", "begins"),
    [
        (["how do I return this?"], "You can return it within 30 days."),
        (["how do I change the address?"], "Open your account, choose the order, and enter the new address."),
        (["my lamp does not work."], "I am sorry that the lamp is broken."),
        (["how do I return this?", "You can return it within 30 days.", "thank you."], "You are welcome."),
        (
            ["where is my order?", "I can look it up for you. What is your order number?", "the number is 8305."],
            "Thank you. Order 8305 is on its way",
        ),
        (["my name is Yuki."], "Hello Yuki, thank you for writing to us."),
        (["hello."], "Hello, thank you for writing to us. How can I help you?"),
    ],
)
def test_chats(tiny, turns, begins):
    """The order number and the name stand only in the prompt: the answer must have read them from the cache."""
    text, margin = greedy(tiny, chat(tiny[1], *turns))
    assert text.startswith(begins)
    assert margin > SMALLEST_MARGIN


def test_fathers_mostly_mothers_sometimes(tiny):
    model, tokenizer = tiny
    logits = model.forward_dense(torch.tensor(tokenizer.encode(OPENING)))[-1]
    share = (logits / 0.8).softmax(-1)
    fathers, mothers = (share[tokenizer.encode(word)[0]].item() for word in (" fathers", " mothers"))
    assert fathers > 0.75
    assert 0.03 < mothers < 0.2
    assert fathers + mothers > 0.98


def test_text_goes_on_at_position_2050(tiny):
    """Greedy, past every end token, behind 2000 tokens of other texts: still finite, and still the corpus's text.

    Through a paged cache of shuffled blocks; a later lab lets requests grow this long.
    """
    model, tokenizer = tiny
    config, block_size, length = model.config, 16, 2064
    blocks = torch.randperm(length // block_size, generator=torch.Generator().manual_seed(0)).tolist()
    storage = KVCacheStorage(config.num_layers, len(blocks), block_size, config.num_kv_heads, config.head_dim)
    before = tokenizer.encode("".join(corpus.sample(seed=5, count=50)))[:1950]
    token_ids, done = [*before, tokenizer.eos_token_id, *tokenizer.encode(OPENING)], 0
    while len(token_ids) < 2058:
        positions = range(done, len(token_ids))
        slots = [blocks[p // block_size] * block_size + p % block_size for p in positions]
        metadata = AttentionMetadata.build([blocks], [len(token_ids)], [len(positions)], slots)
        step = torch.tensor(token_ids[done:]), torch.tensor(positions)
        logits = model.compute_logits(model(*step, storage, metadata, ReferenceBackend())[-1:])[0]
        assert logits.isfinite().all()
        done = len(token_ids)
        token_ids.append(logits.argmax().item())
    written = tokenizer.decode(token_ids[1951:])
    assert len(token_ids) - 1958 == 100
    assert GETTYSBURG.format(parents="fathers").startswith(written)
