"""From chat messages to the text that a model was trained on, by the template that comes with its tokenizer."""

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def render_template(
    template: str, messages: Sequence[dict[str, Any]], special_tokens: dict[str, str], add_generation_prompt: bool
) -> str:
    """What transformers' apply_chat_template makes of the messages, without tools and documents.

    special_tokens: names such as "bos_token", and their texts. Raises ValueError with what the template objects to.
    """
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(f"message {number} must be a dict with 'role' and 'content', got {message!r}")
    try:
        return _compile(template).render(
            messages=list(messages),
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{"eos_token": "", "bos_token": ""} | special_tokens,
        )
    except TemplateError as error:
        raise ValueError(f"the chat template refused these messages: {error}") from error
    except Exception as error:  # a template is a program, and content may be anything: None, a list of parts
        raise ValueError(
            f"the chat template cannot take these messages ({type(error).__name__}: {error}). Give each a 'content' of "
            f"plain text."
        ) from error


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what a trainer counts as the answer: here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (Jinja reads this attribute)

    def parse(self, parser: Parser) -> list:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    # A template comes with the checkpoint, so it is code from outside: it runs in Jinja's sandbox.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.globals["raise_exception"] = _raise_template_error
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _to_json
    return environment.from_string(template)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)
