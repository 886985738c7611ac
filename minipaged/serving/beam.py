"""Beam search over fork and free: the paper's Fig. 9 (Kwon et al., SOSP 2023, §4.4).

All beams take a step together. A beam with two successors is forked, one without is freed; the blocks of the common
past are shared, and a block is copied only when two beams write to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minipaged.serving.outputs import CompletionOutput
from minipaged.serving.request import Request, RequestGroup, RequestStatus
from minipaged.serving.sampling import BeamSearchParams


@dataclass
class Hypothesis:
    """A text that has ended, or was cut at max_tokens."""

    token_ids: list[int]
    cumulative_logprob: float
    score: float
    finish_reason: str


class BeamGroup(RequestGroup):
    """The beams of one prompt. ``observe`` collects their log-probabilities, ``advance`` chooses the next beams."""

    lockstep = True
    params: BeamSearchParams

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.hypotheses: list[Hypothesis] = []
        self._logprobs: dict[str, Tensor] = {}
        self._next_index = 1
        self._beams: list[Request] = []  # the live ones; ``members`` keeps all, for the counts

    @property
    def seats(self) -> int:
        return self.params.beam_width

    def first_members(self) -> list[Request]:
        self.members = [Request(self.member_id(0), self.prompt_token_ids, self)]
        self._beams = list(self.members)
        return self.members

    def live_members(self) -> list[Request]:
        self._beams = [beam for beam in self._beams if not beam.finished]
        return list(self._beams)

    @property
    def finished(self) -> bool:
        return not self.live_members()

    def missing_members(self, parent: Request) -> list[Request]:
        return []

    def fork(self, parent: Request) -> Request:
        child = parent.fork(self.member_id(self._next_index), self._next_index)
        self._next_index += 1
        self.members.append(child)
        self._beams.append(child)
        return child

    def observe(self, request: Request, logits: Tensor) -> None:
        """Keep the log-probabilities that follow a beam's newest token. ``logits``: [vocab_size]."""
        self._logprobs[request.request_id] = logits.double().log_softmax(dim=-1)

    def ready(self) -> bool:
        """Every live beam is computed up to its newest token. One that was preempted must come back first."""
        return all(
            member.request_id in self._logprobs and member.num_uncomputed_tokens == 0
            for member in self.live_members()
        )

    def advance(self) -> list[tuple[Request, list[tuple[int, float]]]]:
        """Take the best beam_width successors of all beams; those that end here become hypotheses.

        Returns for each beam its next tokens, with the cumulative log-probability of each. The first one goes on in
        the beam's own sequence, each further one in a fork of it; a beam without any is freed.
        """
        beams = self.live_members()
        width = self.params.beam_width
        chosen: dict[str, list[tuple[int, float]]] = {beam.request_id: [] for beam in beams}
        num_chosen = 0
        num_generated = beams[0].num_output_tokens + 1
        for place, (total, number, token) in enumerate(self._candidates(beams)):
            if token in self.end_tokens:
                if place < width:  # an ending among the best ones; a worse one is dropped, as in transformers
                    self._add([*beams[number].output_token_ids, token], total, "stop")
            elif num_chosen < width:
                chosen[beams[number].request_id].append((token, total))
                num_chosen += 1
        self._logprobs.clear()
        successors = [(beam, chosen[beam.request_id]) for beam in beams]
        best = max((total for _, nexts in successors for _, total in nexts), default=float("-inf"))
        if num_generated >= self.params.max_tokens:
            for beam, nexts in successors:
                for token, total in nexts:
                    self._add([*beam.output_token_ids, token], total, "length")
        if num_generated >= self.params.max_tokens or self._can_stop(best, num_generated):
            successors = [(beam, []) for beam in beams]
        return successors

    def _candidates(self, beams: list[Request]) -> list[tuple[float, int, int]]:
        """The best 2 · beam_width (total log-probability, beam's place, token): enough if every beam could end."""
        scores = torch.stack([self._logprobs[b.request_id] + b.cumulative_logprob for b in beams])
        vocab_size = scores.shape[1]
        values, places = scores.flatten().topk(min(2 * self.params.beam_width, scores.numel()))
        flat = zip(values.tolist(), places.tolist(), strict=True)
        return [(value, place // vocab_size, place % vocab_size) for value, place in flat]

    def _add(self, token_ids: list[int], total: float, reason: str) -> None:
        score = self.params.score(total, len(token_ids))
        self.hypotheses.append(Hypothesis(token_ids, total, score, reason))
        self.hypotheses.sort(key=lambda h: -h.score)  # stable: the earlier of two equal ones stays in front
        del self.hypotheses[self.params.beam_width :]

    def _can_stop(self, best_total: float, num_generated: int) -> bool:
        """Whether the result is settled (or early stopping says so)."""
        if len(self.hypotheses) < self.params.beam_width:
            return False
        if self.params.early_stopping:
            return True
        # Log-probabilities only fall. With a positive length penalty the longest text scores best, else the shortest.
        lengths = (num_generated + 1, self.params.max_tokens)
        attainable = max(self.params.score(best_total, length) for length in lengths)
        return attainable <= self.hypotheses[-1].score

    def completions(self, decode) -> list[CompletionOutput]:
        """The hypotheses, best first; as long as there is none, the beams that were not given up."""
        if not self.hypotheses:
            beams = [m for m in self.members if m.status is not RequestStatus.FINISHED_STOPPED]
            found = [self.completion(beam, decode) for beam in beams]
            return [replace(completion, index=place) for place, completion in enumerate(found)]
        return [
            CompletionOutput(
                index=place,
                text=decode(found.token_ids),
                token_ids=found.token_ids,
                finish_reason=found.finish_reason,
                cumulative_logprob=found.cumulative_logprob,
                score=found.score,
            )
            for place, found in enumerate(self.hypotheses)
        ]
