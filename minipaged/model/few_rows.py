"""When a step's layers may go through the kernels of `layer_kernels`: few rows, and nothing but the course's own parts.

The kernels check nothing and call nobody. So everything by which a layer could be another one than they take it for is
looked at here: its parts, their numbers and sizes, where the weights lie, and who wants to be called (hooks).
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from minipaged.model.cpu_products import is_able
from minipaged.model.layer_kernels import NO_BIAS, LayerWeights, Rotation, through_columns, through_rows
from minipaged.model.ops import EXCHANGED

if TYPE_CHECKING:
    from minipaged.attention import AttentionBackend, AttentionMetadata
    from minipaged.kv_cache.storage import KVCacheStorage
    from minipaged.model.decoder import DecoderLayer, LlamaModel


class FewRows:
    """The layers' weights as the kernels read them, and what must stay as it is for them to be right."""

    def __init__(self, model: LlamaModel) -> None:
        layers = list(model.layers)
        modules = [module for layer in layers for module in layer.modules()]
        hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._hooks = [*hooks, _global_forward_hooks, _global_forward_pre_hooks]
        self._has_hooks = any(self._hooks)
        self._own = [vars(module) for module in modules]
        owners = [owner for m in modules for owner in (m._modules, m._parameters)]
        self._owners = [model._modules, model.layers._modules, *owners]
        self._parts = self._parts_now()
        self._weights = [weight for layer in layers for weight in layer.parameters()]
        self._addresses = self._addresses_now()
        self.size, self.dtype = model.config.hidden_size, model.dtype
        self.able = self._are_readable(layers)
        if self.able:
            self._read(layers)

    def _are_readable(self, layers: list[nn.Module]) -> bool:
        """Have they the course's own parts alone, are they alike, and does nobody listen between the parts?"""
        if self._has_hooks or self._is_patched() or not all(getattr(layer, "is_plain", False) for layer in layers):
            return False
        readable = all(_is_readable(weight, self.dtype) for weight in self._weights)
        if not readable or not all(_shapes_fit(layer, self.size) for layer in layers):
            return False
        numbers = {tuple(number for *_, number in _numbers(layer)) for layer in layers}
        return len(numbers) == 1 and len(set(numbers.pop()[-2:])) == 1  # of the two norms: one eps for all

    def fits(self) -> bool:
        """Are the layers still those that were read? A weight that was changed in place is: its memory is the same."""
        parts = self._parts_now()
        return (
            self._has_hooks is any(self._hooks)
            and len(parts) == len(self._parts)
            and all(map(is_, parts, self._parts))
            and self._addresses_now() == self._addresses
            and (not self.able or self._is_still_able())
        )

    def _is_still_able(self) -> bool:
        same = all(own.get(name) == number for own, name, number in self._numbers)
        return same and not self._is_patched() and all(map(Tensor.is_contiguous, self._weights))

    def _parts_now(self) -> list[nn.Module | Tensor | None]:
        return list(chain.from_iterable(map(dict.values, self._owners)))

    def _addresses_now(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._weights))

    def _is_patched(self) -> bool:
        """Has somebody given one module a `forward` of its own?"""
        return any("forward" in own for own in self._own)

    def _read(self, layers: list[DecoderLayer]) -> None:
        self._numbers = [number for layer in layers for number in _numbers(layer)]
        attention = layers[0].self_attn
        self.scale, self.eps = attention.scale, np.float32(layers[0].input_layernorm.eps)
        first_key, self.num_rotated = attention.num_heads, attention.num_heads + attention.num_kv_heads
        self.parts = (slice(first_key), slice(first_key, self.num_rotated), slice(self.num_rotated, None))
        self.shape = (self.num_rotated + attention.num_kv_heads, attention.head_dim)
        self.tensors = [_weights(layer) for layer in layers]
        if self.dtype is torch.float32:  # numpy has no bfloat16
            self.arrays = [LayerWeights(*(weight.numpy() for weight in weights)) for weights in self.tensors]

    def run(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        storage: KVCacheStorage,
        metadata: AttentionMetadata,
        backend: AttentionBackend,
    ) -> bool:
        """Every `DecoderLayer.forward`, in place: hidden [T, hidden_size]. False: not with this backend."""
        if not hasattr(backend, "begin_step") or hidden.shape[1] != self.size:
            return False
        if len(cos) != len(hidden):
            raise ValueError(
                f"{len(hidden)} tokens, but the rotations of {len(cos)} positions: give one position for each token"
            )
        if not cos.shape == sin.shape == (len(hidden), 1, self.shape[1]):
            return False
        heads = torch.empty((len(hidden), *self.shape), dtype=torch.float32)
        caches = [(storage.k_cache[index], storage.v_cache[index]) for index in range(len(self.tensors))]
        step = backend.begin_step(*(heads[:, part] for part in self.parts), caches, metadata, self.scale)
        if step is None:
            return False
        turn = Rotation(self.num_rotated, cos.float().numpy(), sin.float().numpy())
        if len(hidden) not in EXCHANGED[self.dtype]:
            through_rows(self.arrays, self.eps, hidden, heads.numpy(), step, turn)
        else:
            through_columns(self.tensors, self.eps, hidden, heads.numpy(), step, turn)
        return True


def _weights(layer: DecoderLayer) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    bias = NO_BIAS if attention.qkv_proj.bias is None else attention.qkv_proj.bias
    first, second = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    projections = (mlp.gate_up_proj.weight, mlp.down_proj.weight)
    weights = (first, attention.qkv_proj.weight, bias, attention.o_proj.weight, second, *projections)
    return LayerWeights(*(weight.detach() for weight in weights))


def _numbers(layer: DecoderLayer) -> list[tuple[dict, str, float]]:
    """What is no weight, and must be the same in all layers: (attributes of a module, name, value)."""
    places = [(layer.self_attn, name) for name in ("num_heads", "num_kv_heads", "head_dim", "scale")]
    places += [(norm, "eps") for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    return [(vars(module), name, getattr(module, name)) for module, name in places]


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
