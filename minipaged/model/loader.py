"""Load a checkpoint in Hugging Face's format, and save one: config.json, safetensors files, tokenizer.json.

Everything is checked before anything is built: a checkpoint loads wholly or not at all.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from tqdm import tqdm

from minipaged.model.checkpoint import CheckpointFiles, checkpoint_shapes, places
from minipaged.model.config import CheckpointError, ModelConfig
from minipaged.model.decoder import LlamaModel
from minipaged.model.hub import TINY_FOLDER, checkpoint_folder
from minipaged.model.tokenizer import Tokenizer

__all__ = ["DTYPES", "TINY_FOLDER", "checkpoint_shapes", "load_model", "save_checkpoint"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load_model(
    name: str | Path = "tiny",
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    progress: bool | None = None,
) -> tuple[LlamaModel, Tokenizer]:
    """The model and the tokenizer of a checkpoint: "tiny" (bundled), a folder, or a name on the Hugging Face hub.

    Weights are converted to `dtype` (float32, float16 or bfloat16) on `device`. `progress`: show a bar; None: in a
    terminal, from the second second on.
    Raises CheckpointError (a ValueError) for a checkpoint that is missing, damaged, of another architecture, or whose
    tensors do not fit its config.json; the message names the file or the tensor.
    """
    check_dtype(dtype)
    folder = checkpoint_folder(name)
    config = ModelConfig.from_folder(folder)
    tokenizer = load_tokenizer(folder, config)
    files = CheckpointFiles(folder)
    files.check(config)
    with torch.device("meta"):  # sizes only: memory is given below, in the right type at once
        model = LlamaModel(config)
    give_memory(model, dtype, device)
    fill_weights(model, files, progress)
    return model.to(device).requires_grad_(False).eval(), tokenizer


def check_dtype(dtype: torch.dtype) -> None:
    """Raises ValueError for a type in which no model runs."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype} is not one of {', '.join(map(str, DTYPES))}")


def load_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or CheckpointError if it has more tokens than the model."""
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: tokenizer.json has {tokenizer.vocab_size} tokens, config.json says vocab_size "
            f"{config.vocab_size}: some tokens would have no embedding. These files belong to different models."
        )
    tokenizer.num_ids = config.vocab_size
    return tokenizer


def fill_weights(model: LlamaModel, files: CheckpointFiles, progress: bool | None = None) -> None:
    """Copy each tensor from its mapped file to its rows of the model: no tensor is ever in memory a second time."""
    parameters = dict(model.named_parameters())
    expected = places(model.config)
    total = sum(parameter.nbytes for parameter in parameters.values())
    hide = None if progress is None else not progress  # None: hidden unless stderr is a terminal
    delay = 1 if progress is None else 0
    with tqdm(total=total, desc="Loading", unit="B", unit_scale=True, disable=hide, delay=delay, leave=False) as bar:
        for name, place in expected.items():
            rows = parameters[place.parameter].data[place.first_row : place.first_row + place.shape[0]]
            rows.copy_(files.read(name))
            bar.update(rows.nbytes)
    if model.config.tie_word_embeddings and "lm_head.weight" in files.file_of:
        check_tied(files)


def save_checkpoint(model: LlamaModel, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write model.safetensors as transformers and vLLM read it: one tensor a projection."""
    parameters = model.state_dict()
    tensors = {
        name: parameters[place.parameter][place.first_row : place.first_row + place.shape[0]].to(dtype).contiguous()
        for name, place in places(model.config).items()
    }
    file = folder / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # save_file leaves it readable by its owner alone


def give_memory(model: nn.Module, dtype: torch.dtype, device: str | torch.device) -> None:
    """Replace the parameters of a model built on "meta" by empty ones. RoPE's tables stay as they are, in fp32."""
    try:
        weights = {
            name: torch.empty(weight.shape, dtype=dtype, device=device) for name, weight in model.named_parameters()
        }
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:  # torch's out-of-memory errors are of this kind
        gigabytes = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize / 1e9
        raise CheckpointError(
            f"the weights take {gigabytes:,.1f} GB as {dtype}, more than {device} can give ({error}). Choose a type of "
            f"16 bits or a smaller model."
        ) from error


def check_tied(files: CheckpointFiles) -> None:
    """Raise CheckpointError where a tied model stores a head that is not its embedding."""
    if not torch.equal(files.read("lm_head.weight"), files.read("model.embed_tokens.weight")):
        raise CheckpointError(
            f"{files.file_of['lm_head.weight']}: config.json says tie_word_embeddings, but lm_head.weight is not the "
            f"embedding. Set tie_word_embeddings to false in config.json if the model was trained so."
        )
