"""A Llama-family decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU.

There are two ways through it, and they give the same logits. `forward_dense` runs whole sequences without any
cache: it is the truth, and training uses it. `forward` runs one step of a serving engine: the tokens of all
requests, flattened, their keys and values written into the paged cache and read back through block tables.

The formulas are those of `LlamaForCausalLM` in Hugging Face transformers; the tests hold the two together.
Projections that read the same input are packed into one matrix (`qkv_proj`, `gate_up_proj`), as vLLM does.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipaged.attention.reference import dense_attention
from minipaged.model.config import ModelConfig

if TYPE_CHECKING:
    from minipaged.attention.metadata import AttentionMetadata
    from minipaged.attention.protocols import AttentionBackend
    from minipaged.kv_cache.storage import KVCacheStorage


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class RotaryEmbedding(nn.Module):
    """RoPE (Su et al., 2021): turn each pair (x[i], x[i + D/2]) by the angle position · theta^(−2i/D).

    The cosines and sines of all positions are computed once. In fp32, as transformers and vLLM do: a checkpoint is
    trained with these very roundings, which at position 4000 are 10⁻⁴ rad away from float64.
    """

    def __init__(self, head_dim: int, max_positions: int, theta: float) -> None:
        super().__init__()
        # The device is named, so that these tables are real also when the model is built on "meta".
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
        positions = torch.arange(max_positions, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, 1.0 / theta**exponents).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def lookup(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions [T], each [T, 1, D]. A position outside the table is an IndexError."""
        # index_select refuses negative positions, where plain indexing would count from the end.
        cos, sin = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        return cos.unsqueeze(1), sin.unsqueeze(1)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn x [..., T, heads, D] by the angles of its positions."""
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with num_heads query heads and num_kv_heads key/value heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        all_heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv_proj = nn.Linear(config.hidden_size, all_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [..., T, hidden] → query, key, value, each [..., T, its heads, D]; query and key rotated."""
        heads = self.qkv_proj(hidden).unflatten(-1, (-1, self.head_dim))
        rotated, value = heads.split((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=-2)
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
        """
        query, key, value = self.project(hidden, cos, sin)
        backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)
        attended = backend.attend(query, k_cache, v_cache, metadata, self.scale)
        return self.o_proj(attended.flatten(-2))

    def forward_dense(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Whole sequences [B, T, hidden], no cache: position t sees positions 0 … t."""
        attended = dense_attention(*self.project(hidden, cos, sin), scale=self.scale, causal=True)
        return self.o_proj(attended.flatten(-2))


class MLP(nn.Module):
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class DecoderLayer(nn.Module):
    """Attention, then MLP; each reads a normalised copy and adds its result to the stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, hidden: Tensor, *paged: object) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), *paged)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def forward_dense(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        hidden = hidden + self.self_attn.forward_dense(self.input_layernorm(hidden), cos, sin)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class LlamaModel(nn.Module):
    """Embedding, decoder layers, final norm, and the head that turns a hidden state into logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rope = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope_theta)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

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
        Raises ValueError for a token id or position out of range, before anything is written to the cache.
        """
        hidden, cos, sin = self._embed(token_ids, positions)
        for index, layer in enumerate(self.layers):
            k_cache, v_cache = storage.k_cache[index], storage.v_cache[index]
            hidden = layer(hidden, cos, sin, k_cache, v_cache, metadata, backend)
        return self.norm(hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, hidden_size] → logits [rows, vocab_size], fp32."""
        head = self.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return F.linear(hidden, head.weight).float()

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
