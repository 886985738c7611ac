"""What is let in: who may ask, how large a body may be, and what a body must be to be read at all."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from minipaged.serving.sampling import check_int, check_number
from minipaged.serving.server.errors import SHOWN, ApiError, bad_request, from_validation

Body = TypeVar("Body", bound=BaseModel)
BODY_SECONDS = 60  # that a body may take to arrive
MAX_CHOICES = 1024  # texts that one request may ask for: its prompts times n


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The limits of the server (those of a step are ``SchedulerConfig``'s).

    model_name    the name that clients know the model by
    api_key       None: everybody may ask
    max_queue     prompts that may wait for their turn; with more, a client gets 429 and comes back later
    max_body      bytes of one request
    grace_period  seconds that running requests get to finish when the server is asked to stop
    """

    model_name: str = "tiny"
    api_key: str | None = None
    max_queue: int = 1024
    max_body: int = 4 * 2**20
    grace_period: float = 30.0

    def __post_init__(self) -> None:
        check_int("max_queue", self.max_queue, low=1)
        check_int("max_body", self.max_body, low=1)
        check_number("grace_period", self.grace_period, low=0)
        if not self.model_name or not self.model_name.isprintable():
            raise ValueError(f"model_name is {self.model_name!r}; give a name of at least one printable character")
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.isprintable()):
            raise ValueError("api_key must be of printable ASCII characters, because it travels in a header")
        if self.api_key is not None and self.api_key != self.api_key.strip():
            raise ValueError("api_key begins or ends with a space, which a header does not keep; leave that out")
        if self.api_key == "":
            raise ValueError("api_key is empty; give a key, or leave it out to let everybody ask")


def check_key(scope: dict, api_key: str | None) -> None:
    """Raises 401 unless the request bears the key. The comparison takes as long for a wrong key as for the right."""
    if api_key is None:
        return
    sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, key = sent.partition(b" ")
    same = hmac.compare_digest(hashlib.sha256(key.strip()).digest(), hashlib.sha256(api_key.encode()).digest())
    if scheme.lower() != b"bearer" or not same:
        problem = "this server asks for an API key, and the request has none" if not sent else "the API key is wrong"
        raise ApiError(
            401,
            f"{problem}; send the header Authorization: Bearer KEY, with the key that the server was started with",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def read_body(request: Request, model: type[Body], max_body: int) -> Body:
    """The body as ``model``. Raises ApiError for anything that is not exactly that."""
    _check_headers(request)
    data = parse_json(await _read(request, max_body))
    if not isinstance(data, dict):
        raise bad_request(f"the body is a JSON {_kind(data)}; give an object with the request's fields")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise from_validation(error, model.model_fields) from None


def _check_headers(request: Request) -> None:
    """A body that says it is something else than plain JSON in UTF-8 is not guessed at."""
    content_type, _, options = request.headers.get("content-type", "").partition(";")
    if content_type.strip().lower() != "application/json":
        problem = f"is {content_type[:SHOWN]!r}" if content_type else "is missing"
        raise ApiError(
            415, f"the header Content-Type {problem}; send the body as JSON, with Content-Type: application/json"
        )
    charset = options.lower().partition("charset=")[2].partition(";")[0].strip(' "')
    if charset not in ("", "utf-8", "utf8"):
        raise ApiError(415, f"the header Content-Type says charset={charset[:SHOWN]!r}; send the body as UTF-8")
    coding = request.headers.get("content-encoding", "")
    if coding.strip().lower() not in ("", "identity"):
        problem = f"the header Content-Encoding is {coding[:SHOWN]!r}, and this server unpacks nothing"
        raise ApiError(415, f"{problem}; send the body as it is, without that header")


async def _read(request: Request, max_body: int) -> bytes:
    """Never holds more than the limit, whatever the header promises."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > max_body:
        raise _too_large(f"{announced} bytes", max_body)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_body:
                    raise _too_large(f"more than {max_body} bytes", max_body)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS} seconds; send it faster, or less at a time"
        raise ApiError(408, message, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise bad_request("the body ended early") from None
    return bytes(body)


def _too_large(size: str, max_body: int) -> ApiError:
    return ApiError(
        413,
        f"the body has {size}, and {max_body} are allowed; send less at a time, or start the server with a larger "
        "--max-body",
        headers={"Connection": "close"},  # what is still to come will not be read
    )


def parse_json(body: bytes) -> object:
    """JSON as its standard has it: UTF-8, and no NaN or Infinity."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is 0x{body[error.start]:02x}"
        raise bad_request(f"the body is not UTF-8: {wrong}; send UTF-8") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply; a request has at most a handful of levels") from None
    except json.JSONDecodeError as error:
        raise bad_request(
            f"the body is not valid JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError as error:  # a constant, or an integer of thousands of digits
        raise bad_request(f"the body is not valid JSON: {str(error).partition(':')[0][:120]}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number; give a finite number")


def _kind(data: object) -> str:
    kinds = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(data), "null")
