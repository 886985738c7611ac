"""After the model: tokens are chosen, sequences grow, fork, step as beams, and end."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from minipaged.serving.beam import BeamGroup
from minipaged.serving.detokenize import RunningText
from minipaged.serving.metrics import EngineStats
from minipaged.serving.outputs import RequestTimes
from minipaged.serving.protocols import Decision, Scheduler
from minipaged.serving.request import Request, RequestGroup, RequestStatus
from minipaged.serving.sampler import sample, top_logprobs


class OutputProcessor:
    """Turns logits into tokens and texts, and tells the scheduler who forked and who ended.

    ``trace`` gets one line for each sequence that ends; None: nobody wants to know. ``on_tokens``, if set, is called
    for each prompt that grew, at that moment, with the times of its tokens so far.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        stats: EngineStats,
        tokenizer,
        trace: list[Decision] | None,
    ) -> None:
        self.scheduler, self.stats, self.tokenizer, self.trace = scheduler, stats, tokenizer, trace
        self.on_tokens: Callable[[RequestTimes], None] | None = None

    def grow(self, requests: list[Request], logits: Tensor) -> list[RequestGroup]:
        """A next token for every request whose newest token was computed. Returns the groups that grew."""
        sequences, rows, beams = [], [], []
        for row, request in enumerate(requests):
            if request.group.lockstep:
                request.group.observe(request, logits[row])
                beams.append(request.group)
                continue
            forks = request.group.missing_members(request)  # the prompt is done: the other n − 1 begin here
            for child in forks:
                self._fork(request, child)
                self.watch_text(child)
            sequences += [request, *forks]
            rows += [row] * (1 + len(forks))  # all of them draw from the same logits
        if sequences:
            same = rows == list(range(len(logits)))
            self._append_tokens(sequences, logits if same else logits[torch.tensor(rows, device=logits.device)])
        groups = {sequence.group.request_id: sequence.group for sequence in sequences}
        for group in beams:
            if group.request_id not in groups and group.ready():
                self._step_beams(group)
                groups[group.request_id] = group
        now = perf_counter()
        for group in groups.values():
            group.times.tokens.append(now)
            if self.on_tokens is not None:
                self.on_tokens(group.times)
        return list(groups.values())

    def _step_beams(self, group: BeamGroup) -> None:
        """Let every beam go on, fork, or end, as the group has chosen."""
        successors = group.advance()
        grown = []
        for beam, nexts in successors:
            # Forks first: they share the blocks of the beam as it is now.
            sequences = [beam] + [self._fork(beam, group.fork(beam)) for _ in nexts[1:]]
            grown += zip(sequences, nexts, strict=False)
        for beam, nexts in successors:
            if not nexts:
                self.finish(beam, RequestStatus.FINISHED_STOPPED)
        for sequence, (token, total) in grown:
            sequence.append_token(token)
            sequence.cumulative_logprob = total
        self.stats.num_generated_tokens += len(grown)

    def _fork(self, parent: Request, child: Request) -> Request:
        self.scheduler.fork_request(parent, child)
        self.stats.num_forks += 1
        self.stats.num_forked_blocks += -(-parent.num_computed_tokens // self.stats.block_size)
        return child

    def _append_tokens(self, requests: list[Request], logits: Tensor) -> None:
        params = [request.group.params for request in requests]
        tokens = sample(logits, params, [request.rng for request in requests])
        asking = [row for row, p in enumerate(params) if p.logprobs is not None]
        if asking:
            ks = [params[row].logprobs for row in asking]
            found = top_logprobs(logits[asking], [tokens[row] for row in asking], ks)
            for row, logprobs in zip(asking, found, strict=True):
                requests[row].logprobs.append(logprobs)
                requests[row].cumulative_logprob += logprobs[tokens[row]]
        for request, token in zip(requests, tokens, strict=True):
            self._append(request, token)
        self.stats.num_generated_tokens += len(tokens)

    def _append(self, request: Request, token: int) -> None:
        """One more token, and the question whether it is the last."""
        request.append_token(token)
        params, text = request.group.params, request.text
        if token in request.group.end_tokens or token in params.stop_tokens:
            stop = text.flush() if text is not None else None
            reason = stop or (token if token in params.stop_tokens else None)
            return self.finish(request, RequestStatus.FINISHED_STOPPED, reason)
        at_limit = request.num_output_tokens >= request.max_tokens
        if text is not None:
            stop = text.add(token) or (text.flush() if at_limit else None)
            if stop:
                return self.finish(request, RequestStatus.FINISHED_STOPPED, stop)
        if at_limit:
            self.finish(request, RequestStatus.FINISHED_LENGTH)
        return None

    def finish(self, request: Request, status: RequestStatus, stop_reason: str | int | None = None) -> None:
        """A sequence ends and gives back everything."""
        self.scheduler.finish_request(request)  # first: it looks for the request by its present status
        request.status, request.stop_reason = status, stop_reason
        if self.trace is not None:
            step = self.stats.num_steps
            self.trace.append(Decision(step, "finish", request.request_id, request.num_tokens, status.value))

    def watch_text(self, request: Request) -> None:
        """Follow the text token by token only where somebody looks: stop strings, streaming, log-probabilities."""
        group = request.group
        if self.tokenizer is None or group.lockstep:
            return
        stop = group.params.stop_strings
        if stop or group.stream or group.params.logprobs is not None:
            request.text = RunningText(self.tokenizer, stop)

    def text(self, sequence: Request | list[int]) -> str:
        if self.tokenizer is None:
            return ""
        if isinstance(sequence, list):
            return self.tokenizer.decode(sequence)
        if sequence.text is not None:
            return sequence.text.shown(sequence.finished)
        token_ids = sequence.output_token_ids
        if sequence.status is RequestStatus.FINISHED_STOPPED and isinstance(sequence.stop_reason, int):
            token_ids = token_ids[:-1]  # the stop token ends the text and is no part of it
        return self.tokenizer.decode(token_ids)
