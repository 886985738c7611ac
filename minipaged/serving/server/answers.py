"""The bodies that go back: whole ones, the chunks of a stream, their log-probabilities and their usage."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from minipaged.model import Tokenizer
from minipaged.serving.outputs import CompletionOutput, RequestOutput
from minipaged.serving.server.orders import Job
from minipaged.serving.server.schemas import ChatCompletionRequest
from minipaged.serving.server.token_bytes import token_bytes


class Entry(NamedTuple):
    """One generated token, for whoever asked for log-probabilities."""

    token_id: int
    logprobs: dict[int, float]
    offset: int


class Answer:
    """What completions and chat completions have in common."""

    whole_object: str
    chunk_object: str

    def __init__(self, job: Job, model_name: str, tokenizer: Tokenizer) -> None:
        self.job, self.model_name, self.tokenizer = job, model_name, tokenizer

    def whole(self, outputs: Sequence[RequestOutput]) -> dict:
        """The body of an answer in one piece. ``outputs``: one a prompt, all finished."""
        choices = []
        for number, output in enumerate(outputs):
            for completion in output.outputs:
                text = self.echo(number) + completion.text
                choices.append(self.choice(self.index(number, completion), text, visible(completion), completion))
        return self._envelope(self.whole_object, choices) | {"usage": usage(outputs)}

    def chunk(self, choices: list[dict]) -> dict:
        return self._envelope(self.chunk_object, choices)

    def index(self, number: int, completion: CompletionOutput) -> int:
        """A choice's place in the answer: all texts of prompt 0, then those of prompt 1, …"""
        return number * self.job.order.params.n + completion.index

    def echo(self, number: int) -> str:
        return self.job.texts[number] if self.job.texts else ""

    def opening(self, index: int, number: int) -> dict | None:
        """What a stream says before the first text of a choice."""
        raise NotImplementedError

    def choice(self, index: int, text: str, entries: list[Entry] | None, completion: CompletionOutput) -> dict:
        raise NotImplementedError

    def delta(self, index: int, text: str, entries: list[Entry] | None, completion: CompletionOutput) -> dict:
        raise NotImplementedError

    def token(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    def _envelope(self, kind: str, choices: list[dict]) -> dict:
        order = self.job.order
        return {
            "id": order.request_id,
            "object": kind,
            "created": self.job.created,
            "model": self.model_name,
            "choices": choices,
        }


class TextAnswer(Answer):
    """/v1/completions"""

    whole_object = chunk_object = "text_completion"

    def opening(self, index: int, number: int) -> dict | None:
        text = self.echo(number)
        return self._choice(index, text, None, None, None) if text else None

    def choice(self, index, text, entries, completion):
        return self._choice(index, text, self._logprobs(entries), completion.finish_reason, completion.stop_reason)

    delta = choice

    @staticmethod
    def _choice(index, text, logprobs, finish_reason, stop_reason) -> dict:
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        }

    def _logprobs(self, entries: list[Entry] | None) -> dict | None:
        if entries is None:
            return None
        tops = []
        for entry in entries:
            top: dict[str, float] = {}
            for token_id, value in entry.logprobs.items():
                top.setdefault(self.token(token_id), value)
            tops.append(top)
        return {
            "tokens": [self.token(entry.token_id) for entry in entries],
            "token_logprobs": [entry.logprobs[entry.token_id] for entry in entries],
            "top_logprobs": tops,
            "text_offset": [entry.offset for entry in entries],
        }


class ChatAnswer(Answer):
    """/v1/chat/completions"""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def opening(self, index: int, number: int) -> dict | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, index, text, entries, completion):
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message} | self._rest(entries, completion)

    def delta(self, index, text, entries, completion):
        return {"index": index, "delta": {"content": text} if text else {}} | self._rest(entries, completion)

    def _rest(self, entries: list[Entry] | None, completion: CompletionOutput) -> dict:
        logprobs = None if entries is None else {"content": list(map(self._entry, entries)), "refusal": None}
        return {
            "logprobs": logprobs,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }

    def _entry(self, entry: Entry) -> dict:
        best = sorted(entry.logprobs.items(), key=lambda pair: -pair[1])[: self.job.order.params.logprobs]
        top = [self._token(token_id, value) for token_id, value in best]
        return self._token(entry.token_id, entry.logprobs[entry.token_id]) | {"top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict:
        as_bytes = list(token_bytes(self.tokenizer, token_id))
        return {"token": self.token(token_id), "logprob": logprob, "bytes": as_bytes}


def make_answer(body, job: Job, model_name: str, tokenizer: Tokenizer) -> Answer:
    kind = ChatAnswer if isinstance(body, ChatCompletionRequest) else TextAnswer
    return kind(job, model_name, tokenizer)


def visible(completion: CompletionOutput, start: int = 0) -> list[Entry] | None:
    """The tokens, from number ``start``, whose text may be seen; None where nobody asked for them.

    A token that ends behind the visible text is not shown: it may be the beginning of a stop string, or is one.
    """
    if completion.logprobs is None:
        return None
    ends, count = completion.text_ends, len(completion.token_ids)
    if completion.finish_reason is None or isinstance(completion.stop_reason, str):
        count = min(count, bisect_right(ends, len(completion.text)))
    return [
        Entry(completion.token_ids[i], completion.logprobs[i], ends[i - 1] if i else 0) for i in range(start, count)
    ]


def usage(outputs: Sequence[RequestOutput]) -> dict:
    """Tokens in and out. A prompt counts once, however many texts continue it."""
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    generated = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
    }
