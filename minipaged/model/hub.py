"""From the name of a checkpoint to a folder: the bundled one, a folder, or a download from the Hugging Face hub."""

import importlib.util
import re
from pathlib import Path

from minipaged.model.config import CheckpointError, ModelConfig

TINY_FOLDER = Path(__file__).parent / "tiny"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DESCRIPTION = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "*.jinja"]
WEIGHTS = ["model*.safetensors", "model.safetensors.index.json"]


def checkpoint_folder(name: str | Path) -> Path:
    """The folder of "tiny", of a path, or of a hub name such as "Qwen/Qwen3-0.6B".

    A string is looked up on the hub only if it has the form owner/name and no such folder exists. Nothing is
    downloaded with HF_HUB_OFFLINE=1 set: then it must be in the cache already. An unsupported model is refused before
    its weights are downloaded. Raises CheckpointError with the way out.
    """
    if str(name) == "tiny":
        return TINY_FOLDER
    folder = Path(name).expanduser()
    if str(name) and folder.is_dir():
        return folder
    if isinstance(name, str) and HUB_NAME.fullmatch(name):
        return _download(name)
    raise CheckpointError(
        f'there is no checkpoint folder {str(name)!r}. Give "tiny" for the bundled model, the path of a folder with '
        f"config.json, model.safetensors and tokenizer.json, or a name on the Hugging Face hub such as "
        f'"Qwen/Qwen3-0.6B".'
    )


def _download(name: str) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise _not_loaded(
            name,
            "downloading needs huggingface_hub, which is not installed: pip install 'minipaged[hub]', or give the path "
            "of a folder",
        )
    ModelConfig.from_folder(_fetch(name, DESCRIPTION))
    return _fetch(name, DESCRIPTION + WEIGHTS)


def _fetch(name: str, patterns: list[str]) -> Path:
    """The folder in the hub's cache, with the files of these patterns downloaded where they were missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE, is_offline_mode
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError as error:
        reason = f"its owner asks you to accept conditions first: do so on its page, then run `hf auth login` ({error})"
    except (RepositoryNotFoundError, HFValidationError) as error:
        reason = f"the hub has no such model, or it is private; look at the spelling ({error})"
    except LocalEntryNotFoundError as error:
        reason = f"the hub cannot be reached, and its cache, {HF_HUB_CACHE}, does not hold it wholly ({error})"
        if is_offline_mode():
            reason = (
                f"HF_HUB_OFFLINE is set, and the hub's cache, {HF_HUB_CACHE}, does not hold it wholly; unset "
                f"HF_HUB_OFFLINE to download it, or give the path of a folder"
            )
    except Exception as error:  # connection, disk, certificates: the hub's client raises errors of several libraries
        reason = f"the download failed ({type(error).__name__}: {error}); try again, or give the path of a folder"
    raise _not_loaded(name, reason)


def _not_loaded(name: str, reason: str) -> CheckpointError:
    return CheckpointError(f"there is no folder {name!r}, so it is taken for a name on the Hugging Face hub: {reason}.")
