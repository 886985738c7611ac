"""The paths of the server, and what stands behind each."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from time import time

from anyio import to_thread
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

import minipaged
from minipaged.serving.llm import LLM
from minipaged.serving.server.answers import make_answer
from minipaged.serving.server.document import document_of, says, takes
from minipaged.serving.server.engine_thread import RETRY_AFTER, EngineThread, Ticket
from minipaged.serving.server.errors import ApiError
from minipaged.serving.server.limits import ServerConfig, check_key, read_body
from minipaged.serving.server.orders import check_model, make_job
from minipaged.serving.server.prometheus import Metrics
from minipaged.serving.server.schemas import ChatCompletionRequest, CompletionRequest
from minipaged.serving.server.streaming import ClientGone, EventStream, events_of, unless_gone

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream"


class Server:
    """What all paths share: the model, its engine's thread, the counts, the limits."""

    def __init__(self, llm: LLM, config: ServerConfig) -> None:
        if llm.tokenizer is None:
            raise ValueError("a server needs a model with a tokenizer, because clients send and read text")
        self.llm, self.config = llm, config
        self.metrics = Metrics(llm.engine, config.model_name)
        self.engine = EngineThread(
            llm.engine, config.max_queue, self.metrics.observe, self.metrics.observe_abort
        )
        self.draining = False
        self.started = int(time())

    async def generate(self, request: Request, kind: type[CompletionRequest] | type[ChatCompletionRequest]) -> Response:
        """Both generating paths: check, order, and answer whole or in pieces."""
        body = await read_body(request, kind, self.config.max_body)
        # Tokenizing a long prompt takes a while; the loop serves the others meanwhile.
        job = await to_thread.run_sync(make_job, body, self.llm, self.config)
        answer = make_answer(body, job, self.config.model_name, self.llm.tokenizer)
        ticket = self.engine.submit(job.order)
        streams = False
        try:
            await ticket.accepted
            if body.stream:
                events = events_of(ticket, answer, body.wants_usage)
                response = EventStream(events, lambda: self.engine.close(ticket))
                streams = True
                return response
            outputs = await unless_gone(request.receive, _finished(ticket))
            return json_response(answer.whole(outputs))
        except ClientGone:
            return Response(status_code=499)  # nobody reads it
        finally:
            if not streams:
                self.engine.close(ticket)


async def _finished(ticket: Ticket) -> list:
    outputs = {}
    async for changed in ticket.updates():
        outputs.update(changed)
    return [outputs[number] for number in sorted(outputs)]


def create_app(llm: LLM, config: ServerConfig | None = None) -> FastAPI:
    """The application. Its lifespan starts and stops the engine's thread; ``app.state.server`` holds all it has."""
    server = Server(llm, config or ServerConfig())

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        server.engine.start()
        yield
        await to_thread.run_sync(server.engine.stop)

    app = FastAPI(
        title="minipaged",
        version=minipaged.__version__,
        description="An OpenAI-compatible server on a paged KV cache.",
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from elsewhere; /openapi.json is here
        redoc_url=None,
        redirect_slashes=False,  # /v1/completions/ is no path; a 307 has no body that says so
    )
    app.state.server = server
    app.add_exception_handler(ApiError, lambda request, error: error.response())
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    _add_paths(app, server)
    app.add_middleware(Door, server=server)
    app.openapi = lambda: document_of(app)
    return app


def _add_paths(app: FastAPI, server: Server) -> None:
    def get(path: str, words: str, *content_types: str):
        return app.get(path, summary=words, responses=says(content_types or (JSON_TYPE,)), response_class=Response)

    def post(path: str, words: str, body: type):
        answers = says((JSON_TYPE, STREAM_TYPE))
        return app.post(path, summary=words, responses=answers, response_class=Response, openapi_extra=takes(body))

    @get("/health", "200 while requests are taken")
    async def health() -> Response:
        if not server.engine.alive:
            raise ApiError(503, "the engine has stopped; see the server's log, and start it again")
        if server.draining:
            raise _shutting_down()
        return json_response({"status": "ok"})

    @get("/metrics", "Counts, for Prometheus", METRICS_TYPE)
    async def metrics() -> Response:
        return Response(server.metrics.text(), headers={"Content-Type": METRICS_TYPE})

    @get("/v1/models", "What is served here")
    async def models() -> Response:
        return json_response({"object": "list", "data": [_model(server)]})

    @get("/v1/models/{model:path}", "One of them")
    async def model(model: str) -> Response:
        check_model(model, server.config)
        return json_response(_model(server))

    @post("/v1/completions", "Continue a text", CompletionRequest)
    async def completions(request: Request) -> Response:
        return await server.generate(request, CompletionRequest)

    @post("/v1/chat/completions", "Answer a chat", ChatCompletionRequest)
    async def chat_completions(request: Request) -> Response:
        return await server.generate(request, ChatCompletionRequest)


class Door:
    """In front of all paths: who has no key, or comes while the server shuts down, gets no further."""

    def __init__(self, app, server: Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http":
            try:
                if scope["path"].startswith("/v1"):
                    check_key(scope, self.server.config.api_key)
                if self.server.draining and scope["method"] == "POST":
                    raise _shutting_down()
            except ApiError as error:
                return await error.response()(scope, receive, send)
        return await self.app(scope, receive, send)


def _shutting_down() -> ApiError:
    headers = RETRY_AFTER | {"Connection": "close"}
    return ApiError(503, "the server is shutting down; ask another one, or this one later", headers=headers)


def _model(server: Server) -> dict:
    return {
        "id": server.config.model_name,
        "object": "model",
        "created": server.started,
        "owned_by": "minipaged",
        "max_model_len": server.llm.model.config.max_position_embeddings,
    }


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Paths and methods that do not exist."""
    path, method = request.url.path[:80], request.method
    words = {
        404: f"there is no {path!r} here; /openapi.json lists what is",
        405: f"{path!r} does not take {method}; it takes {(error.headers or {}).get('Allow', 'another method')}",
    }
    message = words.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _unexpected(request: Request, error: Exception) -> Response:
    return ApiError(500, f"the server failed ({type(error).__name__}); its log has the details").response()


def json_response(body: dict) -> Response:
    return Response(json.dumps(body, ensure_ascii=False).encode(), media_type=JSON_TYPE)

