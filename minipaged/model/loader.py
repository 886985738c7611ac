"""Load a checkpoint folder in Hugging Face's Llama format: config.json, model.safetensors, tokenizer.json.

Everything is checked before anything is built: a folder loads wholly or not at all.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minipaged.model.config import CheckpointError, ModelConfig
from minipaged.model.decoder import LlamaModel
from minipaged.model.tokenizer import Tokenizer

TINY_FOLDER = Path(__file__).parent / "tiny"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
STORED_DTYPES = ("F64", "F32", "F16", "BF16")

# A checkpoint stores these matrices one by one; the model holds them stacked, so that one product serves all.
PACKED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def load_model(
    name: str | Path = "tiny", dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> tuple[LlamaModel, Tokenizer]:
    """The model and the tokenizer of a checkpoint folder, or of the bundled one, "tiny".

    Weights are converted to `dtype` (float32, float16 or bfloat16) on `device`.
    Raises CheckpointError (a ValueError) for a folder that is missing, damaged, of another architecture, or whose
    tensors do not fit its config.json; the message names the file or the tensor.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype} is not one of {', '.join(map(str, DTYPES))}")
    folder = TINY_FOLDER if str(name) == "tiny" else Path(name)
    if not folder.is_dir():
        raise CheckpointError(
            f'there is no checkpoint folder {str(folder)!r}. Give "tiny" for the bundled model, or the path of a '
            f"folder with config.json, model.safetensors and tokenizer.json (names are not downloaded)."
        )
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: tokenizer.json has {tokenizer.vocab_size} tokens, config.json says vocab_size "
            f"{config.vocab_size}: some tokens would have no embedding. These files belong to different models."
        )
    weights = read_weights(folder / "model.safetensors", config)
    with torch.device("meta"):  # sizes only: the parameters are about to be replaced
        model = LlamaModel(config)
    model.load_state_dict(
        {name: tensor.to(device=device, dtype=dtype) for name, tensor in weights.items()}, assign=True
    )
    return model.to(device).requires_grad_(False).eval(), tokenizer


def checkpoint_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this config must hold, by its name in the file."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query_rows, hidden),
        "self_attn.k_proj": (kv_rows, hidden),
        "self_attn.v_proj": (kv_rows, hidden),
        "self_attn.o_proj": (hidden, query_rows),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def read_weights(file: Path, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors of a safetensors file under the model's own names. Checks names and shapes before reading."""
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist. {_way_out(file.parent)}")
    expected = checkpoint_shapes(config)
    try:
        with safe_open(file, framework="pt") as stored:
            names = set(stored.keys())
            found = {name: tuple(stored.get_slice(name).get_shape()) for name in names & expected.keys()}
            _check_tensors(file, expected, found, names)
            _check_dtypes(file, {name: stored.get_slice(name).get_dtype() for name in expected})
            return _pack({name: stored.get_tensor(name) for name in expected}, config.num_layers)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) cannot be read as safetensors ({error}): it is truncated, "
            f"damaged, or only a Git LFS pointer. Copy the file again (Git LFS: run `git lfs pull`)."
        ) from error


def save_checkpoint(model: LlamaModel, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write model.safetensors as transformers and vLLM read it: one tensor a projection."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors |= _unpack(name, tensor, model.config)
    ordered = {name: tensors[name].to(dtype).contiguous() for name in checkpoint_shapes(model.config)}
    file = folder / "model.safetensors"
    save_file(ordered, file, metadata={"format": "pt"})
    file.chmod(0o644)  # save_file leaves it readable by its owner alone


def _check_tensors(
    file: Path, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], names: set[str]
) -> None:
    missing = [name for name in expected if name not in found]
    if missing:
        raise CheckpointError(
            f"{file}: {len(missing)} of {len(expected)} tensors are missing, the first is {missing[0]!r} (the file "
            f"holds {len(names)} tensors). It does not belong to the config.json beside it, or was saved "
            f"incompletely: save the checkpoint again with save_pretrained."
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise CheckpointError(
                f"{file}: tensor {name!r} has shape {list(found[name])}, config.json asks for {list(shape)}. "
                f"These files belong to different models: copy both from the same checkpoint."
            )
    # What this decoder would leave out changes the answer: more layers, biases. (Old files store RoPE's frequencies.)
    left_out = sorted(
        name
        for name in names - expected.keys()
        if name.startswith("model.layers.") and not name.endswith("rotary_emb.inv_freq")
    )
    if left_out:
        raise CheckpointError(
            f"{file}: {len(left_out)} tensors have no place in the model that config.json describes, the first is "
            f"{left_out[0]!r}. These files belong to different models: copy both from the same checkpoint."
        )


def _check_dtypes(file: Path, dtypes: dict[str, str]) -> None:
    for name, dtype in dtypes.items():
        if dtype not in STORED_DTYPES:
            raise CheckpointError(
                f"{file}: tensor {name!r} is stored as {dtype}; this decoder reads {', '.join(STORED_DTYPES)}, not "
                f"quantised weights. Choose an unquantised checkpoint."
            )


def _way_out(folder: Path) -> str:
    if (folder / "model.safetensors.index.json").is_file():
        return "The checkpoint is split into several files; save it as one: save_pretrained(…, max_shard_size='99GB')."
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt*")):
        return "The folder holds PyTorch pickles; convert them: load with transformers and call save_pretrained(…)."
    return "A checkpoint folder holds config.json, model.safetensors and tokenizer.json: copy it again."


def _pack(stored: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """From the file's names to the model's: drop "model.", stack what PACKED lists."""
    weights = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    for index in range(num_layers):
        for packed, parts in PACKED.items():
            rows = [weights.pop(f"layers.{index}.{part}.weight") for part in parts]
            weights[f"layers.{index}.{packed}.weight"] = torch.cat(rows)
    return weights


def _unpack(name: str, tensor: Tensor, config: ModelConfig) -> dict[str, Tensor]:
    """From one tensor of the model to the file's: the inverse of `_pack`."""
    file_name = name if name.startswith("lm_head") else f"model.{name}"
    shapes = checkpoint_shapes(config)
    for packed, parts in PACKED.items():
        if packed in file_name:
            names = [file_name.replace(packed, part) for part in parts]
            return dict(zip(names, tensor.split([shapes[part][0] for part in names]), strict=True))
    return {file_name: tensor}
