"""Text to token ids and back, on the `tokenizers` library, with streaming and a chat template."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from minipaged.model.chat import render_template
from minipaged.model.config import CheckpointError, read_json


class Tokenizer:
    """A checkpoint's `tokenizer.json`, with the chat template and the end token of `tokenizer_config.json`.

    As in transformers, a special token written out in the text (such as `<|end|>`) becomes that token.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        chat_template: str | None = None,
        **special_tokens: str,
    ) -> None:
        """special_tokens: the texts of eos_token, bos_token and others, by these names."""
        self.core = core
        self.chat_template = chat_template
        self.special_tokens = special_tokens
        self.eos_token, self.bos_token = special_tokens.get("eos_token"), special_tokens.get("bos_token")
        self.eos_token_id = None if self.eos_token is None else core.token_to_id(self.eos_token)
        self.bos_token_id = None if self.bos_token is None else core.token_to_id(self.bos_token)
        self.vocab_size = core.get_vocab_size(with_added_tokens=True)
        self.num_ids = self.vocab_size  # a model may have more: rows of padding at the end of its embedding

    @classmethod
    def from_folder(cls, path: str | Path) -> "Tokenizer":
        """Read `tokenizer.json`, and `tokenizer_config.json` and `chat_template.jinja` where they exist."""
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(
                f"{file} does not exist: minipaged reads fast tokenizers only. Save one with transformers: "
                f"AutoTokenizer.from_pretrained(…, use_fast=True).save_pretrained(…)."
            )
        try:
            core = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(
                f"{file} cannot be read as a tokenizer ({error}): it is truncated, or not a tokenizer.json. "
                f"Copy the checkpoint again."
            ) from error
        config_file = folder / "tokenizer_config.json"
        config = read_json(config_file) if config_file.is_file() else {}
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            config["chat_template"] = template_file.read_text(encoding="utf-8")
        template = _default_template(config.get("chat_template"))
        if not isinstance(template, str | None):
            raise CheckpointError(
                f"{config_file}: chat_template is a {type(template).__name__}; expected a Jinja template, or a list "
                f"of them with names. Copy the checkpoint again."
            )
        return cls(core, template, **_special_tokens(config))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. With a beginning-of-sequence token where the checkpoint's tokenizer.json adds one, but
        never with a second one: a text from a chat template has its own."""
        if not isinstance(text, str):
            raise TypeError(f"encode() takes a string, got {type(text).__name__}: {text!r}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text is no valid Unicode: character {error.start} is the lone surrogate "
                f"{text[error.start]!r}. Read the text as UTF-8, or encode it with errors='replace' first."
            ) from error
        ids = self.core.encode(text, add_special_tokens=add_special_tokens).ids
        twice = self.bos_token_id is not None and ids[:2] == [self.bos_token_id] * 2
        return ids[1:] if twice and text.startswith(self.bos_token) else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that form no whole character come out as U+FFFD, padding ids as nothing.

        Raises ValueError for an id outside the vocabulary.
        """
        ids = list(token_ids)
        for position, token_id in enumerate(ids):
            if not 0 <= token_id < self.num_ids:
                raise ValueError(
                    f"token id {token_id} (at position {position}) is outside the vocabulary of "
                    f"{self.num_ids} tokens: ids run from 0 to {self.num_ids - 1}."
                )
        return self.core.decode(ids, skip_special_tokens=skip_special_tokens)

    def tokens(self, text: str) -> list[str]:
        """The text cut at token boundaries, for display: "".join(tokens(text)) == text for whole characters."""
        return [self.decode([token_id], skip_special_tokens=False) for token_id in self.encode(text)]

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """Messages [{"role": …, "content": …}] → the prompt's text in the form that the model was trained on."""
        if self.chat_template is None:
            raise ValueError(
                "this checkpoint has no chat template (chat_template in tokenizer_config.json): "
                "pass the prompt as plain text."
            )
        return render_template(self.chat_template, messages, self.special_tokens, add_generation_prompt)

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of the prompt that the chat template makes; it brings the special tokens itself."""
        return self.encode(self.apply_chat_template(messages), add_special_tokens=False)


class IncrementalDetokenizer:
    """Text of a growing token list, piece by piece, for streaming.

    One character may be spread over several tokens (a Chinese character is three bytes), so a piece is held back
    while it ends inside a character. All pieces and `flush()` together are `decode` of all ids.
    The two offsets are those of vLLM's `detokenize_incrementally`: text before `read` is out; decoding starts at
    `prefix`, one piece earlier, because some tokenizers drop the space of the first token that they decode.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._prefix = self._read = 0

    def add(self, token_id: int) -> str:
        """Take the next token; return the text that is now complete, perhaps empty."""
        self._ids.append(token_id)
        new = self._pending()
        if not new or new.endswith("\ufffd"):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return new

    def flush(self) -> str:
        """The rest at the end of the text; an unfinished character comes out as U+FFFD."""
        new = self._pending()
        self._prefix = self._read = len(self._ids)
        return new

    def _pending(self) -> str:
        known = self._tokenizer.decode(self._ids[self._prefix : self._read], self._skip)
        return self._tokenizer.decode(self._ids[self._prefix :], self._skip)[len(known) :]


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The texts of eos_token, bos_token, …: each a string, or (in older files) a dict with it under "content"."""
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _default_template(template: Any) -> str | None:
    """A checkpoint may name several templates: [{"name": "default", "template": …}, …]."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        return named.get("default")
    return template
