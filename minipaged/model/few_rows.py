"""When a step's layers may go through the kernels of `layer_kernels`: few rows, and nothing but the course's own parts.

The kernels check nothing and call nobody. So everything by which a layer could be another one than they take it for is
looked at here: its parts and their types, numbers and sizes, where the weights lie, who wants to be called (hooks), and
whose methods have been replaced.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from minipaged.attention.cpu import CPUBackend
from minipaged.model.cpu_products import is_able
from minipaged.model.decoder import OWN_METHODS, methods
from minipaged.model.layer_kernels import NO_BIAS, LayerWeights, Rotation, through_columns, through_rows
from minipaged.model.ops import EXCHANGED

if TYPE_CHECKING:
    from minipaged.attention import AttentionBackend, AttentionMetadata
    from minipaged.kv_cache.storage import KVCacheStorage
    from minipaged.model.decoder import DecoderLayer, LlamaModel

NUMBERS = ("num_heads", "num_kv_heads", "head_dim", "scale", "has_norms", "eps")  # of a part, besides its weights


class FewRows:
    """A model's layers as the kernels read them, and what must stay as it is for that to be right."""

    def __init__(self, model: LlamaModel) -> None:
        layers = list(model.layers)
        self._modules = [module for layer in layers for module in layer.modules()]
        self._attributes = [vars(module) for module in self._modules]
        registries = [registry for m in self._modules for registry in (m._modules, m._parameters)]
        self._registries = [model._modules, model.layers._modules, *registries]
        hooks = [hooks for m in self._modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._hooks = [*hooks, _global_forward_hooks, _global_forward_pre_hooks]
        self._weights = [weight for layer in layers for weight in layer.parameters()]
        self._numbers = [(own, name) for own in self._attributes for name in NUMBERS if name in own]
        self._parts = list(self._parts_now())  # held, so that nothing else can get an id of theirs
        self._seen = self._look()
        self.size, self.dtype = model.config.hidden_size, model.dtype
        self.able = self._are_readable(layers)
        if self.able:
            self._read(layers)

    def fits(self) -> bool:
        """Are the layers still those that were read? A weight that was changed in place is: its memory is the same."""
        return self._look() == self._seen

    def _look(self) -> tuple:
        """All by which the layers could become others."""
        return (
            list(map(id, self._parts_now())),
            list(map(type, self._modules)),
            [(weight.data_ptr(), weight.shape, weight.stride(), weight.dtype) for weight in self._weights],
            [own.get(name) for own, name in self._numbers],
            self._is_watched(),
        )

    def _parts_now(self) -> chain[nn.Module | Tensor | None]:
        return chain.from_iterable(map(dict.values, self._registries))

    def _is_watched(self) -> bool:
        """Does somebody want to be called between the parts, or instead of one?"""
        patched = any("forward" in own or "project" in own for own in self._attributes)
        return patched or any(self._hooks) or methods() != OWN_METHODS

    def _are_readable(self, layers: list[nn.Module]) -> bool:
        """Have they the course's own parts alone, of sizes that fit, and are they alike?"""
        if self._is_watched() or not layers or not all(getattr(layer, "is_plain", False) for layer in layers):
            return False
        if not all(_is_readable(weight, self.dtype) for weight in self._weights):
            return False
        norms = [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        alike = len({_attention_numbers(layer) for layer in layers}) == len({norm.eps for norm in norms}) == 1
        return alike and all(_shapes_fit(layer, self.size) for layer in layers)

    def _read(self, layers: list[DecoderLayer]) -> None:
        attention = layers[0].self_attn
        self.scale, self.eps = attention.scale, np.float32(layers[0].input_layernorm.eps)
        first_key, self.num_rotated = attention.num_heads, attention.num_heads + attention.num_kv_heads
        self.head_slices = (slice(first_key), slice(first_key, self.num_rotated), slice(self.num_rotated, None))
        self.heads_shape = (self.num_rotated + attention.num_kv_heads, attention.head_dim)
        self.tensors = [_weights(layer) for layer in layers]
        if self.dtype is torch.float32:  # numpy has no bfloat16, and `through_columns` needs none
            self.arrays = [LayerWeights(*(weight.numpy() for weight in weights)) for weights in self.tensors]

    def run(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        storage: KVCacheStorage,
        metadata: AttentionMetadata,
        backend: AttentionBackend,
    ) -> Tensor | None:
        """Every `DecoderLayer.forward`: hidden [T, hidden_size] → the same shape. None: not for the kernels; nothing
        was done."""
        rotations = (len(hidden), 1, self.heads_shape[1])
        fits = hidden.dtype is self.dtype and hidden.shape[1] == self.size and cos.shape == sin.shape == rotations
        if not fits or not isinstance(backend, CPUBackend):
            return None
        heads = torch.empty((len(hidden), *self.heads_shape), dtype=torch.float32, device="cpu")
        caches = [(storage.k_cache[index], storage.v_cache[index]) for index in range(len(self.tensors))]
        step = backend.begin_step(*(heads[:, part] for part in self.head_slices), caches, metadata, self.scale)
        if step is None:
            return None
        turn = Rotation(self.num_rotated, cos.float().numpy(), sin.float().numpy())
        if len(hidden) in EXCHANGED[self.dtype]:
            return through_columns(self.tensors, self.eps, hidden, heads.numpy(), step, turn)
        return through_rows(self.arrays, self.eps, hidden, heads.numpy(), step, turn)

    def __reduce__(self) -> tuple:
        """A copied or stored model does not take this along: it reads its own layers."""
        return type(None), ()


def _weights(layer: DecoderLayer) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    bias = NO_BIAS if attention.qkv_proj.bias is None else attention.qkv_proj.bias
    first, second = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    projections = (mlp.gate_up_proj.weight, mlp.down_proj.weight)
    weights = (first, attention.qkv_proj.weight, bias, attention.o_proj.weight, second, *projections)
    return LayerWeights(*(weight.detach() for weight in weights))


def _attention_numbers(layer: DecoderLayer) -> tuple:
    return tuple(getattr(layer.self_attn, name) for name in NUMBERS if name != "eps")


def _shapes_fit(layer: DecoderLayer, size: int) -> bool:
    """The kernels check no sizes: torch shall say what is wrong with a layer whose parts do not fit together."""
    attention, mlp = layer.self_attn, layer.mlp
    inner = mlp.down_proj.weight.shape[1]
    all_heads = attention.num_heads + 2 * attention.num_kv_heads
    shapes = {
        layer.input_layernorm.weight: (size,),
        layer.post_attention_layernorm.weight: (size,),
        attention.qkv_proj.weight: (all_heads * attention.head_dim, size),
        attention.o_proj.weight: (size, attention.num_heads * attention.head_dim),
        mlp.gate_up_proj.weight: (2 * inner, size),
        mlp.down_proj.weight: (size, inner),
    }
    if attention.qkv_proj.bias is not None:
        shapes[attention.qkv_proj.bias] = (all_heads * attention.head_dim,)
    return all(weight.shape == shape for weight, shape in shapes.items())


def _is_readable(weight: Tensor, dtype: torch.dtype) -> bool:
    of_size = type(weight) is nn.Parameter and (weight.dim() == 1 or is_able(*weight.shape))
    return of_size and weight.dtype is dtype and weight.is_cpu and weight.is_contiguous()
