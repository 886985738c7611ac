"""The server's own OpenAPI document, at /openapi.json: exact enough to generate clients and nonsense from.

The server reads bodies itself, so that it can say exactly what is wrong with one; here their schemas are put where
FastAPI would have put them.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from minipaged.serving.server.schemas import ChatCompletionRequest, CompletionRequest

REFERENCE = "#/components/schemas/{model}"


class ErrorDetail(BaseModel):
    """What is wrong, with the field, the value, the limit and the way out."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every error has this shape."""

    error: ErrorDetail


DESCRIBED = (CompletionRequest, ChatCompletionRequest, ErrorBody)


def says(content_types: tuple[str, ...] = ("application/json",)) -> dict:
    """The answers of a path: what a success is sent as, and the one shape of all errors."""
    error = {"application/json": {"schema": {"$ref": REFERENCE.format(model=ErrorBody.__name__)}}}
    return {
        200: {"description": "The answer.", "content": {kind: {} for kind in content_types}},
        "4XX": {"description": "The request is wrong, or comes too early.", "content": error},
        "5XX": {"description": "The server is shutting down, or has failed.", "content": error},
    }


def takes(model: type[BaseModel]) -> dict:
    """The body of a path."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document_of(app: FastAPI) -> dict:
    """Made once, when it is first asked for."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, definitions = models_json_schema([(model, "validation") for model in DESCRIBED], ref_template=REFERENCE)
        made.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        app.openapi_schema = made
    return app.openapi_schema
