"""Checkpoints of a known shape and random weights, as real folders that every engine can load.

Speed does not depend on what the weights say, so nothing has to be downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from minipaged.model.config import ModelConfig
from minipaged.model.decoder import LlamaModel
from minipaged.model.loader import save_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
}
SHAPES: dict[str, dict[str, int]] = {
    "standard": {  # small enough for a laptop, large enough that matrix products and memory decide
        "vocab_size": 512,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "larger": {  # the shape of Qwen2-0.5B, without its biases
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}
END = "<|end|>"


def make_checkpoint(folder: Path, shape: dict[str, Any], dtype: str = "float32", seed: int = 0) -> ModelConfig:
    """Write config.json, model.safetensors and a tokenizer into an existing folder. Weights: normal, deviation 0.02."""
    values = {**COMMON, **shape, "torch_dtype": dtype}
    config = ModelConfig.from_dict(values)
    (folder / "config.json").write_text(json.dumps(values, indent=1) + "\n")
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        model = LlamaModel(config)
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):  # a norm begins as ones, as in every training
                weight.normal_(0.0, COMMON["initializer_range"], generator=generator)
        save_checkpoint(model, folder, DTYPES[dtype])
    _save_tokenizer(folder, config.vocab_size)
    return config


def _save_tokenizer(folder: Path, vocab_size: int) -> None:
    """An end token, the 256 bytes, and a text for every other id: random weights choose them all."""
    words = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"<{number}>" for number in range(len(words), vocab_size)]
    vocabulary = {word: number for number, word in enumerate(words)}
    core = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([END])
    core.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
