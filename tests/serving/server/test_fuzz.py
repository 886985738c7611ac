"""Sense and nonsense, made from the server's own OpenAPI document: never a 5xx, nor an answer that it denies."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.serving.server.helpers import running, tiny_llm

EXAMPLES = int(os.environ.get("MINIPAGED_EXAMPLES", "25"))
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]
OPERATIONS = [
    "GET /health",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "POST /v1/completions",
    "POST /v1/chat/completions",
]


@pytest.fixture(scope="module")
def server():
    with running(tiny_llm(num_blocks=6, max_num_seqs=8, check_integrity=False), max_body=100_000) as one:
        yield one
        one.assert_empty()


@pytest.fixture(scope="module")
def operations(server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    found = (result.ok() for result in schema.get_all_operations())
    return {f"{one.method.upper()} {one.path}": one for one in found}


def test_every_path_is_in_the_document(operations) -> None:
    assert sorted(operations) == sorted(OPERATIONS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_breaks_the_server(operations, name, mode) -> None:
    operation = operations[name]
    if mode is GenerationMode.NEGATIVE and not operation.body:
        pytest.skip("it has no body that could be wrong")

    @settings(
        max_examples=EXAMPLES if operation.body else 5,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case) -> None:
        case.call_and_validate(timeout=30, checks=CHECKS)

    ask()
