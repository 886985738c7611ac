"""The tokenizer's fixed facts, any Unicode there and back, streaming, and the chat template."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.model import (
    QUESTION_ADDRESS,
    QUESTION_RETURN,
    SYSTEM_PROMPT,
    TINY_FOLDER,
    CheckpointError,
    IncrementalDetokenizer,
    Tokenizer,
)
from minipaged.model.corpus import SPECIAL_TOKENS, render_chat

TOKENIZER = Tokenizer.from_folder(TINY_FOLDER)
any_text = st.text(st.characters(exclude_categories=["Cs"]))  # all of Unicode but lone surrogates
MESSAGES = [
    {"role": "system", "content": SYSTEM_PROMPT},
    {"role": "user", "content": "how do I return this?"},
    {"role": "assistant", "content": "You can return it within 30 days."},
    {"role": "user", "content": "谢谢!"},
]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Four score and seven years ago our", 7),
        (" fathers", 1),
        (" mothers", 1),
        (" brought", 1),
        (" forth", 1),
        (SYSTEM_PROMPT, 16),
        (QUESTION_RETURN, 5),
        (QUESTION_ADDRESS, 6),
        ("how do I return this?", 5),
        ("how do I change the address?", 6),
        (SYSTEM_PROMPT + QUESTION_RETURN, 21),
        (SYSTEM_PROMPT + QUESTION_ADDRESS, 22),
    ],
)
def test_facts_that_lessons_stand_on(text, count):
    assert len(TOKENIZER.encode(text)) == count


def test_the_two_questions_share_the_system_prompt_and_then_part():
    first, second = (TOKENIZER.encode(SYSTEM_PROMPT + q) for q in (QUESTION_RETURN, QUESTION_ADDRESS))
    assert first[:16] == second[:16] == TOKENIZER.encode(SYSTEM_PROMPT)
    assert first[16:] == TOKENIZER.encode(QUESTION_RETURN)
    assert second[16:] == TOKENIZER.encode(QUESTION_ADDRESS)
    assert TOKENIZER.encode("how do I return this?")[1:] == first[17:]


def test_words_of_the_opening():
    words = ["Four", " score", " and", " seven", " years", " ago", " our"]
    assert TOKENIZER.tokens("".join(words)) == words


def test_no_token_is_added():
    assert TOKENIZER.encode("") == []
    assert TOKENIZER.bos_token is None
    assert TOKENIZER.decode([]) == ""


@settings(deadline=None)  # a busy machine is no error
@given(any_text)
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["你好, 世界!", "🙂🙃 é e\u0301", " two  spaces\n\n\ttab ", "what??? is this?"])
def test_texts_that_went_wrong_elsewhere(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@settings(deadline=None)
@given(any_text)
def test_every_id_is_in_the_vocabulary(text):
    assert all(0 <= token_id < TOKENIZER.vocab_size for token_id in TOKENIZER.encode(text))


@settings(deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40), st.booleans())
def test_streamed_pieces_make_the_whole_text(token_ids, skip_special_tokens):
    """Random ids hold broken UTF-8 of every kind."""
    stream = IncrementalDetokenizer(TOKENIZER, skip_special_tokens)
    pieces = [stream.add(token_id) for token_id in token_ids]
    assert "".join(pieces) + stream.flush() == TOKENIZER.decode(token_ids, skip_special_tokens)


@settings(deadline=None)
@given(any_text)
def test_streaming_never_shows_half_a_character(text):
    stream = IncrementalDetokenizer(TOKENIZER)
    pieces = [stream.add(token_id) for token_id in TOKENIZER.encode(text.replace("\ufffd", ""))]
    assert not any("\ufffd" in piece for piece in pieces)
    assert stream.flush() == ""


def test_streaming_chinese():
    stream = IncrementalDetokenizer(TOKENIZER)
    pieces = [stream.add(token_id) for token_id in TOKENIZER.encode("你 and 好")]
    assert pieces == ["", "", "你", " and", " ", "", "", "好"]


def test_flush_shows_an_unfinished_character_once():
    stream = IncrementalDetokenizer(TOKENIZER)
    assert stream.add(TOKENIZER.encode("你")[0]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@pytest.mark.parametrize("bad", [-1, TOKENIZER.vocab_size, 10**9])
def test_id_outside_the_vocabulary(bad):
    with pytest.raises(ValueError, match=rf"token id {bad} \(at position 1\) .* 0 to {TOKENIZER.vocab_size - 1}"):
        TOKENIZER.decode([5, bad])


@pytest.mark.parametrize("bad", [None, 7, b"bytes", ["list"]])
def test_encode_takes_strings_only(bad):
    with pytest.raises(TypeError, match="takes a string"):
        TOKENIZER.encode(bad)


def test_encode_refuses_lone_surrogates():
    with pytest.raises(ValueError, match="character 2 is the lone surrogate"):
        TOKENIZER.encode("ab\ud800")


def test_special_tokens_are_single_and_hidden_by_default():
    ids = [TOKENIZER.encode(token) for token in SPECIAL_TOKENS]
    assert ids == [[0], [1], [2], [3]]
    assert TOKENIZER.eos_token_id == 0
    assert TOKENIZER.decode([0, 1, 2, 3]) == ""
    assert TOKENIZER.decode([0], skip_special_tokens=False) == "<|end|>"


def test_chat_template():
    prompt = TOKENIZER.apply_chat_template(MESSAGES)
    assert prompt == render_chat([(m["role"], m["content"]) for m in MESSAGES]) + "<|assistant|>"
    assert TOKENIZER.apply_chat_template(MESSAGES, add_generation_prompt=False) + "<|assistant|>" == prompt


def test_chat_and_tokens_equal_transformers():
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(TINY_FOLDER)
    prompt = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert prompt == TOKENIZER.apply_chat_template(MESSAGES)
    assert theirs(prompt)["input_ids"] == TOKENIZER.encode(prompt)
    assert theirs.decode(theirs(prompt)["input_ids"], skip_special_tokens=True) == TOKENIZER.decode(
        TOKENIZER.encode(prompt)
    )
    assert theirs.eos_token_id == TOKENIZER.eos_token_id


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([{"role": "tool", "content": "x"}], "role tool is unknown"),
        ([{"role": "user"}], "message 0 must be a dict with 'role' and 'content'"),
        ([MESSAGES[0], "hello"], "message 1 must be a dict"),
    ],
)
def test_messages_the_template_cannot_take(messages, named):
    with pytest.raises(ValueError, match=named):
        TOKENIZER.apply_chat_template(messages)


def test_a_template_cannot_reach_into_python():
    tokenizer = Tokenizer(TOKENIZER.core, chat_template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="refused these messages"):
        tokenizer.apply_chat_template(MESSAGES)


def test_checkpoint_without_a_chat_template():
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer(TOKENIZER.core).apply_chat_template(MESSAGES)


def test_template_in_its_own_file_and_end_token_as_a_dict(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((TINY_FOLDER / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|end|>"}}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}{{ eos_token }}")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.apply_chat_template(MESSAGES[1:2]) == "how do I return this?<|end|>"


@pytest.mark.parametrize("text", ["", '{"version": "1.0", "mod', "[]", '{"model": 5}'])
def test_damaged_tokenizer_file(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)
