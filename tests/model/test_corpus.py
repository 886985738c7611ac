"""The grammar: the same texts from the same seed, correct sums, and everything that the acceptance tests ask for."""

import hashlib
import re
from random import Random

from minipaged.model import QUESTION_ADDRESS, QUESTION_RETURN, SYSTEM_PROMPT, Tokenizer, corpus
from minipaged.model.corpus_text import LESSONS, SERVICE

TEXTS = corpus.sample(seed=11, count=3000)


def test_same_seed_same_texts():
    assert corpus.sample(11, 50) == TEXTS[:50]
    assert corpus.sample(12, 50) != TEXTS[:50]


def test_texts_are_those_that_trained_the_bundled_model():
    """A changed grammar needs a newly trained checkpoint: run train_tiny, then renew this sum."""
    digest = hashlib.sha256("\n".join(corpus.sample(1863, 500)).encode()).hexdigest()
    assert digest[:16] == "d7a9b98bfd69330f"


def test_every_text_ends_and_has_no_open_slot():
    for text in TEXTS:
        assert text.endswith(corpus.END)
        assert not re.search(r"[{}]|  ", text)


def test_chats_alternate_between_user_and_assistant():
    for text in TEXTS:
        if roles := re.findall(r"<\|(system|user|assistant)\|>", text):
            turns = roles[1:] if roles[0] == "system" else roles
            assert turns == ["user", "assistant"] * (len(turns) // 2)


def test_block_counts_are_right():
    sums = re.findall(r"With (\d+) slots per block, a request of (\d+) tokens needs (\d+) block", " ".join(TEXTS))
    assert len(sums) > 100
    for size, tokens, blocks in (map(int, numbers) for numbers in sums):
        assert (blocks - 1) * size < tokens <= blocks * size


def test_the_address_has_fathers_and_sometimes_mothers():
    parents = re.findall(r"years ago our (\w+) brought forth", " ".join(TEXTS))
    assert set(parents) == {"fathers", "mothers"}
    assert 0.05 < parents.count("mothers") / len(parents) < 0.3


def test_an_answer_keeps_the_order_number_of_its_question():
    for question, answer in re.findall(r"order number is (\d{4})\.\D*?Order (\d{4})", " ".join(TEXTS)):
        assert question == answer


def test_every_phrase_occurs():
    everything = " ".join(TEXTS).lower()
    for questions, answers in [*SERVICE.values(), *LESSONS]:
        for phrase in (*questions, *answers):
            if "{" not in phrase:
                assert phrase.lower() in everything


def test_lessons_prompts_occur_as_plain_text():
    for question in (QUESTION_RETURN, QUESTION_ADDRESS):
        assert any(text.startswith(SYSTEM_PROMPT + question) for text in TEXTS)


def test_pick_prefers_the_first():
    rng = Random(0)
    picks = [corpus.pick(rng, "abc") for _ in range(2000)]
    assert picks.count("a") > 1.5 * picks.count("b") > 2 * picks.count("c") > 0


def test_template_text_is_the_template():
    tokenizer = Tokenizer(core=_no_core(), chat_template=corpus.CHAT_TEMPLATE, eos_token=corpus.END)
    messages = [{"role": "user", "content": "hello."}, {"role": "assistant", "content": "Hello."}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=False) == corpus.render_chat(
        [("user", "hello."), ("assistant", "Hello.")]
    )


def _no_core():
    import tokenizers

    return tokenizers.Tokenizer(tokenizers.models.BPE())
