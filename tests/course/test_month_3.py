"""Month 3's experiments: the radix tree against a list of all sequences, the story of evictions, the faulty caches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course.faulty_caches import FAULTY, RULES
from minipaged.course.figures_month_3 import draw_chain
from minipaged.course.granularity import RadixTree, chat_trace, reuse_with_blocks, reuse_with_tree
from minipaged.course.month_3 import admit, eviction_story, grow, removal_milliseconds, serve
from minipaged.kv_cache import CacheRequest, KVCacheManager

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


def prefixes(seen: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(tokens[:n]) for tokens in seen for n in range(1, len(tokens) + 1)}


def stored(tree: RadixTree) -> set[tuple[int, ...]]:
    """Every prefix that the tree holds."""
    found = set()
    for node in tree.nodes():
        path, above = list(node.tokens), node.parent
        while above is not None:
            path, above = above.tokens + path, above.parent
        found |= {tuple(path[:n]) for n in range(len(path) - len(node.tokens) + 1, len(path) + 1)}
    return found


@given(sequences)
@settings(max_examples=60, deadline=None)
def test_a_tree_with_room_for_all_finds_the_longest_common_prefix(seen: list[list[int]]) -> None:
    tree = RadixTree(10_000)
    for number, tokens in enumerate(seen):
        before = prefixes(seen[:number])
        best = max((n for n in range(len(tokens) + 1) if tuple(tokens[:n]) in before), default=0)
        assert tree.match(tokens)[0] == best
        tree.insert(tokens)
        assert tree.size == len(prefixes(seen[: number + 1])) == len(stored(tree))


@given(sequences, st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_a_small_tree_keeps_its_room_and_tells_no_lies(seen: list[list[int]], capacity: int) -> None:
    tree = RadixTree(capacity)
    for number, tokens in enumerate(seen):
        length, _ = tree.match(tokens)
        assert length == 0 or tuple(tokens[:length]) in prefixes(seen[:number])
        tree.insert(tokens)
        assert tree.size == len(stored(tree)) <= capacity
        assert stored(tree) <= prefixes(seen[: number + 1])


def test_single_tokens_and_the_tree_hit_the_same_when_there_is_room() -> None:
    trace = chat_trace()
    assert reuse_with_blocks(trace, 1, 4096).found == reuse_with_tree(trace, 4096).found
    assert reuse_with_blocks(trace, 16, 4096).found < reuse_with_blocks(trace, 4, 4096).found


def test_the_story_ends_as_exercises_3_5_and_3_6_say() -> None:
    story = eviction_story()
    assert story.queues[5] == [6, 4, 7, 8, 9, 3, 2, 5, 1, 0]
    assert story.tables[6]["r2"] == [0, 1, 2, 6, 4, 7, 8, 9]
    assert story.queues[6] == [3, 5]
    assert "12 of 29" in story.captions[6]
    assert "3 (named, r0·3)" in story.figures[6].text
    assert len({figure.height for figure in story.figures}) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_faulty_manager_serves_a_plain_request(rule: str) -> None:
    manager = FAULTY[rule](8, 4)
    assert [serve(manager, range(9)), serve(manager, range(9))] == [0, 8]
    manager.check_integrity()


def test_the_helpers_refuse_what_does_not_fit() -> None:
    manager = KVCacheManager(2, 4)
    with pytest.raises(RuntimeError, match="9 tokens do not fit into 2 free blocks"):
        serve(manager, range(9))
    request = CacheRequest("r", range(8))
    assert admit(manager, request) == 0
    with pytest.raises(RuntimeError, match="no block is free for token 9"):
        grow(manager, request, [1])


def test_the_chain_is_drawn_with_its_hashes() -> None:
    same, other = b"\x01" * 32, b"\x02" * 32
    text = draw_chain({"A": [("x", same)], "B": [("x", same), ("y", other)]}).text
    assert "A: [x] → 010101 (also in another row)" in text
    assert "[y] → 020202" in text


def test_both_queues_lose_the_blocks_that_hit() -> None:
    assert set(removal_milliseconds(300, 20)) == {"deque: search, then close the gap", "linked list"}
