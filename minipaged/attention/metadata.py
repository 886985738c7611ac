"""What the attention of one engine step must know of the batch: tables, lengths, slots. Flat, no padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

UNUSED = -1  # fills the unused tail of a block table's row; no kernel may read it


@dataclass
class AttentionMetadata:
    """The batch of one step, as every attention backend reads it.

    The query tokens of sequence ``s`` are the *last* ``query_len`` tokens of its context: they stand at the
    positions ``seq_len - query_len … seq_len - 1``. Prefill, chunked prefill and decode (``query_len == 1``)
    are the same thing with other numbers, so one step may mix them.

    Shapes (S sequences, T query tokens of all sequences together):
      block_tables     int32 [S, max_blocks]   physical block ids, the unused tail filled with −1
      seq_lens         int32 [S]               tokens of context, those of this step included
      query_start_loc  int32 [S + 1]           sequence s owns the query rows start[s] … start[s + 1] − 1
      slot_mapping     int64 [T]               where this step's K and V are written; −1 means "do not write"
    """

    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    slot_mapping: Tensor
    max_query_len: int
    max_seq_len: int
    _cache: dict = field(default_factory=dict, repr=False, compare=False)
    _cache_of: tuple = field(default=(), repr=False, compare=False)  # what the cache's entries were computed from

    @classmethod
    def build(
        cls,
        block_tables: Sequence[Sequence[int]],
        seq_lens: Sequence[int],
        query_lens: Sequence[int],
        slot_mapping: Sequence[int],
        device: str | torch.device = "cpu",
    ) -> AttentionMetadata:
        """Build from plain lists, one entry a sequence (``slot_mapping``: one entry a query token).

        Raises ValueError when the lists do not fit together, TypeError when they hold something else than whole
        numbers. Ids, lengths and slots are compared with the cache itself when a backend runs (see
        ``validate.validate_metadata``).
        """
        names = ("block_tables", "seq_lens", "query_lens", "slot_mapping")
        for name, given in zip(names, (block_tables, seq_lens, query_lens, slot_mapping), strict=True):
            if not hasattr(given, "__len__"):
                raise TypeError(f"{name} is a {type(given).__name__}, but a list is needed")
        num_seqs = len(seq_lens)
        if not len(block_tables) == len(query_lens) == num_seqs:
            raise ValueError(
                f"{len(block_tables)} block tables, {num_seqs} seq_lens and {len(query_lens)} query_lens: "
                "give one of each for every sequence"
            )
        if sum(query_lens) != len(slot_mapping):
            raise ValueError(
                f"slot_mapping has {len(slot_mapping)} entries, but the query_lens add up to "
                f"{sum(query_lens)} tokens: give one slot for every query token (−1 for a token that is not "
                "to be written)"
            )
        for s, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
            if not 0 <= query_len <= seq_len:
                raise ValueError(
                    f"sequence {s}: query_len {query_len} must lie between 0 and its seq_len {seq_len}, "
                    "because the query tokens are the last tokens of the context"
                )
        width = max((len(row) for row in block_tables), default=0)
        rows = [list(row) + [UNUSED] * (width - len(row)) for row in block_tables]
        return cls(
            block_tables=_whole_numbers("block_tables", rows, torch.int32, device).reshape(num_seqs, width),
            seq_lens=_whole_numbers("seq_lens", seq_lens, torch.int32, device),
            query_start_loc=_whole_numbers("query_lens", [0, *accumulate(query_lens)], torch.int32, device),
            slot_mapping=_whole_numbers("slot_mapping", slot_mapping, torch.int64, device),
            max_query_len=max(query_lens, default=0),
            max_seq_len=max(seq_lens, default=0),
        )

    @property
    def num_seqs(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        """Query tokens of the whole step."""
        return self.slot_mapping.shape[0]

    @property
    def query_lens(self) -> Tensor:
        return self.query_start_loc[1:] - self.query_start_loc[:-1]

    @property
    def is_decode(self) -> bool:
        """True when every sequence brings exactly one query token."""
        return self.max_query_len == 1 and self.num_tokens == self.num_seqs

    def seq_of_token(self) -> Tensor:
        """int32 [T]: the sequence each query token belongs to. Computed once a step."""
        return self._once("seq_of_token", self._seq_of_token)

    def query_tiles(self, tile: int) -> tuple[Tensor, Tensor]:
        """Cut each sequence's query tokens into tiles of at most ``tile`` tokens, for kernels with a grid.

        Returns int32 (sequence of tile n, first query token of tile n within its sequence). A sequence
        without query tokens has no tile. Computed once a step: all layers share it.
        """
        return self._once(("query_tiles", tile), lambda: self._query_tiles(tile))

    def _once(self, key, compute):
        """``compute()``, once a step: again only after a tensor was replaced or changed in place."""
        tables, lens, starts, slots = self.block_tables, self.seq_lens, self.query_start_loc, self.slot_mapping
        try:
            versions = (tables._version, lens._version, starts._version, slots._version)
        except (RuntimeError, AttributeError):  # inference tensors count no changes, and what is no tensor is refused
            return compute()
        state = (id(tables), id(lens), id(starts), id(slots), versions, self.max_query_len, self.max_seq_len)
        if not self._cache_of or self._cache_of[0] != state:
            self._cache.clear()
            # The tensors are held, so that no other one can get their ids.
            self._cache_of = (state, (tables, lens, starts, slots))
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def _seq_of_token(self) -> Tensor:
        seqs = torch.arange(self.num_seqs, dtype=torch.int32, device=self.seq_lens.device)
        return torch.repeat_interleave(seqs, self.query_lens.long(), output_size=self.num_tokens)

    def _query_tiles(self, tile: int) -> tuple[Tensor, Tensor]:
        tiles = (self.query_lens.long() + tile - 1) // tile
        first_tile = torch.cumsum(tiles, 0) - tiles
        seqs = torch.repeat_interleave(torch.arange(self.num_seqs, device=tiles.device), tiles)
        starts = (torch.arange(len(seqs), device=tiles.device) - first_tile[seqs]) * tile
        return seqs.int(), starts.int()


def _whole_numbers(name: str, values: Sequence, dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """A tensor of integers. numpy finds the type of all values in one pass; torch would round fractions silently."""
    array = np.asarray(values)
    if array.size == 0:
        return torch.empty(0, dtype=dtype, device=device)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {_first_odd(values)!r}, but whole numbers are needed")
    narrow = array.astype(np.int32 if dtype is torch.int32 else np.int64)
    if narrow.dtype != array.dtype and np.count_nonzero(narrow != array):
        largest = max(int(array.max()), int(array.min()), key=abs)
        raise ValueError(f"{name} holds {largest}, which does not fit into {dtype}: at most {torch.iinfo(dtype).max}")
    tensor = torch.from_numpy(narrow)
    return tensor if str(device) == "cpu" else tensor.to(device)


def _first_odd(values: Sequence) -> object:
    """The first value that is no whole number, or all of them when none is odd by itself."""
    flat = [x for row in values for x in (row if isinstance(row, list | tuple) else [row])]
    return next((x for x in flat if isinstance(x, bool) or not isinstance(x, Integral)), values)
