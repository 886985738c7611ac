"""A model for tests whose next token depends, exactly, on every token that it reads out of the paged cache.

It writes token ids and positions where a real model writes keys and values, and it checks each slot that it reads.
So a wrong block, a stale block, a copy too late or a hash too early cannot go unnoticed, and no rounding blurs it.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from minipaged.attention import AttentionMetadata, ReferenceBackend
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.serving import LLM, BeamSearchParams, SamplingParams

VOCAB, PRIME, EOS = 13, 65521, 0
NEVER_WRITTEN = -7.0


class WrongSlotRead(AssertionError):
    """The model read a slot that does not hold what was computed for that position."""


class HashModel:
    """Stands in for a decoder of two layers. ``fail_on``: numbers of the forward passes that break off half-way."""

    def __init__(self, max_position_embeddings: int = 512, fail_on: set[int] | None = None) -> None:
        self.config = SimpleNamespace(
            vocab_size=VOCAB,
            num_layers=2,
            num_kv_heads=1,
            head_dim=2,
            max_position_embeddings=max_position_embeddings,
            eos_token_id=EOS,
        )
        self.fail_on = fail_on or set()
        self.num_calls = 0
        self.num_tokens = 0

    def forward(self, token_ids, positions, storage: KVCacheStorage, metadata: AttentionMetadata, backend):
        self.num_calls += 1
        self.num_tokens += len(token_ids)
        written = torch.stack([token_ids, positions], dim=-1).float()[:, None, :]
        for layer in range(2):
            backend.write(written, written + layer, storage.k_cache[layer], storage.v_cache[layer],
                          metadata.slot_mapping)
            if self.num_calls in self.fail_on:
                raise RuntimeError("the device was lost")  # after the first layer: half of the step is written
        starts, lens = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
        hidden = [
            self._read(storage, metadata.block_tables[s], lens[s])[lens[s] - (starts[s + 1] - starts[s]) :]
            for s in range(metadata.num_seqs)
        ]
        return torch.cat(hidden)

    def _read(self, storage: KVCacheStorage, table, length: int):
        """The hash after every position of one sequence, from what the cache holds."""
        used = table[: -(-length // storage.block_size)].tolist()
        expected = torch.arange(length)
        for layer in range(2):
            key, value = storage.gather(layer, used, length)
            if not (key[:, 0, 1] == expected).all() or not (value == key + layer).all():
                found = key[:, 0, 1].tolist()
                raise WrongSlotRead(f"layer {layer}, blocks {used}: expected positions 0 … {length - 1}, got {found}")
        return _hashes(key[:, 0, 0].long())[:, None]

    def compute_logits(self, hidden):
        return _logits(hidden[:, 0])


def _hashes(tokens):
    """A number for every prefix; it depends on each token and its place."""
    weights = torch.tensor([pow(31, i + 1, PRIME) for i in range(len(tokens))])
    return ((tokens + 1) * weights).cumsum(0) % PRIME


def _logits(hashes):
    """Exact in fp32: every logit is a whole number below 65521, divided by 2¹³."""
    factors = torch.arange(1, VOCAB + 1) * 7919 + 101
    return ((hashes[:, None] + 3) * factors % PRIME).float() / 8192


def logits_after(tokens: list[int]):
    """What HashModel must compute after these tokens; no cache anywhere."""
    return _logits(_hashes(torch.tensor(tokens))[-1:])[0]


def greedy(prompt: list[int], max_tokens: int, ignore_eos: bool = False) -> list[int]:
    """The greedy continuation, computed without an engine."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(int(logits_after(tokens).argmax()))
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]


def naive_beam_search(prompt, params: BeamSearchParams, logits_after=logits_after, eos=EOS):
    """Beam search as in a textbook: every beam a list of its own, everything computed anew, nothing shared.

    Returns [(tokens, score)], best first.
    """
    width, beams, ended = params.beam_width, [([], 0.0)], []

    def end(tokens, total):
        ended.append((tokens, total / len(tokens) ** params.length_penalty))
        ended.sort(key=lambda hypothesis: -hypothesis[1])
        del ended[width:]

    for length in range(1, params.max_tokens + 1):
        candidates = []
        for tokens, total in beams:
            logprobs = logits_after(list(prompt) + tokens).double().log_softmax(-1).tolist()
            candidates += [(total + value, [*tokens, token]) for token, value in enumerate(logprobs)]
        candidates.sort(key=lambda c: -c[0])  # stable, as everywhere: ties go to the earlier beam, the smaller token
        beams = []
        for place, (total, tokens) in enumerate(candidates[: 2 * width]):
            if tokens[-1] == eos and not params.ignore_eos:
                if place < width:
                    end(tokens, total)
            elif len(beams) < width:
                beams.append((tokens, total))
        if length == params.max_tokens:
            for tokens, total in beams:
                end(tokens, total)
        elif len(ended) == width:
            best = max((total for _, total in beams), default=float("-inf"))
            reachable = max(best / n**params.length_penalty for n in (length + 1, params.max_tokens))
            if params.early_stopping or reachable <= ended[-1][1]:
                break
    return ended


def make_llm(model: HashModel | None = None, **kwargs) -> LLM:
    """An LLM on a HashModel, with no tokenizer, the reference backend, and a proof of the pool after every step."""
    kwargs = {"num_blocks": 64, "block_size": 4, "attention": ReferenceBackend(), "check_integrity": True} | kwargs
    llm = LLM((model or HashModel(), None), **kwargs)
    storage = llm.engine.runner.storage
    for cache in (*storage.k_cache, *storage.v_cache):
        cache.fill_(NEVER_WRITTEN)
    return llm


def tokens_of(outputs) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def assert_empty(llm: LLM) -> None:
    """Nobody is left, and nothing of anybody."""
    engine = llm.engine
    engine.check_integrity()
    assert not engine.has_unfinished_requests()
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    assert engine.manager.num_free_blocks == engine.manager.num_usable_blocks
    assert engine.manager.take_copies() == []
    if engine.runner.swap_space is not None:
        assert engine.runner.swap_space.num_free_blocks == engine.runner.swap_space.num_blocks


class ContentOfTheCache:
    """Every block that can be found by a hash holds the tokens that this hash stands for, at their positions."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.tokens, self.requests = llm, {}, []
        allocate = llm.engine.manager.allocate_slots

        def remembering(request, *args, **kwargs):
            self.requests.append(request)
            return allocate(request, *args, **kwargs)

        llm.engine.manager.allocate_slots = remembering

    def check(self) -> None:
        manager, storage = self.llm.engine.manager, self.llm.engine.runner.storage
        size = manager.block_size
        for request in set(self.requests):
            for index, name in enumerate(request.block_hashes):
                self.tokens[name] = (index * size, request.token_ids[index * size : (index + 1) * size])
        self.requests = []
        for block in manager.pool.blocks:
            if block.block_hash is not None:
                start, tokens = self.tokens[block.block_hash]
                written = storage.k_cache[1][block.block_id, :, 0].tolist()
                assert written == [[token, start + place] for place, token in enumerate(tokens)], block


__all__ = [
    "EOS",
    "VOCAB",
    "BeamSearchParams",
    "ContentOfTheCache",
    "HashModel",
    "SamplingParams",
    "WrongSlotRead",
    "assert_empty",
    "greedy",
    "logits_after",
    "make_llm",
    "naive_beam_search",
    "tokens_of",
]
