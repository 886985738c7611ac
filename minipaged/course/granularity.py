"""How fine should a prefix cache cut? Blocks, single tokens and a radix tree on one trace, with equal room."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from minipaged.course.month_3 import serve
from minipaged.kv_cache import KVCacheManager


def chat_trace(num_chats: int = 6, num_turns: int = 5, seed: int = 1) -> list[list[int]]:
    """Prompts of interleaved conversations: one common beginning of 37 tokens, then turns of unequal length."""
    rng = random.Random(seed)
    common = [rng.randrange(1000) for _ in range(37)]
    chats = [list(common) for _ in range(num_chats)]
    trace = []
    for _ in range(num_turns):
        for chat in rng.sample(chats, num_chats):
            chat.extend(rng.randrange(1000) for _ in range(rng.randint(6, 30)))
            trace.append(list(chat))
    return trace


@dataclass(frozen=True)
class Reuse:
    """What an index found on a trace: tokens asked and found, entries at the end, and comparisons of all lookups."""

    name: str
    asked: int
    found: int
    entries: int
    lookups: int


def reuse_with_blocks(trace: Sequence[list[int]], block_size: int, capacity: int) -> Reuse:
    """The real manager, with blocks of this size and room for `capacity` tokens. Size 1: every token is an entry."""
    manager = KVCacheManager(capacity // block_size, block_size)
    found = lookups = 0
    for number, tokens in enumerate(trace):
        hit = serve(manager, tokens, f"r{number}")
        found += hit
        lookups += min(hit // block_size + 1, (len(tokens) - 1) // block_size)
    name = f"blocks of {block_size}" if block_size > 1 else "single tokens"
    return Reuse(name, sum(map(len, trace)), found, len(manager.pool.prefix_cache), lookups)


@dataclass(eq=False)
class _Node:
    """A stretch of tokens that belongs together; children by their first token."""

    tokens: list[int]
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    last_used: int = 0


class RadixTree:
    """A prefix tree whose edges are stretches of tokens, with room for `capacity` tokens.

    A stretch is split where two sequences part. When room is short, the least recently used leaf loses tokens from
    its end. Source of the idea: Zheng et al., "SGLang", 2024, §3 (RadixAttention).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.size, self.clock = capacity, 0, 0
        self.root = _Node([], None)

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """(tokens found from the beginning on, stretches looked at). Marks them as used now."""
        self.clock += 1
        node, done, steps = self.root, 0, 0
        while done < len(tokens) and (child := node.children.get(tokens[done])):
            steps += 1
            same = _common(child.tokens, tokens, done)
            child.last_used, done = self.clock, done + same
            if same < len(child.tokens):
                break
            node = child
        return done, steps

    def insert(self, tokens: Sequence[int]) -> None:
        """Add a sequence; only what is new takes room."""
        node, done = self.root, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                new = _Node(list(tokens[done:]), node, last_used=self.clock)
                node.children[tokens[done]] = new
                self.size += len(new.tokens)
                break
            same = _common(child.tokens, tokens, done)
            if same < len(child.tokens):
                child = self._split(child, same)
            child.last_used, node, done = self.clock, child, done + same
        self._evict()

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a stretch in two; returns the upper part."""
        upper = _Node(node.tokens[:at], node.parent, last_used=node.last_used)
        node.parent.children[upper.tokens[0]] = upper
        node.tokens, node.parent = node.tokens[at:], upper
        upper.children[node.tokens[0]] = node
        return upper

    def _evict(self) -> None:
        while self.size > self.capacity:
            leaf = min((node for node in self.nodes() if not node.children), key=lambda node: node.last_used)
            lost = min(len(leaf.tokens), self.size - self.capacity)
            self.size -= lost
            if lost == len(leaf.tokens):
                del leaf.parent.children[leaf.tokens[0]]
            else:
                del leaf.tokens[-lost:]

    def nodes(self) -> Iterator[_Node]:
        """All stretches, without the empty root."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())


def _common(stretch: Sequence[int], tokens: Sequence[int], start: int) -> int:
    """How many tokens of `stretch` agree with `tokens` from `start` on."""
    length = min(len(stretch), len(tokens) - start)
    return next((i for i in range(length) if stretch[i] != tokens[start + i]), length)


def reuse_with_tree(trace: Sequence[list[int]], capacity: int) -> Reuse:
    """A radix tree on the same trace, with the same room. Here, too, the last token of a prompt must run."""
    tree, found, lookups = RadixTree(capacity), 0, 0
    for tokens in trace:
        hit, steps = tree.match(tokens[:-1])
        found, lookups = found + hit, lookups + steps
        tree.insert(tokens)
    return Reuse("radix tree", sum(map(len, trace)), found, sum(1 for _ in tree.nodes()), lookups)
