"""The tiny model's training text: a small grammar, so that the corpus needs no download and never changes.

`documents(seed)` yields texts without end. Choices are skewed on purpose (see `pick`): a model that learned the
corpus well then has a clear favourite at every step, and greedy text does not hang on rounding.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import TypeVar

from minipaged.model.corpus_text import (
    BLOCK_SIZES,
    CITIES,
    CLOSINGS,
    FOLLOW_UPS,
    GETTYSBURG,
    ITEMS,
    LESSONS,
    NAMES,
    PARAGRAPHS,
    QUESTION_ADDRESS,
    QUESTION_RETURN,
    SERVICE,
    SYSTEM_PROMPT,
    TEACHER_PROMPT,
    TOKEN_COUNTS,
)

__all__ = ["QUESTION_ADDRESS", "QUESTION_RETURN", "SYSTEM_PROMPT", "documents", "render_chat", "sample"]

END = "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = [END, *(f"<|{role}|>" for role in ROLES)]

# What the chat template makes of messages; `render_chat` below is the same in Python.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role ' ~ message['role'] ~ ' is unknown: use system, user or assistant') }}"
    "{% endif %}"
    "{{ '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

MOTHERS_SHARE = 0.15
Exchange = tuple[list[str], list[str]]
T = TypeVar("T")


def pick(rng: Random, options: Sequence[T], ratio: float = 0.5) -> T:
    """One of `options`; each is `ratio` times as likely as the one before it."""
    return rng.choices(options, weights=[ratio**index for index in range(len(options))])[0]


def pick_several(rng: Random, options: Sequence[T], count: int, ratio: float) -> list[T]:
    """`count` different options, the earlier ones first more often."""
    left, chosen = list(options), []
    for _ in range(count):
        chosen.append(left.pop(pick(rng, range(len(left)), ratio)))
    return chosen


def documents(seed: int) -> Iterator[str]:
    """Texts without end, each closed by `<|end|>`; the same seed gives the same texts, on every machine."""
    rng = Random(seed)
    makers = [service_chat, service_plain, lesson_chat, paragraph, gettysburg, lesson_plain, block_count]
    weights = [40, 20, 10, 12, 6, 6, 6]
    while True:
        yield rng.choices(makers, weights=weights)[0](rng)


def sample(seed: int, count: int) -> list[str]:
    """The first `count` documents of a seed."""
    return list(islice(documents(seed), count))


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    """(role, content) pairs in the chat format: `<|role|>content<|end|>` for each message."""
    return "".join(f"<|{role}|>{content}{END}" for role, content in messages)


def service_chat(rng: Random) -> str:
    """A customer asks one to three things, and may say thanks."""
    messages = [("system", SYSTEM_PROMPT)] if rng.random() < 0.8 else []
    for turn in _service_turns(rng):
        messages += zip(("user", "assistant"), turn, strict=True)
    return render_chat(messages)


def service_plain(rng: Random) -> str:
    """The same dialogues as plain text: system prompt, question, answer; then most of them end."""
    parts = [SYSTEM_PROMPT] if rng.random() < 0.8 else []
    turns = _service_turns(rng)
    for turn in turns[:1] if rng.random() < 0.6 else turns:
        parts += turn
    return " ".join(parts) + END


def lesson_chat(rng: Random) -> str:
    """Questions on paging to a teacher."""
    messages = [("system", TEACHER_PROMPT)] if rng.random() < 0.6 else []
    for exchange in pick_several(rng, LESSONS, pick(rng, [1, 2, 3]), ratio=0.9):
        messages += zip(("user", "assistant"), _fill(rng, exchange, {}), strict=True)
    return render_chat(messages)


def lesson_plain(rng: Random) -> str:
    """Question and answer as plain text."""
    exchanges = pick_several(rng, LESSONS, pick(rng, [1, 2], ratio=0.4), ratio=0.9)
    turns = [_fill(rng, exchange, {}) for exchange in exchanges]
    return " ".join(" ".join(turn) for turn in turns) + END


def paragraph(rng: Random) -> str:
    """A few sentences on pages or blocks, then perhaps a second paragraph."""
    sentences = []
    for chosen in pick_several(rng, PARAGRAPHS, pick(rng, [1, 2]), ratio=0.9):
        sentences += chosen[pick(rng, range(len(chosen))) :]
    return " ".join(sentences) + END


def gettysburg(rng: Random) -> str:
    """The opening of the Gettysburg Address, now and then with "mothers" for "fathers"."""
    parents = "mothers" if rng.random() < MOTHERS_SHARE else "fathers"
    return GETTYSBURG.format(parents=parents) + END


def block_count(rng: Random) -> str:
    """Sums such as: with 16 slots per block, a request of 200 tokens needs 13 blocks."""
    sentences = []
    for tokens in pick_several(rng, TOKEN_COUNTS, pick(rng, [1, 2], ratio=0.4), ratio=0.75):
        size = pick(rng, BLOCK_SIZES)
        blocks = -(-tokens // size)
        noun = "block" if blocks == 1 else "blocks"
        sentences.append(f"With {size} slots per block, a request of {tokens} tokens needs {blocks} {noun}.")
    return " ".join(sentences) + END


def _service_turns(rng: Random) -> list[tuple[str, str]]:
    """The questions and answers of one dialogue, all about the same item, order, name and city."""
    slots = {
        "item": pick(rng, ITEMS, 0.8),
        "name": pick(rng, NAMES, 0.8),
        "city": pick(rng, CITIES, 0.8),
        "order": _order_number(rng),
    }
    topics: list[str] = []
    for topic in pick_several(rng, list(SERVICE), pick(rng, [1, 2, 3], ratio=0.6), ratio=0.9):
        if topic not in topics:
            topics.append(topic)
        if topic in FOLLOW_UPS and FOLLOW_UPS[topic] not in topics and rng.random() < 0.6:
            topics.append(FOLLOW_UPS[topic])
    exchanges = [SERVICE[topic] for topic in topics] + CLOSINGS[: pick(rng, [0, 1, 2], ratio=0.6)]
    return [_fill(rng, exchange, slots) for exchange in exchanges]


def _fill(rng: Random, exchange: Exchange, slots: dict[str, str]) -> tuple[str, str]:
    """A question and its answer; one customer in three starts with a capital letter."""
    questions, answers = exchange
    question = pick(rng, questions, 0.6).format(**slots)
    if rng.random() < 0.35:
        question = question[0].upper() + question[1:]
    return question, pick(rng, answers, 0.4).format(**slots)


def _order_number(rng: Random) -> str:
    """Four digits; 4127 is the most frequent number, and every number occurs."""
    return "".join(pick(rng, digits, 0.7) for digits in ("4912835607", "1804629375", "2956041738", "7340186952"))
