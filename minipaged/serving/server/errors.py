"""Errors as OpenAI shapes them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping

from pydantic import ValidationError
from starlette.responses import Response

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
SHOWN = 80  # characters of a wrong value that its error repeats


class ApiError(Exception):
    """An answer that says no. ``message`` names the field, the value, the limit and the way out."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def body(self) -> dict:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        # Only ASCII goes out: a message may repeat what a client sent, also half of a surrogate pair.
        content = json.dumps(self.body()).encode()
        return Response(content, self.status, self.headers, media_type="application/json")


def bad_request(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def from_validation(error: ValidationError, known_fields: Iterable[str]) -> ApiError:
    """The first thing that is wrong with a body, in words."""
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"])
    kind, value = first["type"], first.get("input")
    if kind == "missing":
        return bad_request(f"{param} is missing; give it", param, "missing_required_parameter")
    if kind == "extra_forbidden":
        known = sorted(known_fields) if len(first["loc"]) == 1 else []
        return bad_request(_unknown(param, known), param, "unknown_parameter")
    if kind == "string_unicode":
        name = param or "the name of a field"
        return bad_request(f"{name} is {shown(value)}, which is no valid Unicode; send whole characters", param or None)
    if kind == "value_error":
        return bad_request(str(first["ctx"]["error"]).replace("%s", param), param)
    words = first["msg"].replace("Input should be", "it should be").replace("Input should", "it should")
    return bad_request(f"{param or 'the body'} is {shown(value)}: {words}", param or None)


def shown(value: object) -> str:
    """A value as JSON has it, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _unknown(param: str, known: list[str]) -> str:
    close = difflib.get_close_matches(param, known, n=1)
    if close:
        return f"{param[:SHOWN]} is no field of this request; did you mean {close[0]}?"
    return f"{param[:SHOWN]} is no field of this request; leave it out" + (
        f". Its fields are {', '.join(known)}" if known else ""
    )


def _path(location: tuple) -> str:
    """("messages", 0, "role") → "messages[0].role"."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
