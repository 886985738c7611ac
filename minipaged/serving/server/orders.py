"""From a checked body to an order: names, tokens, parameters, and whether it can run at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from uuid import uuid4

from minipaged.serving.admission import check_params, check_prompt, check_size
from minipaged.serving.llm import LLM
from minipaged.serving.sampling import SamplingParams
from minipaged.serving.server.engine_thread import Order
from minipaged.serving.server.errors import ApiError, bad_request, shown
from minipaged.serving.server.limits import MAX_CHOICES, ServerConfig
from minipaged.serving.server.schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest


@dataclass(frozen=True)
class Job:
    """An order, and what the answer to it needs. ``texts``: the prompts as text, where the answer repeats them."""

    order: Order
    texts: list[str] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time()))


def make_job(body: CompletionRequest | ChatCompletionRequest, llm: LLM, config: ServerConfig) -> Job:
    """Raises ApiError for what can never run. Changes nothing, so it may run on any thread."""
    check_model(body.model, config)
    _check_together(body, llm, config)
    chat = isinstance(body, ChatCompletionRequest)
    prompts = [_chat_prompt(body, llm)] if chat else body.prompt
    _check_counts(len(prompts), body.n or 1, llm, config)
    params = _params(body, llm)
    texts, token_ids = [], []
    for number, prompt in enumerate(prompts):
        text, ids = _tokens(prompt, llm, f"prompt[{number}]" if len(prompts) > 1 else "messages" if chat else "prompt")
        _check_fits(len(ids), params, body, llm)
        token_ids.append(ids)
        if not chat and body.echo:
            texts.append(text if text is not None else llm.tokenizer.decode(ids))
    order = Order(
        f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}",
        token_ids,
        params,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        stream=bool(body.stream),
    )
    return Job(order, texts)


def check_model(name: str | None, config: ServerConfig) -> None:
    if name is not None and name != config.model_name:
        raise ApiError(
            404,
            f"the model {shown(name)} is not served here; this server has {config.model_name!r} (see /v1/models)",
            param="model",
            code="model_not_found",
        )


def _check_together(body: CompletionRequest | ChatCompletionRequest, llm: LLM, config: ServerConfig) -> None:
    """What the fields, each for itself, cannot say."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is given, but stream is not true; leave it out", "stream_options")
    if body.priority and llm.engine.config.policy != "priority":
        raise bad_request(
            f"priority is {body.priority}, but this server runs first come, first served; leave it out, or start the "
            "server with --scheduling-policy priority",
            "priority",
        )
    if isinstance(body, CompletionRequest):
        if body.echo and body.logprobs is not None:
            raise bad_request(
                "echo is true, but log-probabilities of the prompt are not computed; leave out echo or logprobs", "echo"
            )
        return
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs is given, but logprobs is not true; set logprobs to true", "top_logprobs")
    both = (body.max_tokens, body.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise bad_request(
            f"max_tokens is {both[0]} and max_completion_tokens is {both[1]}; they mean the same, give one of them",
            "max_completion_tokens",
        )


def _check_counts(num_prompts: int, n: int, llm: LLM, config: ServerConfig) -> None:
    if n > llm.engine.config.max_num_seqs:
        raise bad_request(f"n is {n}, but this server runs at most {llm.engine.config.max_num_seqs} sequences", "n")
    if num_prompts > config.max_queue:
        raise bad_request(
            f"prompt holds {num_prompts} prompts, but the queue takes {config.max_queue}; send fewer at a time",
            "prompt",
        )
    if num_prompts * n > MAX_CHOICES:
        raise bad_request(
            f"{num_prompts} prompts times n = {n} are {num_prompts * n} texts; at most {MAX_CHOICES} a request", "n"
        )


def _chat_prompt(body: ChatCompletionRequest, llm: LLM) -> str:
    # "developer" is OpenAI's newer word for what chat templates call "system".
    roles = {"developer": "system"}
    messages = [{"role": roles.get(one.role, one.role), "content": one.content} for one in body.messages]
    try:
        return llm.tokenizer.apply_chat_template(messages)
    except ValueError as error:
        raise bad_request(str(error), "messages") from None


def _params(body: GenerationRequest, llm: LLM) -> SamplingParams:
    """The API's defaults are OpenAI's: a temperature of 1, where ``SamplingParams`` has 0."""
    try:
        params = SamplingParams(
            n=body.n or 1,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=body.top_k or 0,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
            stop=body.stop,
            stop_token_ids=body.stop_token_ids,
            max_tokens=body.output_limit,
            ignore_eos=bool(body.ignore_eos),
            logprobs=body.num_logprobs,
        )
        check_params(params, llm.tokenizer, llm.model.config.vocab_size)
    except (TypeError, ValueError) as error:
        word = str(error).split(maxsplit=1)[0]
        raise bad_request(str(error), word if word in type(body).model_fields else None) from None
    return params


def _tokens(prompt: str | list[int], llm: LLM, name: str) -> tuple[str | None, list[int]]:
    try:
        return check_prompt(prompt, llm.tokenizer, llm.model.config.vocab_size)
    except (TypeError, ValueError) as error:
        raise bad_request(str(error), name) from None


def _check_fits(num_tokens: int, params: SamplingParams, body: GenerationRequest, llm: LLM) -> None:
    engine = llm.engine
    longest = llm.model.config.max_position_embeddings
    try:
        check_size(num_tokens, params, engine.manager, engine.config, longest)
    except ValueError as error:
        given = [name for name in ("max_completion_tokens", "max_tokens") if getattr(body, name, None) is not None]
        too_long = num_tokens >= longest or not given
        param = ("messages" if isinstance(body, ChatCompletionRequest) else "prompt") if too_long else given[0]
        raise bad_request(str(error), param, "context_length_exceeded") from None
