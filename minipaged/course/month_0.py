"""Month 0: one request with one contiguous KV cache, and ways to look into what the cache relies on.

The cache here is deliberately the conventional one: a single stretch of `max_len` slots for the request, so slot
numbers are positions. Month 2 replaces it by blocks; the model and the attention below stay as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minipaged.attention import AttentionMetadata, ReferenceBackend, dense_attention
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.model import LlamaModel


class CachedSequence:
    """One request, run by prefill and decode over one contiguous cache of `max_len` slots.

    Slots that nothing was written to hold NaN: a read of one of them would spoil every later number.

    Attributes:
        storage: K and V of every layer, each [1, max_len, num_kv_heads, head_dim]: one block, as long as the request
            may ever become.
        cache_len: slots written so far.
    """

    def __init__(self, model: LlamaModel, max_len: int) -> None:
        self.model = model
        self.backend = ReferenceBackend()
        self.storage = self._new_storage(max_len)
        self.cache_len = 0

    @property
    def max_len(self) -> int:
        return self.storage.block_size

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        """Run the whole prompt in one pass. Returns the logits [vocab_size] of the first new token.

        Raises ValueError when the cache is not empty, the prompt is empty, or it is longer than `max_len`.
        """
        if self.cache_len:
            raise ValueError(f"the cache holds {self.cache_len} tokens already: prefill comes first, then decode")
        if not token_ids:
            raise ValueError("the prompt has 0 tokens; give at least one")
        return self._step(list(token_ids), range(len(token_ids)))

    def decode(self, token_id: int, position: int | None = None) -> Tensor:
        """Run one token, the newest. Its K and V are written; returns the logits [vocab_size] of the next token.

        `position` is the length of the cache; another value is wrong, and the lesson shows what then happens.
        Raises ValueError when all `max_len` slots are written.
        """
        return self._step([token_id], [self.cache_len if position is None else position])

    def keys(self, layer: int) -> Tensor:
        """The cached keys of one layer, [cache_len, num_kv_heads, head_dim]."""
        return self.storage.k_cache[layer][0, : self.cache_len]

    def values(self, layer: int) -> Tensor:
        """The cached values of one layer, [cache_len, num_kv_heads, head_dim]."""
        return self.storage.v_cache[layer][0, : self.cache_len]

    def written_slots(self) -> list[int]:
        """The slots that hold numbers in every layer, found by looking, not by counting."""
        caches = torch.stack([*self.storage.k_cache, *self.storage.v_cache])
        written = ~caches.isnan().any(dim=(0, 1, 3, 4))
        return written.nonzero().flatten().tolist()

    def grow(self, max_len: int) -> int:
        """Move to a longer contiguous cache: allocate it, copy everything. Returns the bytes copied.

        Until the copy is done, the old and the new cache exist side by side.
        """
        if max_len <= self.max_len:
            raise ValueError(f"max_len {max_len} is not larger than the present {self.max_len}: nothing to grow")
        old, self.storage = self.storage, self._new_storage(max_len)
        copied = 0
        for source, target in zip(old.k_cache + old.v_cache, self.storage.k_cache + self.storage.v_cache, strict=True):
            target[0, : self.cache_len] = source[0, : self.cache_len]
            copied += source[0, : self.cache_len].nbytes
        return copied

    def _new_storage(self, max_len: int) -> KVCacheStorage:
        config = self.model.config
        storage = KVCacheStorage(config.num_layers, 1, max_len, config.num_kv_heads, config.head_dim, self.model.dtype)
        for cache in storage.k_cache + storage.v_cache:
            cache.fill_(float("nan"))
        return storage

    def _step(self, token_ids: list[int], positions: Sequence[int]) -> Tensor:
        start, stop = self.cache_len, self.cache_len + len(token_ids)
        if stop > self.max_len:
            raise ValueError(
                f"{stop} tokens do not fit into the {self.max_len} slots reserved for this request: reserve more "
                "(max_len), or grow() into a longer cache, which copies everything"
            )
        metadata = AttentionMetadata.build([[0]], [stop], [stop - start], range(start, stop))
        ids, where = torch.tensor(token_ids), torch.tensor(list(positions))
        hidden = self.model(ids, where, self.storage, metadata, self.backend)
        self.cache_len = stop
        return self.model.compute_logits(hidden[-1:])[0]


def generate(model: LlamaModel, prompt: Sequence[int], max_new_tokens: int, use_cache: bool = True) -> list[int]:
    """Greedy tokens after `prompt`, at most `max_new_tokens`; the end token stops early and is left out.

    With the cache: one prefill, then one token a step. Without: the whole sequence again in every step.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; ask for at least 1")
    new: list[int] = []
    sequence = CachedSequence(model, len(prompt) + max_new_tokens)
    while True:
        if not use_cache:
            logits = model.forward_dense(torch.tensor([*prompt, *new]))[-1]
        elif not new:
            logits = sequence.prefill(prompt)
        else:
            logits = sequence.decode(new[-1])
        token = int(logits.argmax())
        if token == model.config.eos_token_id:
            return new
        new.append(token)
        if len(new) == max_new_tokens:
            return new


def hidden_states(model: LlamaModel, token_ids: Sequence[int], causal: bool = True) -> list[Tensor]:
    """The hidden states [T, hidden_size] in front of every layer, and behind the last: num_layers + 1 matrices.

    `causal=False` lets every position see every other one, as in an encoder: the model was not trained for that,
    but it shows what the cache relies on.
    """
    hidden = model.embed_tokens(torch.tensor(list(token_ids)))
    states = [hidden]
    for layer in model.layers:
        query, key, value = project(model, len(states) - 1, hidden, range(len(hidden)))
        attention = layer.self_attn
        attended = dense_attention(query, key, value, scale=attention.scale, causal=causal)
        hidden = hidden + attention.o_proj(attended.flatten(-2))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        states.append(hidden)
    return states


def project(
    model: LlamaModel, layer: int, hidden: Tensor, positions: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key, value of some positions in one layer: hidden [T, hidden_size] → each [T, its heads, head_dim]."""
    block = model.layers[layer]
    cos, sin = model.rope.lookup(torch.tensor(list(positions)))
    return block.self_attn.project(block.input_layernorm(hidden), cos, sin)


def change_of_old_keys(model: LlamaModel, token_ids: Sequence[int], new_token: int, causal: bool) -> list[float]:
    """Per layer: by how much do the keys of `token_ids` change, at most, when `new_token` is appended?"""
    before = hidden_states(model, token_ids, causal)
    after = hidden_states(model, [*token_ids, new_token], causal)
    positions = range(len(token_ids))
    changes = []
    for layer in range(model.config.num_layers):
        old_key, key = (project(model, layer, states[layer][: len(positions)], positions)[1]
                        for states in (before, after))
        changes.append(float((key - old_key).abs().max()))
    return changes


@contextlib.contextmanager
def count_projections(model: LlamaModel) -> Iterator[list[int]]:
    """Inside the block, each pass through the model appends how many positions it made K and V for (in layer 0)."""
    counts: list[int] = []
    hook = model.layers[0].self_attn.qkv_proj.register_forward_hook(
        lambda module, inputs, output: counts.append(output[..., 0].numel())
    )
    try:
        yield counts
    finally:
        hook.remove()


class OneLayer:
    """The smallest model with a KV cache: embeddings and one attention head, in float64, with fixed random weights.

    Attributes:
        token_embedding [vocab_size, size], position_embedding [max_len, size]: added, they are the hidden state.
        w_q, w_k, w_v [size, size]: query, key and value are `hidden @ w_…`.
    """

    def __init__(self, seed: int = 0, vocab_size: int = 16, max_len: int = 32, size: int = 8) -> None:
        generator = torch.Generator().manual_seed(seed)
        shapes = [(vocab_size, size), (max_len, size), (size, size), (size, size), (size, size)]
        weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        self.token_embedding, self.position_embedding, self.w_q, self.w_k, self.w_v = weights
        self.scale = size**-0.5

    def forward_dense(self, token_ids: Sequence[int]) -> Tensor:
        """The attention's output at every position, [T, size], computed from scratch."""
        hidden = self.token_embedding[list(token_ids)] + self.position_embedding[: len(token_ids)]
        query, key, value = hidden @ self.w_q, hidden @ self.w_k, hidden @ self.w_v
        scores = query @ key.T * self.scale
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ value
