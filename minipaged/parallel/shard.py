"""One rank's part of a model: a smaller model, in which two matrices a layer give only part of a sum.

The projections into heads and into the MLP are cut by rows (each rank computes its own outputs: nothing to exchange);
those back into the stream are cut by columns, so each rank's product is a partial sum, and the ranks add them up.

The embedding is on every rank: cut by vocabulary it would need one more all-reduce a step, to spare a matrix that is
small beside the layers of a large model. The head that makes logits is on rank 0 alone, which alone chooses tokens.
vLLM cuts both by vocabulary (`VocabParallelEmbedding`, `ParallelLMHead`) and gathers the logits.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipaged.model.checkpoint import CheckpointFiles, checkpoint_shapes, places
from minipaged.model.config import ModelConfig
from minipaged.model.decoder import Attention, LlamaModel
from minipaged.model.loader import check_dtype, check_tied, give_memory
from minipaged.parallel.layout import ParallelLayout
from minipaged.parallel.protocols import AllReduce, check_own_attention

LOGITS_RANK = 0  # where logits are made and tokens are chosen


class RowParallelLinear(nn.Linear):
    """A matrix of which each rank holds some columns: the product is the sum over all ranks.

    Every rank has the whole bias, and adds it once, to the sum. (In vLLM's class of this name, rank 0 alone adds it,
    before the sum.)
    """

    def __init__(self, whole: nn.Linear, all_reduce: AllReduce) -> None:
        has_bias = whole.bias is not None
        super().__init__(whole.in_features, whole.out_features, bias=has_bias, device=whole.weight.device)
        self.all_reduce = all_reduce

    def forward(self, x: Tensor) -> Tensor:
        total = self.all_reduce(F.linear(x, self.weight))
        return total if self.bias is None else total + self.bias


class OwnAttention(nn.Module):
    """A class of one's own (see TensorParallelAttention) in the place of a layer's attention."""

    def __init__(self, own: object) -> None:
        super().__init__()
        self.own = own

    def forward(self, *arguments: object) -> Tensor:
        return self.own.forward(*arguments)


def load_shard(
    folder: Path,
    layout: ParallelLayout,
    rank: int,
    all_reduce: AllReduce,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    own_attention: type | None = None,
) -> LlamaModel:
    """This rank's part of the checkpoint in ``folder``. Of each mapped file only this rank's slices are read.

    ``own_attention``: a class with the protocol TensorParallelAttention, for the attention layers.
    Raises CheckpointError as ``load_model`` does, before anything is read.
    """
    check_dtype(dtype)
    if own_attention is not None:
        check_own_attention(own_attention)
    files = CheckpointFiles(folder)
    files.check(layout.config)
    with torch.device("meta"):  # sizes only
        model = LlamaModel(layout.config_of_a_rank())
        for layer in model.layers:
            layer.self_attn.o_proj = RowParallelLinear(layer.self_attn.o_proj, all_reduce)
            layer.mlp.down_proj = RowParallelLinear(layer.mlp.down_proj, all_reduce)
            if own_attention is not None:
                layer.self_attn = nn.Identity()  # until its weights are there
    if rank != LOGITS_RANK and not layout.config.tie_word_embeddings:
        del model.lm_head
    give_memory(model, dtype, device)
    _fill(model, files, layout, rank)
    if own_attention is not None:
        for index, layer in enumerate(model.layers):
            whole = _whole_attention(files, layout.config, index, dtype, device)
            layer.self_attn = OwnAttention(own_attention(whole, rank, layout.num_ranks, all_reduce))
    if rank == LOGITS_RANK and layout.config.tie_word_embeddings and "lm_head.weight" in files.file_of:
        check_tied(files)
    return model.to(device).requires_grad_(False).eval()


def shard_slices(layout: ParallelLayout, rank: int) -> dict[str, tuple[slice, ...]]:
    """Which part of each tensor of the checkpoint belongs to a rank: one slice a dimension, by the tensor's name."""
    dim = layout.config.head_dim
    queries, keys = (_rows(heads, dim) for heads in (layout.heads(rank), layout.kv_heads(rank)))
    inner = _rows(layout.mlp_columns(rank), 1)
    cut_rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": inner, "up_proj": inner}
    cut_columns = {"o_proj": queries, "down_proj": inner}
    found = {}
    for name, shape in checkpoint_shapes(layout.config).items():
        part = [slice(0, size) for size in shape]
        projection = name.split(".")[-2]
        if projection in cut_rows:
            part[0] = cut_rows[projection]
        elif projection in cut_columns and len(shape) == 2:  # its bias is no part of the sum: whole on every rank
            part[1] = cut_columns[projection]
        found[name] = tuple(part)
    return found


def _rows(numbers: range, width: int) -> slice:
    return slice(numbers.start * width, numbers.stop * width)


def _fill(model: LlamaModel, files: CheckpointFiles, layout: ParallelLayout, rank: int) -> None:
    """Copy this rank's slice of each mapped tensor to its rows of the model."""
    parameters = dict(model.named_parameters())
    slices = shard_slices(layout, rank)
    for name, place in places(model.config).items():
        if place.parameter in parameters:  # not: the head on other ranks than 0, attention of one's own
            rows = parameters[place.parameter].data[place.first_row : place.first_row + place.shape[0]]
            rows.copy_(files.read(name)[slices[name]])


def _whole_attention(
    files: CheckpointFiles, config: ModelConfig, layer: int, dtype: torch.dtype, device: str | torch.device
) -> Attention:
    """One layer's attention as one rank has it: what a learner's class cuts its part from."""
    with torch.device("meta"):
        attention = Attention(config, config.window(layer))
    give_memory(attention, dtype, device)
    prefix = f"layers.{layer}.self_attn."
    for name, place in places(config).items():
        if place.parameter.startswith(prefix):
            rows = attention.get_parameter(place.parameter.removeprefix(prefix)).data
            rows[place.first_row : place.first_row + place.shape[0]].copy_(files.read(name))
    return attention.requires_grad_(False)
