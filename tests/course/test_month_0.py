"""Month 0's helpers: one request over a contiguous cache, bytes and reservations, the question answered in writing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course.driving_question import DrivingQuestion, notes_file, read_notes
from minipaged.course.figures_month_0 import draw_kv_budget, draw_memory
from minipaged.course.month_0 import (
    CachedSequence,
    OneLayer,
    change_of_old_keys,
    count_projections,
    generate,
    hidden_states,
)
from minipaged.course.month_0_memory import (
    DTYPE_BYTES,
    GB,
    GIB,
    KIB,
    LLAMA_31_8B,
    OPT_13B,
    ModelShape,
    count_states,
    hole,
    in_units,
    longest_hole,
    requests_that_fit,
    reservation,
)
from minipaged.model import load_model

PROMPT = "Four score and seven years ago our"


@pytest.fixture(scope="module")
def model():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for a model as small as this, one thread is the fastest
    yield load_model("tiny")[0]
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prompt():
    return load_model("tiny")[1].encode(PROMPT)


@settings(max_examples=15, deadline=None)
@given(tokens=st.lists(st.integers(0, 1023), min_size=2, max_size=24), data=st.data())
def test_cache_and_full_computation_agree_at_every_step(model, tokens, data):
    cut = data.draw(st.integers(1, len(tokens) - 1))
    full = model.forward_dense(torch.tensor(tokens))
    sequence = CachedSequence(model, len(tokens))
    torch.testing.assert_close(sequence.prefill(tokens[:cut]), full[cut - 1], atol=1e-3, rtol=1e-3)
    for at in range(cut, len(tokens)):
        torch.testing.assert_close(sequence.decode(tokens[at]), full[at], atol=1e-3, rtol=1e-3)
        assert sequence.written_slots() == list(range(at + 1))


def test_hidden_states_end_where_the_model_ends(model, prompt):
    states = hidden_states(model, prompt)
    assert len(states) == model.config.num_layers + 1
    logits = model.compute_logits(model.norm(states[-1]))
    torch.testing.assert_close(logits, model.forward_dense(torch.tensor(prompt)), atol=1e-3, rtol=1e-3)


def test_old_keys_stay_only_in_a_causal_model(model, prompt):
    assert max(change_of_old_keys(model, prompt, 5, causal=True)) < 1e-4
    first, *others = change_of_old_keys(model, prompt, 5, causal=False)
    assert first < 1e-4
    assert min(others) > 1e-2


@pytest.mark.parametrize("use_cache", [True, False])
def test_projections_are_counted_as_they_happen(model, prompt, use_cache):
    with count_projections(model) as counts:
        generate(model, prompt, 5, use_cache)
    assert counts == ([7, 1, 1, 1, 1] if use_cache else [7, 8, 9, 10, 11])
    model.forward_dense(torch.tensor(prompt))
    assert len(counts) == 5  # the counting has ended


def test_growing_copies_everything_and_the_sequence_goes_on(model, prompt):
    sequence = CachedSequence(model, 7)
    token = int(sequence.prefill(prompt).argmax())
    copied = sequence.grow(9)
    config = model.config
    assert copied == 7 * 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    full = model.forward_dense(torch.tensor([*prompt, token]))[-1]
    torch.testing.assert_close(sequence.decode(token), full, atol=1e-3, rtol=1e-3)


def test_a_refused_step_changes_nothing(model, prompt):
    sequence = CachedSequence(model, 7)
    with pytest.raises(ValueError, match=r"8 tokens do not fit into the 7 slots"):
        sequence.prefill([*prompt, 1])
    assert sequence.written_slots() == []
    sequence.prefill(prompt)
    with pytest.raises(ValueError, match=r"8 tokens .* 7 slots .*grow"):
        sequence.decode(1)
    with pytest.raises(ValueError, match="holds 7 tokens already"):
        sequence.prefill(prompt)
    with pytest.raises(ValueError, match="0 tokens"):
        CachedSequence(model, 7).prefill([])
    with pytest.raises(ValueError, match="max_len 7 is not larger"):
        sequence.grow(7)
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        generate(model, prompt, 0)
    assert sequence.cache_len == 7


def test_one_layer_looks_only_backwards():
    model = OneLayer()
    torch.testing.assert_close(model.forward_dense([3, 1, 5])[:2], model.forward_dense([3, 1]))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(OneLayer(1).forward_dense([3]), model.forward_dense([3]))


def test_sizes_of_real_models():
    assert OPT_13B.kv_bytes_per_token() == 819_200 == 800 * KIB
    assert LLAMA_31_8B.kv_bytes_per_token("bf16") == 131_072
    assert (12 * GIB // 819_200, 12 * GB // 819_200) == (15_728, 14_648)
    assert requests_that_fit(12 * GIB, 819_200, 2048) == 7
    assert [in_units(n) for n in (819_200, 2048 * 819_200, 12, 1 << 20)] == ["800 KiB", "1.56 GiB", "12 bytes", "1 MiB"]


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 21), st.integers(1, 1 << 13))
def test_what_fits_fits_and_one_more_does_not(memory, per_token, slots):
    fit = requests_that_fit(memory, per_token, slots)
    assert fit * per_token * slots <= memory < (fit + 1) * per_token * slots


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="num_kv_heads is 0"):
        ModelShape("mine", 2, 4, 0, 8)
    with pytest.raises(ValueError, match=r"'int3' is unknown; choose one of fp32"):
        OPT_13B.kv_bytes_per_token("int3")
    with pytest.raises(ValueError, match="slots_per_request is 0"):
        requests_that_fit(1, 1, 0)
    with pytest.raises(ValueError, match="'gpt' is unknown"):
        draw_kv_budget("gpt")
    with pytest.raises(ValueError, match="requests is 0"):
        draw_kv_budget(requests=0)


@given(st.lists(st.integers(0, 12), min_size=4, max_size=4).map(sorted), st.integers(0, 9), st.integers(1, 9))
def test_every_slot_of_a_memory_has_one_state(sizes, free, wanted):
    duplicate, written, total, reserved = sizes
    memory = reservation("A", ["x"] * total, written, reserved, duplicate) + hole(free, wanted)
    states = count_states(memory)
    assert len(memory) == reserved + free == sum(states.values())
    assert states.get("token", 0) + states.get("duplicate", 0) == written
    assert states.get("internal", 0) == reserved - total
    assert longest_hole(memory) == free
    assert states.get("external", 0) == (free if free < wanted else 0)


def test_a_reservation_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"A: 0 duplicates, 3 written, 2 tokens in all, 5 reserved"):
        reservation("A", ["x", "y"], written=3, reserved=5)
    with pytest.raises(ValueError, match="no slots"):
        draw_memory([])


def test_the_pictures_say_what_they_show():
    memory = reservation("A", ["so", "it"], written=1, reserved=3) + hole(2, wanted=3)
    assert draw_memory(memory).text.split("\n")[1:] == [
        "slot 0: A, token: so",
        "slot 1: A, reserved: it",
        "slot 2: A, internal",
        "slots 3–4: nobody, external",
    ]
    assert "room for 7 such requests: 1 of the 8 must wait" in draw_kv_budget(requests=8).text
    assert "room for 1 such request: all fit" in draw_kv_budget(requests=1, memory_gib=2).text
    assert "room for 0 such requests: none fits" in draw_kv_budget(memory_gib=1).text
    assert all("all fit" in draw_kv_budget(dtype=dtype, tokens_each=16, requests=400).text for dtype in DTYPE_BYTES)


@pytest.fixture
def question(monkeypatch, tmp_path):
    monkeypatch.setenv("MINIPAGED_HOME", str(tmp_path / "home"))
    return lambda: DrivingQuestion("month_9", "What breaks?", ["This <one>.", "That one."], at_least=2)


def test_answers_open_after_something_was_written_and_stay(question):
    ask = question()
    with pytest.raises(ValueError, match="write your own first"):
        ask.answers()
    ask.save.click()
    assert "Not saved: nothing is written yet" in ask.message.value
    assert not ask.shown.value
    ask.box.value = "Waste."
    ask.save.click()
    assert "Saved: 1 line. The question asks for 2" in ask.message.value
    assert "This &lt;one&gt;." in ask.shown.value
    assert ask.answers() == "1. This <one>.\n2. That one."
    again = question()
    assert again.box.value == "Waste." == read_notes("month_9")
    assert again.answers() == ask.answers()
    assert not again.shown.value  # a new session folds them again


def test_answers_open_on_request(question):
    ask = question()
    ask.skip.click()
    assert "That one." in ask.shown.value
    assert ask.answers()
    assert not notes_file("month_9").exists()


def test_what_a_page_shows_does_not_depend_on_what_was_written(question):
    ask = question()
    before = ask._repr_mimebundle_()[0]["text/plain"]
    ask.write("有浪费\nmore")
    assert ask._repr_mimebundle_()[0]["text/plain"] == before == question()._repr_mimebundle_()[0]["text/plain"]
    assert read_notes("month_9") == "有浪费\nmore"


def test_a_folder_that_cannot_be_written_is_reported(question, tmp_path):
    ask = question()
    (tmp_path / "home").write_text("a file where the folder should be")
    ask.box.value = "Waste."
    ask.save.click()
    assert "Not saved" in ask.message.value
    assert not ask.shown.value


def test_wrong_keys_and_no_answers_are_refused(question):
    with pytest.raises(ValueError, match=r"'\.\./x' names a file"):
        DrivingQuestion("../x", "?", ["a"])
    with pytest.raises(ValueError, match="at least one answer"):
        DrivingQuestion("x", "?", [])
