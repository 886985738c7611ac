"""A small version of `python -m minipaged.bench.serve_load`; MINIPAGED_LOAD=1 runs it with 200 clients for a minute."""

from __future__ import annotations

import asyncio
import os

from minipaged.bench import serve_load
from tests.serving.server.helpers import running, tiny_llm

FULL = os.environ.get("MINIPAGED_LOAD") == "1"


def test_clients_that_come_and_go_lose_no_token_and_no_block() -> None:
    """The pool is small: sequences are preempted, too. The pool's rules are proved after every step."""
    if FULL:
        assert serve_load.main([]) == 0
        return
    expected = serve_load.expected_answers()
    with running(tiny_llm(num_blocks=100)) as server:
        load = asyncio.run(serve_load.press("127.0.0.1", server.port, expected, 40, 2.5, 0.3, seed=1))
        assert load.errors == {}
        assert load.finished > 0
        assert load.hung_up > 0
        metrics = asyncio.run(serve_load.settle("127.0.0.1", server.port))
        assert metrics["kv_cache_usage_perc"] == 0
        assert metrics["kv_cache_free_blocks"] == metrics["kv_cache_total_blocks"] == 100
        assert metrics["generation_tokens_total"] >= load.tokens
        server.assert_empty()
