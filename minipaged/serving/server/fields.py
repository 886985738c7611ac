"""Kinds of fields that several requests have: what is accepted, and how it stands in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic_core import core_schema

from minipaged.serving.server.errors import shown

MAX_STOPS = 16
MAX_ID = 2**31 - 1
INT64 = 2**63


class Checked:
    """Marks a field whose value goes through a function, and whose JSON schema is written by hand.

    The function returns the value, or raises ValueError with a message in which %s stands for the field's name.
    """

    def __init__(self, check: Callable[[Any], Any], schema: dict) -> None:
        self.check, self.schema = check, schema

    def __get_pydantic_core_schema__(self, source, handler):
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema, handler):
        return dict(self.schema)


def only(*defaults: Any, why: str = "this server does not support it") -> Checked:
    """A field of OpenAI's that is accepted at its default (or null), and refused otherwise."""
    allowed = [None, *defaults]

    def check(value: Any) -> Any:
        same = (value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)
        if any(same):
            return value
        values = " or ".join(map(shown, allowed))
        raise ValueError(f"%s is {shown(value)}, but {why}; leave it out, or give {values}")

    return Checked(check, {"enum": allowed, "description": f"Accepted at its default only: {why}."})


def _check_text(text: str) -> str:
    """JSON can carry half of a surrogate pair, such as "\\ud800"; no text of characters can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!a} at character {error.start}"
        raise ValueError(f"%s is no valid Unicode: it has half of a character, {half}; send whole ones") from None
    return text


def _check_prompt(value: Any) -> list[str | list[int]]:
    """All four shapes become one: a list of prompts, each a string or a list of token ids."""
    if isinstance(value, str):
        return [_check_text(value)]
    if not isinstance(value, list):
        raise ValueError(f"%s is {shown(value)}; give a string, token ids, or a list of either")
    if not value:
        raise ValueError("%s is an empty list; give at least one prompt, or at least one token id")
    if _is_id(value[0]):
        return [_check_ids(value)]
    return [_check_text(one) if isinstance(one, str) else _check_ids(one) for one in value]


def _check_ids(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(f"%s holds {shown(value)}; each prompt is a string or a list of token ids")
    if not value:
        raise ValueError("%s holds an empty list of token ids; a prompt needs at least one")
    for place, token in enumerate(value):
        if not _is_id(token):
            raise ValueError(f"%s holds {shown(token)} at place {place} of the token ids; a token id is an integer")
        if not 0 <= token <= MAX_ID:
            raise ValueError(f"%s holds token id {shown(token)}; token ids begin at 0 and end with the vocabulary")
    return value


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_stop(value: Any) -> list[str]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise ValueError(f"%s is {shown(value)}; give a string, or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"%s holds {len(stops)} strings; at most {MAX_STOPS} are allowed")
    if "" in stops:
        raise ValueError("%s holds an empty string, which every text contains; leave it out")
    return [_check_text(one) for one in stops]


def _check_stop_ids(value: Any) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"%s is {shown(value)}; give a list of token ids")
    return _check_ids(value) if value else []


def _check_content(value: Any) -> str:
    """A message's text: a string, or OpenAI's list of parts, of which only text parts can be read here."""
    if isinstance(value, str):
        return _check_text(value)
    if not isinstance(value, list) or not value:
        raise ValueError(f'%s is {shown(value)}; give a string, or a list of {{"type": "text", "text": …}}')
    for part in value:
        fine = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
        if not fine or not isinstance(part["text"], str):
            raise ValueError(f'%s holds {shown(part)}; this model reads text only: {{"type": "text", "text": …}}')
    return _check_text("".join(part["text"] for part in value))


_TEXT = {"type": "string"}
_STOP = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID}, "minItems": 1}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "required": ["type", "text"],
    "additionalProperties": False,
}
Prompt = Annotated[
    Any,
    Checked(
        _check_prompt,
        {"anyOf": [_TEXT, _IDS, *({"type": "array", "items": one, "minItems": 1} for one in (_TEXT, _IDS))]},
    ),
]
Stop = Annotated[
    Any,
    Checked(
        _check_stop,
        {"anyOf": [_STOP, {"type": "null"}, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]},
    ),
]
StopTokenIds = Annotated[Any, Checked(_check_stop_ids, {"anyOf": [{**_IDS, "minItems": 0}, {"type": "null"}]})]
Content = Annotated[
    Any, Checked(_check_content, {"anyOf": [_TEXT, {"type": "array", "items": _PART, "minItems": 1}]})
]
