"""Names on the Hugging Face hub: from the cache, offline; every failure says what to do. Nothing here is online."""

import importlib.util
import shutil

import pytest

from minipaged.model import TINY_FOLDER, CheckpointError, load_model

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and HF_HUB_OFFLINE as huggingface_hub sees it."""
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def put_into_cache(cache, name: str):
    """What the hub's client leaves after a download."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    shutil.copytree(TINY_FOLDER, snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    return snapshot


def test_a_name_in_the_cache_loads_offline(cache):
    put_into_cache(cache, "someone/tiny")
    model, tokenizer = load_model("someone/tiny")
    assert model.config == load_model("tiny")[0].config
    assert tokenizer.chat_template


def test_a_name_that_is_not_in_the_cache(cache):
    message = f"no folder 'someone/else', so it is taken for a name .* HF_HUB_OFFLINE is set.*{cache}.*unset"
    with pytest.raises(CheckpointError, match=message):
        load_model("someone/else")


def test_an_unsupported_model_is_refused_before_its_weights_are_fetched(cache, monkeypatch):
    snapshot = put_into_cache(cache, "someone/other")
    text = (snapshot / "config.json").read_text()
    (snapshot / "config.json").write_text(text.replace("LlamaForCausalLM", "OtherForCausalLM"))
    asked = []
    fetch = hub.snapshot_download
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **how: asked.append(how) or fetch(name, **how))
    with pytest.raises(CheckpointError, match="architecture OtherForCausalLM"):
        load_model("someone/other")
    assert not any("safetensors" in pattern for how in asked for pattern in how["allow_patterns"])


def test_a_folder_is_never_looked_up(cache, monkeypatch, tmp_path):
    shutil.copytree(TINY_FOLDER, tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    load_model("owner/name")
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        load_model("./owner/other")


def test_without_huggingface_hub(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "huggingface_hub" else find(name))
    with pytest.raises(CheckpointError, match=r"not installed: pip install 'minipaged\[hub\]'"):
        load_model("someone/tiny")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("RepositoryNotFoundError", "the hub has no such model, or it is private"),
        ("GatedRepoError", "accept conditions first.*hf auth login"),
        ("LocalEntryNotFoundError", "the hub cannot be reached, and its cache"),
        (OSError("No space left on device"), "the download failed .OSError: No space left on device"),
        (RuntimeError("proxy"), "the download failed .RuntimeError: proxy"),
    ],
)
def test_each_failure_names_the_way_out(monkeypatch, error, message):
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    if isinstance(error, str):
        kind = getattr(hub.errors, error)
        error = kind.__new__(kind)
        Exception.__init__(error, "as the hub says")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=f"'someone/tiny', so it is taken for a name .*{message}"):
        load_model("someone/tiny")
