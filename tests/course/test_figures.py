"""The pictures: same data, same bytes; a text that says what is drawn; nothing cut at the edge."""

import base64
import hashlib
import io
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from minipaged.course import figures
from minipaged.course.canvas import STATES, WIDTH, Figure, legend_items
from minipaged.kv_cache import BlockPool, CacheRequest, KVCacheManager

TOKENS = ["Four", " score", " and", " seven", " years", " ago", " our"]


def a_pool_with_a_shared_block():
    pool = BlockPool(9, free_order=[7, 1, 3])
    taken = pool.get_new_blocks(2)
    pool.touch(taken[:1])
    return pool


def every_figure():
    pool = a_pool_with_a_shared_block()
    return {
        "slots": figures.draw_slots({"A": ["Four", ("", "reserved"), None]}, title="Slots"),
        "spans": figures.draw_spans({"A": [("token", 300), ("internal", 1748)]}, title="Spans"),
        "sequence": figures.draw_sequence(TOKENS, 4, title="A sequence", physical=[7, 1]),
        "pool": figures.draw_pool(pool, {7: TOKENS[:4], 1: TOKENS[4:]}, 4, title="Pool"),
        "bars": figures.draw_bars({"A": {"x": 1, "y": 2.5}, "B": {"x": 3}}, title="Bars", ylabel="blocks"),
        "stacked": figures.draw_bars({"A": {"token": 20.4, "internal": 79.6}}, title="Bars", stacked=True),
        "lines": figures.draw_lines([1, 2, 4], {"a": [1, 2, 3], "b": [3, 2, 1]}, title="Lines", log_x=True),
        "gantt": figures.draw_gantt({"A": [(0, 2, "prefill", "12"), (2, 5, "decode")]}, title="Gantt"),
    }


@pytest.fixture(scope="module")
def drawn():
    return every_figure()


def test_the_same_drawing_has_the_same_bytes(drawn):
    again = every_figure()
    assert {name: figure.png for name, figure in drawn.items()} == {n: f.png for n, f in again.items()}


def test_another_process_draws_the_same_bytes(drawn, tmp_path):
    code = (
        "import sys, hashlib; from tests.course.test_figures import every_figure;"
        "print([hashlib.sha256(f.png).hexdigest() for f in every_figure().values()])"
    )
    config = tmp_path / "matplotlibrc"
    config.write_text("font.size: 22\naxes.facecolor: red\nhatch.linewidth: 5\n")  # a learner's own style
    environment = {**os.environ, "MATPLOTLIBRC": str(config), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str([hashlib.sha256(f.png).hexdigest() for f in drawn.values()])


def test_a_cell_gets_png_text_and_alternative_text(drawn):
    for figure in drawn.values():
        data, metadata = figure._repr_mimebundle_()
        assert base64.b64decode(data["image/png"]) == figure.png
        assert data["text/plain"] == figure.text == metadata["image/png"]["alt"] == repr(figure)
        assert len(figure.png) < 60_000
        assert figure.width <= WIDTH * 96 + 1


def test_nothing_is_cut_at_the_edge(drawn):
    for name, figure in drawn.items():
        pixels = np.asarray(Image.open(io.BytesIO(figure.png)).convert("RGB"))
        edges = [pixels[:4], pixels[-4:], pixels[:, :4], pixels[:, -4:]]
        assert all((edge > 245).all() for edge in edges), f"{name}: something touches the edge of the card"


def test_the_text_says_what_the_block_pictures_show(drawn):
    text = drawn["pool"].text
    assert "physical 7, count 2: Four | score | and | seven" in text
    assert "physical 1, count 1: years | ago | our | (tail)" in text
    assert "Pool of 9 blocks, 7 free" in text
    assert "logical 1 → physical 1: years | ago | our | (tail)" in drawn["sequence"].text
    assert "300 holds a token's K and V, 1,748 internal waste: never used" in drawn["spans"].text


def test_the_text_gives_the_numbers_of_the_charts(drawn):
    assert "A: x 1, y 2.5" in drawn["bars"].text
    assert "b: (1, 3), (2, 2), (4, 1)" in drawn["lines"].text
    assert "A: 0–2 prefill (12); 2–7 decode" in drawn["gantt"].text


def test_states_differ_in_hatching_or_are_plain():
    hatches = [state.hatch for state in STATES.values() if state.hatch]
    assert len(hatches) == len(set(hatches))
    assert {name for name, state in STATES.items() if not state.hatch} == {"token", "free"}


def luminance(colour):
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_plain_states_differ_in_grey_too():
    assert abs(luminance(STATES["token"].colour) - luminance(STATES["free"].colour)) > 0.3


@given(st.sets(st.sampled_from(sorted(STATES))), st.floats(3, 12))
def test_legends_fit_the_card(states, width):
    items = legend_items(states, width, number=True, badge=True)
    assert [name for name, *_ in items if name in STATES] == [name for name in STATES if name in states]
    rows = {}
    for _name, _words, x, row in items:
        assert x >= rows.get(row, 0)
        rows[row] = x


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=14), min_size=1, max_size=20), st.integers(1, 8))
def test_any_text_can_be_drawn(tokens, block_size):
    figure = figures.draw_sequence(tokens, block_size)
    assert f"({len(tokens)} token{'s' * (len(tokens) > 1)}, block size {block_size})" in figure.text


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: figures.draw_slots({"A": [("x", "lost")]}), "unknown slot state 'lost'"),
        (lambda: figures.draw_slots({"A": ["x"] * 500}), "500 slots is too long"),
        (lambda: figures.draw_spans({"A": []}), "nothing to draw"),
        (lambda: figures.draw_spans({"A": [("token", -1)]}), "-1 slots"),
        (lambda: figures.draw_sequence(TOKENS, 0), "block_size is 0"),
        (lambda: figures.draw_bars({}), "nothing to draw"),
        (lambda: figures.draw_lines([1, 2], {"a": [1]}), "has 1 values, x has 2"),
        (lambda: figures.draw_gantt({"A": []}), "nothing to draw"),
        (lambda: Figure(b"", " ", 1, 1), "text alternative"),
        (lambda: figures.Table(["a", "b"], [[1]]), "1 cells, the header 2"),
    ],
)
def test_bad_input_is_named(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()


def test_a_table_shows_as_markdown_and_as_text():
    table = figures.Table(["block", "tokens"], [[7, "Four | score"], [1, "years"]])
    assert table._repr_markdown_().splitlines()[2] == "| 7 | Four \\| score |"
    assert repr(table).splitlines()[2] == "1      years"


def test_three_layers_of_a_shared_and_split_sequence():
    """Figure 8 of the paper, drawn from a manager that has just copied block 1 to block 3."""
    manager = KVCacheManager(9, 4, free_order=[7, 1, 3])
    first, second = CacheRequest("A1", list(range(7))), CacheRequest("A2", list(range(7)))
    manager.allocate_slots(first, 7)
    first.num_computed_tokens = 7
    manager.fork(first, second)
    for request in (first, second):
        request.append_token(7)
        manager.allocate_slots(request, 1)
        request.num_computed_tokens = 8
    texts = {"A1": [*TOKENS, " fathers"], "A2": [*TOKENS, " mothers"]}
    text = figures.draw_block_table(manager, [first, second], texts, new={"A1": [7]}, names={"A1": "first sample"}).text
    assert "first sample: 8 tokens written, block size 4, 2 blocks" in text
    assert "  logical 1 → physical 3, filled 4 of 4: years | ago | our | fathers" in text
    assert "  physical 7, count 2: Four | score | and | seven" in text
    assert "  physical 1, count 1: years | ago | our | mothers" in text
    by_function = figures.draw_block_table(manager, [first, second], lambda token: f"t{token}").text
    assert "physical 3, count 1: t4 | t5 | t6 | t7" in by_function
