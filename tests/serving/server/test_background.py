"""A server in a thread, around an engine with parts of one's own."""

from __future__ import annotations

import httpx
import pytest

from minipaged.serving import Scheduler
from minipaged.serving.server import serve_in_background
from tests.serving.server.helpers import PROMPT, tiny_llm


class OneAtATime(Scheduler):
    """A scheduler that somebody wrote."""

    def _has_seat(self, request) -> bool:
        return not self.running


def test_a_scheduler_of_ones_own_serves() -> None:
    llm = tiny_llm(parts={"scheduler": OneAtATime})
    with serve_in_background(llm) as server:
        body = {"prompt": [PROMPT] * 3, "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
    assert len({choice["text"] for choice in answer.json()["choices"]}) == 1
    assert max(step.num_running for step in llm.stats.history) == 1


def test_what_still_runs_at_the_end_is_ended() -> None:
    body = {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.Client(timeout=30) as client:
        with serve_in_background(tiny_llm()) as server:
            request = client.build_request("POST", f"{server.url}/v1/completions", json=body)
            pieces = client.send(request, stream=True).iter_bytes()
            next(pieces)
        assert b"shutting down" in b"".join(pieces)


def test_a_pool_that_has_lost_a_block_is_reported() -> None:
    llm = tiny_llm(check_integrity=False)
    with pytest.raises(RuntimeError, match="ref_cnt"), serve_in_background(llm):
        llm.engine.manager.pool.get_new_blocks(1)
