"""Before a run: is there a server, does it have the model, does it take what we are going to send?"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from minipaged.bench.serve.client import CompletionsClient, ServerProblem, error_message
from minipaged.bench.serve.plan import TOKEN_IDS, Plan, PlannedRequest
from minipaged.bench.serve.transport import StraightTransport


@dataclass(frozen=True)
class Server:
    """What is known of a server before the run."""

    base_url: str
    model: str
    ignore_eos: bool
    max_model_len: int | None = None
    notes: tuple[str, ...] = ()


def clean_base_url(base_url: str) -> str:
    """Without a final slash and `/v1`, which the client adds itself. Raises ValueError for what is no HTTP address."""
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number
        good = False
    if not good or parts.query or parts.fragment:
        raise ValueError(f"base URL {base_url!r} must look like http://127.0.0.1:8000")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def open_client(base_url: str, api_key: str | None, timeout: float) -> httpx.AsyncClient:
    """A client without a limit on connections: a limit would queue requests where no one sees it.

    An http:// address is reached directly (see transport.py), an https:// one through httpx's own transport.
    """
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip()):
        raise ValueError("the API key must be printable ASCII, for it travels in a header")
    plain = urlsplit(base_url).scheme == "http"
    return httpx.AsyncClient(
        base_url=base_url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(timeout, connect=min(timeout, 30.0), pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        transport=StraightTransport() if plain else None,
    )


async def look_at(http: httpx.AsyncClient, base_url: str, model: str | None, ignore_eos: bool | None) -> Server:
    """Ask for the models, then send one request for one token. Raises ServerProblem.

    ignore_eos None means: where the server accepts it (vLLM, SGLang and minipaged do; OpenAI's own API refuses it).
    """
    try:
        response = await http.get("/v1/models")
    except httpx.TimeoutException:
        raise ServerProblem(f"{base_url} does not answer in time: is it still loading its model?") from None
    except httpx.HTTPError as error:
        raise ServerProblem(
            f"no server answers at {base_url} ({error or type(error).__name__}): "
            f"start one, for instance with `minipaged serve tiny --port 8000`, or correct --base-url"
        ) from None
    model, max_len, notes = _model(response, base_url, model)
    answer = CompletionsClient(http, model, ignore_eos is not False)
    refused = await _try(answer, base_url)
    if refused and ignore_eos is None and "HTTP 4" in refused:
        without = await _try(CompletionsClient(http, model, False), base_url)
        if without is None:
            notes += (f"ignore_eos is off, the server refuses it ({refused}): outputs may be shorter than asked",)
            return Server(base_url, model, False, max_len, notes)
        refused = without
    if refused:
        raise ServerProblem(f"{base_url} refuses a request of one token: {refused}")
    return Server(base_url, model, answer.ignore_eos, max_len, notes)


async def _try(client: CompletionsClient, base_url: str) -> str | None:
    """None when one token comes; else what the server said. Four ids are too few to fill a block of anyone's cache."""
    client.retries = 3
    record = await client.send(PlannedRequest(0, 0.0, list(TOKEN_IDS[:4]), 1), lambda: 0.0)
    if record.error and record.error.startswith(("HTTP 401", "HTTP 403")):
        raise ServerProblem(f"{base_url} wants another API key (--api-key): {record.error}")
    return record.error


def _model(response: httpx.Response, base_url: str, wanted: str | None) -> tuple[str, int | None, tuple[str, ...]]:
    """The model's name, its context length if told, and notes, from the answer of /v1/models."""
    if response.status_code in (401, 403):
        words = error_message(response.status_code, response.content, response.headers)
        raise ServerProblem(f"{base_url} wants an API key (--api-key): {words}")
    if response.status_code != 200:
        if wanted and response.status_code == 404:
            return wanted, None, ()
        words = error_message(response.status_code, response.content, response.headers)
        raise ServerProblem(f"{base_url}/v1/models answers {words}; is this an OpenAI-compatible server?")
    try:
        cards = {card["id"]: card for card in response.json()["data"]}
    except (ValueError, KeyError, TypeError):
        raise ServerProblem(f"{base_url}/v1/models answers no list of models: no OpenAI-compatible server") from None
    if wanted is None and not cards:
        raise ServerProblem(f"{base_url} lists no model: name one with --model")
    name = wanted or next(iter(cards))
    if name not in cards:
        raise ServerProblem(f"{base_url} has no model {name!r}; it has {', '.join(map(repr, cards)) or 'none'}")
    notes = () if wanted or len(cards) == 1 else (f"the first of {len(cards)} models; --model names another",)
    max_len = cards[name].get("max_model_len")
    return name, max_len if isinstance(max_len, int) else None, notes


def check_lengths(plan: Plan, server: Server) -> None:
    """Raises ServerProblem when a request is longer than the model's context, as far as the server tells it."""
    if server.max_model_len is None or plan.longest <= server.max_model_len:
        return
    fits = int(1000 * plan.scale * server.max_model_len / (plan.longest + 1)) / 1000
    raise ServerProblem(
        f"the longest request of workload {plan.name} takes {plan.longest:,} tokens (prompt and output), the model "
        f"{server.model} holds {server.max_model_len:,}: --scale {fits:g} makes all lengths fit"
    )
