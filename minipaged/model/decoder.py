"""A decoder of the Llama kind (Llama, Mistral, Qwen2, Qwen3): RMSNorm, RoPE, grouped-query attention, SwiGLU.

There are two ways through it, and they give the same logits. `forward_dense` runs whole sequences without any
cache: it is the truth, and training uses it. `forward` runs one step of a serving engine: the tokens of all
requests, flattened, their keys and values written into the paged cache and read back through block tables.

The formulas are those of `LlamaForCausalLM` and its relatives in Hugging Face transformers; the tests hold the two
together. Projections that read the same input are packed into one matrix (`qkv_proj`, `gate_up_proj`), as vLLM does.
What a model has more than Llama (a bias, a norm on queries and keys, a sliding window) is settled when it is built.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minipaged.attention.reference import dense_attention
from minipaged.attention.window import with_window
from minipaged.model import ops
from minipaged.model.config import ModelConfig
from minipaged.model.rope import RotaryEmbedding

if TYPE_CHECKING:
    from minipaged.attention.metadata import AttentionMetadata
    from minipaged.attention.protocols import AttentionBackend
    from minipaged.kv_cache.storage import KVCacheStorage
    from minipaged.model.few_rows import FewRows


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class Linear(nn.Linear):
    """x · weightᵀ + bias, by whichever product is fastest for the number of rows."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class Attention(nn.Module):
    """Causal self-attention with num_heads query heads and num_kv_heads key/value heads.

    The rows of `qkv_proj` are those of all query heads, then all key heads, then all value heads.
    """

    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.window = window
        all_heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv_proj = Linear(config.hidden_size, all_heads * config.head_dim, bias=config.qkv_bias)
        self.o_proj = Linear(config.num_heads * config.head_dim, config.hidden_size, bias=config.o_bias)
        self.has_norms = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [..., T, hidden] → query, key, value, each [..., T, its heads, D]; query and key rotated."""
        heads = self.qkv_proj(hidden).unflatten(-1, (-1, self.head_dim))
        rotated, value = heads.split((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=-2)
        if self.has_norms:
            query, key = rotated.split((self.num_heads, self.num_kv_heads), dim=-2)
            rotated = torch.cat((self.q_norm(query), self.k_norm(key)), dim=-2)
        query, key = RotaryEmbedding.rotate(rotated, cos, sin).split((self.num_heads, self.num_kv_heads), dim=-2)
        return query, key, value

    def forward(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: "AttentionMetadata",
        backend: "AttentionBackend",
    ) -> Tensor:
        """One step over the paged cache: write every new key and value, and only then read.

        The order matters: a token attends to the other new tokens of its own request, through the cache.
        A cache in a wider type than the model's is computed with in its own type.
        """
        query, key, value = self.project(hidden, cos, sin)
        if k_cache.dtype.itemsize > query.dtype.itemsize:
            query, key, value = (heads.to(k_cache.dtype) for heads in (query, key, value))
        backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)
        attended = backend.attend(query, k_cache, v_cache, metadata, self.scale)
        return self.o_proj(attended.flatten(-2).to(hidden.dtype))

    def forward_dense(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Whole sequences [B, T, hidden], no cache: position t sees positions 0 … t, or the last `window` of them."""
        attended = dense_attention(*self.project(hidden, cos, sin), scale=self.scale, causal=True, window=self.window)
        return self.o_proj(attended.flatten(-2))


class MLP(nn.Module):
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.silu_mul(self.gate_up_proj(x)))


class DecoderLayer(nn.Module):
    """Attention, then MLP; each reads a normalised copy and adds its result to the stream."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, config.window(index))
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    @property
    def is_plain(self) -> bool:
        """Has it only what `layer_kernels` compute? Biases may stand in the projection to the heads alone."""
        attention, mlp, norms = self.self_attn, self.mlp, (self.input_layernorm, self.post_attention_layernorm)
        ours = type(self) is DecoderLayer and type(attention) is Attention and type(mlp) is MLP
        if not ours or any(type(norm) is not RMSNorm for norm in norms):
            return False
        if attention.has_norms:
            return False
        without_bias = (attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
        linear = all(type(part) is Linear for part in (attention.qkv_proj, *without_bias))
        return linear and all(part.bias is None for part in without_bias)

    def forward(self, hidden: Tensor, *paged: object) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), *paged)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def forward_dense(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        hidden = hidden + self.self_attn.forward_dense(self.input_layernorm(hidden), cos, sin)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def methods() -> tuple:
    """The arithmetic of a layer. Kernels that do the same may only stand for them while they are the course's own."""
    return (
        DecoderLayer.forward, Attention.forward, Attention.project, MLP.forward, RMSNorm.forward, Linear.forward,
        RotaryEmbedding.rotate,
    )  # fmt: skip


OWN_METHODS = methods()


class LlamaModel(nn.Module):
    """Embedding, decoder layers, final norm, and the head that turns a hidden state into logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rope = RotaryEmbedding(
            config.head_dim, config.max_position_embeddings, config.rope_theta, config.rope_scaling
        )
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_layers))
        self.slides = [config.window(index) is not None for index in range(config.num_layers)]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.read_layers: FewRows | None = None  # as kernels for few rows read them: see `ops.few_rows`
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)

    def _apply(self, *arguments: object, **named: object) -> nn.Module:
        self.read_layers = None  # torch's way of .to(), .half(), .cuda(): without this the old weights would stay, too
        return super()._apply(*arguments, **named)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        storage: "KVCacheStorage",
        metadata: "AttentionMetadata",
        backend: "AttentionBackend",
    ) -> Tensor:
        """One step of the engine: the step's tokens of all requests, flattened, without padding.

        token_ids, positions: int64 [T], in the order of `metadata.query_start_loc`. Returns the hidden states
        [T, hidden_size]; pass the rows that need a next token to `compute_logits`.
        Raises ValueError for a token id or position out of range, and TypeError for a backend that has no sliding
        window where the model has one, before anything is written to the cache.
        """
        if len(positions) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens, but {len(positions)} positions: give one for each token")
        hidden, cos, sin = self._embed(token_ids, positions)
        sliding = with_window(backend, self.config.sliding_window)
        few_rows = ops.few_rows(self, hidden) if len(set(self.slides)) == 1 else None
        if few_rows is not None:
            after_layers = few_rows.run(hidden, cos, sin, storage, metadata, sliding if self.slides[0] else backend)
            if after_layers is not None:
                return self.norm(after_layers)
        for index, layer in enumerate(self.layers):
            k_cache, v_cache = storage.k_cache[index], storage.v_cache[index]
            reader = sliding if self.slides[index] else backend
            hidden = layer(hidden, cos, sin, k_cache, v_cache, metadata, reader)
        return self.norm(hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, hidden_size] → logits [rows, vocab_size], fp32."""
        head = self.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return ops.linear(hidden, head.weight, None).float()

    def forward_dense(self, token_ids: Tensor) -> Tensor:
        """Logits of whole sequences, without a cache: [T] → [T, vocab_size], or [B, T] → [B, T, vocab_size].

        Raises ValueError for a token id out of range or a sequence beyond max_position_embeddings.
        """
        batch = token_ids if token_ids.dim() == 2 else token_ids.unsqueeze(0)
        hidden, cos, sin = self._embed(batch, torch.arange(batch.shape[1], device=batch.device))
        for layer in self.layers:
            hidden = layer.forward_dense(hidden, cos, sin)
        return self.compute_logits(self.norm(hidden)).view(*token_ids.shape, -1)

    def _embed(self, token_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look up embeddings and rotations, the two places where an id or a position can be out of range."""
        try:
            return self.embed_tokens(token_ids), *self.rope.lookup(positions)
        except IndexError:
            self._explain("token id", token_ids, self.config.vocab_size, "vocabulary size")
            self._explain("position", positions, self.config.max_position_embeddings, "model length")
            raise

    @staticmethod
    def _explain(what: str, values: Tensor, limit: int, limit_name: str) -> None:
        bad = values[(values < 0) | (values >= limit)]
        if bad.numel():
            raise ValueError(
                f"{what} {bad[0].item()} is out of range: the {limit_name} is {limit}, so 0 … {limit - 1} are "
                f"allowed. "
                + (
                    "Encode the text with this model's own tokenizer."
                    if what == "token id"
                    else "Shorten the prompt or lower max_tokens."
                )
            )
