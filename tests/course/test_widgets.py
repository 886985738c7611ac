"""The widgets: a moved control changes the picture and its text; a page without a kernel shows one of them."""

import ipywidgets
import pytest

from minipaged.course.figures import draw_sequence, draw_slots
from minipaged.course.widgets import WIDGET_VIEW, Explorer, Stepper

TOKENS = ["Four", "score", "and", "seven", "years", "ago", "our", "fathers", "brought"]


def frame(step):
    return draw_sequence(TOKENS[: 7 + step], 4, title=f"After step {step}")


@pytest.fixture
def stepper():
    return Stepper(frame, 3, captions=["prefill", "fathers", "brought"], name="decode step")


def test_moving_the_slider_changes_picture_text_and_caption(stepper):
    seen = []
    stepper.image.observe(lambda change: seen.append(change["new"]), names="value")
    stepper.slider.value = 2
    assert seen == [frame(2).png]
    assert "brought" in stepper.text.value
    assert "Step 2 of 2: brought" in stepper.caption.value


def test_buttons_step_and_stop_at_the_ends(stepper):
    assert stepper.back.disabled
    assert not stepper.next.disabled
    for _ in range(5):
        stepper.next.click()
    assert (stepper.slider.value, stepper.next.disabled, stepper.back.disabled) == (2, True, False)
    stepper.back.click()
    assert stepper.slider.value == 1
    assert stepper.image.value == frame(1).png
    stepper.start.click()
    assert stepper.slider.value == 0


def test_it_redraws_on_release_and_keeps_its_height():
    tall = draw_slots({name: ["x"] for name in "ABCDEF"})
    stepper = Stepper([frame(0), tall])
    assert stepper.slider.continuous_update is False
    height = stepper.image.layout.height
    assert height == f"{max(tall.height, frame(0).height)}px"
    stepper.slider.value = 1
    assert stepper.image.layout.height == height


def test_no_output_widget_anywhere(stepper):
    def walk(widget):
        yield widget
        for child in getattr(widget, "children", ()):
            yield from walk(child)

    assert not any(isinstance(widget, ipywidgets.Output) for widget in walk(stepper))


def test_a_page_without_a_kernel_shows_the_first_picture(stepper):
    stepper.slider.value = 2
    data, metadata = stepper._repr_mimebundle_()
    first, first_metadata = frame(0)._repr_mimebundle_()
    assert {name: data[name] for name in first} == first
    assert metadata == first_metadata
    assert data[WIDGET_VIEW]["model_id"] == stepper.model_id


def test_a_page_without_a_kernel_can_show_another_step():
    stepper = Stepper(frame, 3, still=-1)
    assert stepper._repr_mimebundle_()[0]["text/plain"] == frame(2).text
    assert stepper.image.value == frame(0).png


def test_the_words_are_folded_and_stay_open_from_step_to_step(stepper):
    assert stepper.text.layout.display == "none"
    stepper.words.value = True
    stepper.slider.value = 2
    assert stepper.text.layout.display is None
    stepper.words.value = False
    assert stepper.text.layout.display == "none"


def test_text_is_escaped():
    stepper = Stepper([draw_slots({"<b>": ["<script>"]})])
    assert "<script>" not in stepper.text.value
    assert "&lt;script&gt;" in stepper.text.value


def explore(block_size, tokens=9, filled=True):
    if tokens < block_size:
        raise ValueError(f"{tokens} tokens do not fill a block of {block_size}")
    return draw_sequence(TOKENS[:tokens] if filled else [""] * tokens, block_size)


def test_each_control_changes_the_picture():
    explorer = Explorer(explore, block_size=[4, 2], tokens=(1, 9, 9), filled=True)
    assert explorer.values == {"block_size": 4, "tokens": 9, "filled": True}
    before = explorer.image.value
    explorer.controls["block_size"].value = 2
    assert explorer.image.value == explore(2).png != before
    explorer.controls["tokens"].value = 5
    assert explorer.image.value == explore(2, 5).png
    explorer.controls["filled"].value = False
    assert explorer.figure.text == explore(2, 5, False).text


def test_a_refused_value_keeps_the_picture_and_gives_the_reason():
    explorer = Explorer(explore, block_size=[4, 2], tokens=(1, 9, 9))
    before = explorer.image.value
    explorer.controls["tokens"].value = 3
    assert explorer.image.value == before
    assert "3 tokens do not fill a block of 4" in explorer.message.value
    explorer.controls["block_size"].value = 2
    assert explorer.message.value == ""
    assert explorer.image.value == explore(2, 3).png


def test_a_label_says_the_unit():
    explorer = Explorer(lambda memory_gib, gib, block_size: frame(0), memory_gib=(1, 9), gib=(1, 9), block_size=[4])
    assert [c.description for c in explorer.controls.values()] == ["memory (GiB)", "gib", "block size"]


def test_controls_for_fractions_and_own_widgets():
    own = ipywidgets.IntText(4)
    explorer = Explorer(
        lambda share, size: draw_sequence(TOKENS, size, title=f"{share:.2f}"), share=(0.0, 1.0), size=own
    )
    explorer.controls["share"].value = 0.5
    assert explorer.figure.text.startswith("0.50")
    own.value = 2
    assert "block size 2" in explorer.figure.text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Stepper(frame, 0), "at least one picture"),
        (lambda: Stepper([]), "at least one picture"),
        (lambda: Stepper(frame, 3, captions=["one"]), "1 captions for 3 pictures"),
        (lambda: Explorer(explore), "at least one control"),
        (lambda: Explorer(explore, block_size=(4, 1)), "control 'block_size' is"),
        (lambda: Explorer(explore, block_size=[]), "control 'block_size' is"),
    ],
)
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
