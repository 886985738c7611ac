"""What the two generating endpoints accept. Field by field OpenAI's API, and the extensions that vLLM added to it.

Types are strict: a number in quotes is no number. An unknown field is an error, because a misspelt ``max_token``
that is silently ignored costs somebody an afternoon. What OpenAI documents and this server cannot do is accepted at
its default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from minipaged.serving.server.fields import INT64, Content, Prompt, Stop, StopTokenIds, only

MAX_LOGPROBS = 20
MAX_N = 128
MAX_COUNT = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Word = Annotated[str, Field(min_length=1, max_length=256)]
Integer64 = Annotated[int, Field(ge=-INT64, lt=INT64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None


class GenerationRequest(_Strict):
    """What completions and chat completions have in common."""

    model: str | None = Field(None, description="A name that /v1/models lists; left out: the one that is served.")
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Count | None = None
    seed: Integer64 | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=1024)] | None = Field(None, description="Taken, and not looked at.")

    # vLLM's extensions
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = None
    stop_token_ids: StopTokenIds = None
    ignore_eos: bool | None = None
    priority: Integer64 | None = Field(None, description='Smaller goes first; needs --scheduling-policy "priority".')
    cache_salt: Word | None = Field(None, description="Only requests with the same salt share cached blocks.")
    min_p: Annotated[Any, only(0)] = None
    min_tokens: Annotated[Any, only(0)] = None
    repetition_penalty: Annotated[Any, only(1)] = None
    skip_special_tokens: Annotated[Any, only(True)] = None

    # OpenAI's, at their default
    frequency_penalty: Annotated[Any, only(0)] = None
    presence_penalty: Annotated[Any, only(0)] = None
    logit_bias: Annotated[Any, only({})] = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        raise NotImplementedError


class CompletionRequest(GenerationRequest):
    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[Any, only(1)] = None
    suffix: Annotated[Any, only("")] = None

    @property
    def output_limit(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: Annotated[Any, only()] = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only()] = None
    tool_calls: Annotated[Any, only([])] = None
    annotations: Annotated[Any, only([])] = None


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only("none")] = None
    functions: Annotated[Any, only([])] = None
    metadata: Annotated[Any, only({})] = None
    modalities: Annotated[Any, only(["text"])] = None
    moderation: Annotated[Any, only()] = None
    parallel_tool_calls: Annotated[Any, only(True)] = None
    prediction: Annotated[Any, only()] = None
    prompt_cache_key: Annotated[str, Field(max_length=1024)] | None = Field(None, description="Taken, not looked at.")
    prompt_cache_retention: Annotated[Any, only("in_memory", "in-memory")] = None
    reasoning_effort: Annotated[Any, only("none")] = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    safety_identifier: Annotated[str, Field(max_length=1024)] | None = Field(None, description="Taken, not looked at.")
    service_tier: Annotated[Any, only("auto", "default")] = None
    store: Annotated[Any, only(False)] = None
    tool_choice: Annotated[Any, only("none")] = None
    tools: Annotated[Any, only([])] = None
    verbosity: Annotated[Any, only("medium")] = None
    web_search_options: Annotated[Any, only()] = None

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
