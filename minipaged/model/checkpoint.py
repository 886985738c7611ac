"""The safetensors files of a checkpoint folder: which tensors there must be, where they lie, and reading them.

Names, shapes and types stand in the files' headers, so everything is checked before any weight is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from minipaged.model.config import CheckpointError, ModelConfig, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
STORED_DTYPES = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Place:
    """Where a tensor of the files belongs: `shape[0]` rows of a parameter of the model, from `first_row` on."""

    parameter: str
    first_row: int
    shape: tuple[int, ...]


def places(config: ModelConfig) -> dict[str, Place]:
    """Every tensor that a checkpoint of this config must hold, by its name in the files.

    The files store projections one by one; the model holds those that read the same input stacked in one matrix.
    """
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    # The model's matrix: (length of a row, has a bias, the files' matrices from top to bottom with their rows).
    matrices = {
        "self_attn.qkv_proj": (
            hidden, config.qkv_bias,
            {"self_attn.q_proj": query_rows, "self_attn.k_proj": kv_rows, "self_attn.v_proj": kv_rows},
        ),
        "self_attn.o_proj": (query_rows, config.o_bias, {"self_attn.o_proj": hidden}),
        "mlp.gate_up_proj": (hidden, config.mlp_bias, {"mlp.gate_proj": inner, "mlp.up_proj": inner}),
        "mlp.down_proj": (inner, config.mlp_bias, {"mlp.down_proj": hidden}),
    }  # fmt: skip
    found = {"model.embed_tokens.weight": Place("embed_tokens.weight", 0, (config.vocab_size, hidden))}
    for layer in (f"layers.{index}." for index in range(config.num_layers)):
        for name, size in norms.items():
            found[f"model.{layer}{name}.weight"] = Place(f"{layer}{name}.weight", 0, (size,))
        for matrix, (columns, has_bias, parts) in matrices.items():
            first_row = 0
            for part, rows in parts.items():
                found[f"model.{layer}{part}.weight"] = Place(f"{layer}{matrix}.weight", first_row, (rows, columns))
                if has_bias:
                    found[f"model.{layer}{part}.bias"] = Place(f"{layer}{matrix}.bias", first_row, (rows,))
                first_row += rows
    found["model.norm.weight"] = Place("norm.weight", 0, (hidden,))
    if not config.tie_word_embeddings:
        found["lm_head.weight"] = Place("lm_head.weight", 0, (config.vocab_size, hidden))
    return found


def checkpoint_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this config must hold."""
    return {name: place.shape for name, place in places(config).items()}


class CheckpointFiles:
    """All tensors of a folder's safetensors files by name: one file, or the shards that the index names.

    file_of, shape_of, dtype_of   of each tensor, from the headers
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of: dict[str, Path] = {}
        self.shape_of: dict[str, tuple[int, ...]] = {}
        self.dtype_of: dict[str, str] = {}
        for file in _find_files(folder):
            self._read_header(file)

    def read(self, name: str) -> Tensor:
        """One tensor, mapped from its file: no copy, the pages come in when they are read.

        The file is mapped anew for each tensor: dropping the tensor gives its pages back, so that a model that is
        filled tensor by tensor is never in memory twice.
        """
        file = self.file_of[name]
        try:
            with safe_open(file, framework="pt") as stored:
                return stored.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, error) from error

    def check(self, config: ModelConfig) -> None:
        """Raise CheckpointError naming the tensors that are missing, have no place, or another shape or type."""
        expected = checkpoint_shapes(config)
        missing = [name for name in expected if name not in self.file_of]
        if missing:
            raise CheckpointError(
                f"{self._files()}: {len(missing)} of {len(expected)} tensors are missing, the first is {missing[0]!r} "
                f"({len(self.file_of)} tensors are there). The weights do not belong to the config.json beside them, "
                f"or were saved incompletely: save the checkpoint again with save_pretrained."
            )
        for name, shape in expected.items():
            if self.shape_of[name] != shape:
                raise CheckpointError(
                    f"{self.file_of[name]}: tensor {name!r} has shape {list(self.shape_of[name])}, config.json asks "
                    f"for {list(shape)}. These files belong to different models: copy both from the same checkpoint."
                )
            if self.dtype_of[name] not in STORED_DTYPES:
                raise CheckpointError(
                    f"{self.file_of[name]}: tensor {name!r} is stored as {self.dtype_of[name]}; minipaged reads "
                    f"{', '.join(STORED_DTYPES)}, not quantised weights. Choose an unquantised checkpoint."
                )
        # A tensor left out would change the answer: more layers, biases. But old files store RoPE's frequencies, and
        # some tied models their head, which `loader` compares with the embedding.
        left_out = [name for name in self.file_of if name not in expected and not _is_redundant(name)]
        if left_out:
            name = min(left_out)
            raise CheckpointError(
                f"{self.file_of[name]}: {len(left_out)} tensors have no place in the model that config.json describes, "
                f"the first is {name!r}. These files belong to different models: copy both from the same checkpoint."
            )

    def _read_header(self, file: Path) -> None:
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 (it is no dict)
                    if name in self.file_of:
                        raise CheckpointError(
                            f"tensor {name!r} stands in {self.file_of[name].name} and in {file.name} of {file.parent}: "
                            f"these shards belong to different checkpoints. Copy the folder again."
                        )
                    part = stored.get_slice(name)
                    self.file_of[name] = file
                    self.shape_of[name] = tuple(part.get_shape())
                    self.dtype_of[name] = part.get_dtype()
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, error) from error

    def _files(self) -> str:
        files = sorted(set(self.file_of.values()))
        return str(files[0]) if len(files) == 1 else f"{self.folder} ({len(files)} shards)"


def _find_files(folder: Path) -> Iterable[Path]:
    """The single file, or, as in transformers only where there is none, the shards of the index."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        raise CheckpointError(f"{folder / SINGLE} does not exist. {_way_out(folder)}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(map(_is_file_name, weight_map.values())):
        raise CheckpointError(
            f"{index}: weight_map must give for each tensor the name of a file in the same folder. "
            f"Copy the checkpoint again."
        )
    names = sorted(set(weight_map.values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise CheckpointError(
            f"{folder / absent[0]} does not exist: {len(absent)} of the {len(names)} shards that {INDEX} names are "
            f"missing. Copy them, too."
        )
    return [folder / name for name in names]


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name and "\\" not in name


def _is_redundant(name: str) -> bool:
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{file} ({file.stat().st_size} bytes) cannot be read as safetensors ({error}): it is truncated, damaged, or "
        f"only a Git LFS pointer. Copy the file again (Git LFS: run `git lfs pull`)."
    )


def _way_out(folder: Path) -> str:
    if list(folder.glob("*.gguf")):
        return "The folder holds a GGUF file; minipaged reads safetensors: take the checkpoint that it was made from."
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt*")):
        return "The folder holds PyTorch pickles; convert them: load with transformers and call save_pretrained(…)."
    return "A checkpoint folder holds config.json, model.safetensors and tokenizer.json: copy it again."
