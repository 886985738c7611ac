"""Who holds what, when the heads of a model are dealt out to several ranks. Plain arithmetic: no process runs here.

The plan is Megatron's (Shoeybi et al., 2019), as in vLLM: every rank has the same number of query heads, the KV heads
that these read, and an equal part of the MLP. A KV head is never cut; where there are more ranks than KV heads, several
ranks hold the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from minipaged.model.config import ModelConfig
from minipaged.model.hub import checkpoint_folder

KEY_AND_VALUE = 2
ALL_REDUCES_A_LAYER = 2  # behind o_proj and behind down_proj


class ParallelSizeError(ValueError):
    """A model cannot be dealt out to so many ranks; the message says which number does not fit, and which would."""


@dataclass(frozen=True)
class ParallelLayout:
    """A model on `num_ranks` ranks. Raises ParallelSizeError for a number of ranks that its sizes do not allow."""

    config: ModelConfig
    num_ranks: int

    def __post_init__(self) -> None:
        if isinstance(self.num_ranks, bool) or not isinstance(self.num_ranks, int) or self.num_ranks < 1:
            raise ParallelSizeError(f"num_ranks is {self.num_ranks!r}; give a whole number of ranks, 1 or more")
        problem = _problem(self.config, self.num_ranks)
        if problem:
            fits = [n for n in range(1, self.config.num_heads + 1) if not _problem(self.config, n)]
            raise ParallelSizeError(
                f"this model cannot run on {self.num_ranks} ranks: {problem}. It runs on {_listed(fits)}."
            )

    @classmethod
    def of(cls, model: str | Path, num_ranks: int) -> ParallelLayout:
        """Of "tiny", a checkpoint folder, or a name on the hub; only its config.json is read."""
        return cls(ModelConfig.from_folder(checkpoint_folder(model)), num_ranks)

    @property
    def heads_per_rank(self) -> int:
        return self.config.num_heads // self.num_ranks

    @property
    def kv_heads_per_rank(self) -> int:
        """At least 1: a KV head is copied rather than cut."""
        return max(1, self.config.num_kv_heads // self.num_ranks)

    @property
    def ranks_per_kv_head(self) -> int:
        """How many ranks hold the same KV head: 1, or more where there are fewer KV heads than ranks."""
        return max(1, self.num_ranks // self.config.num_kv_heads)

    def heads(self, rank: int) -> range:
        """The query heads that a rank computes."""
        first = self._check(rank) * self.heads_per_rank
        return range(first, first + self.heads_per_rank)

    def kv_heads(self, rank: int) -> range:
        """The KV heads whose keys and values a rank keeps, of every block."""
        first = self._check(rank) // self.ranks_per_kv_head * self.kv_heads_per_rank
        return range(first, first + self.kv_heads_per_rank)

    def mlp_columns(self, rank: int) -> range:
        """Which of the MLP's inner elements a rank computes."""
        width = self.config.intermediate_size // self.num_ranks
        return range(self._check(rank) * width, (rank + 1) * width)

    def config_of_a_rank(self) -> ModelConfig:
        """The sizes of one rank's part: it is a model like any other, with fewer heads and a narrower MLP."""
        return replace(
            self.config,
            num_heads=self.heads_per_rank,
            num_kv_heads=self.kv_heads_per_rank,
            intermediate_size=self.config.intermediate_size // self.num_ranks,
        )

    # Bytes

    def kv_bytes_per_token(self, itemsize: int = 4) -> int:
        """KV cache bytes of one token on one rank, all layers; `itemsize`: bytes of an element (fp32: 4, bf16: 2)."""
        sizes = self.config
        return KEY_AND_VALUE * sizes.num_layers * self.kv_heads_per_rank * sizes.head_dim * itemsize

    def kv_bytes_per_block(self, block_size: int = 16, itemsize: int = 4) -> int:
        """KV cache bytes of one block on one rank. Every rank has such a part of every block."""
        return block_size * self.kv_bytes_per_token(itemsize)

    def all_reduces_per_step(self) -> int:
        """How often the ranks meet in one step. With one rank nobody needs to be met."""
        return ALL_REDUCES_A_LAYER * self.config.num_layers if self.num_ranks > 1 else 0

    def all_reduce_bytes(self, num_tokens: int, itemsize: int = 4) -> int:
        """Bytes of one all-reduce: a partial sum of [num_tokens, hidden_size] on each rank."""
        return num_tokens * self.config.hidden_size * itemsize if self.num_ranks > 1 else 0

    def all_reduce_bytes_per_step(self, num_tokens: int, itemsize: int = 4) -> int:
        """Bytes that one rank brings to all the all-reduces of a step with so many tokens (prompts and decodes)."""
        return self.all_reduces_per_step() * self.all_reduce_bytes(num_tokens, itemsize)

    def ring_bytes_per_step(self, num_tokens: int, itemsize: int = 4) -> int:
        """Bytes that one rank sends in a step if each all-reduce goes round in a ring: 2 · (N − 1) / N of the above.

        Source: Patarasuk and Yuan, 2009: each part travels once to be added up, and once to be handed out.
        """
        total = self.all_reduce_bytes_per_step(num_tokens, itemsize)
        return 2 * (self.num_ranks - 1) * total // self.num_ranks

    def rows(self) -> list[dict[str, object]]:
        """One row a rank, for a table: which heads it computes, which KV heads of every block it holds."""
        return [
            {"rank": rank, "query heads": _span(self.heads(rank)), "KV heads": _span(self.kv_heads(rank))}
            for rank in range(self.num_ranks)
        ]

    def _check(self, rank: int) -> int:
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank is {rank}; there are {self.num_ranks} ranks, 0 … {self.num_ranks - 1}")
        return rank


def _problem(config: ModelConfig, num_ranks: int) -> str:
    """What does not come out even, or nothing."""
    if config.num_heads % num_ranks:
        return f"num_attention_heads = {config.num_heads} is no multiple of {num_ranks}"
    if config.num_kv_heads % num_ranks and num_ranks % config.num_kv_heads:
        return (
            f"num_key_value_heads = {config.num_kv_heads} is neither a multiple of {num_ranks} (to be dealt out) nor a "
            f"divisor of it (to be copied)"
        )
    if config.intermediate_size % num_ranks:
        return f"intermediate_size = {config.intermediate_size} is no multiple of {num_ranks}"
    return ""


def _span(numbers: range) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _listed(numbers: list[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]} rank only"
