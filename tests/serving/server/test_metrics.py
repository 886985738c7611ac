"""/metrics tells what the engine counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.server.helpers import running, tiny_llm


@pytest.fixture
def server():
    with running(tiny_llm(num_blocks=64)) as one:
        yield one


def test_the_counts_add_up(server) -> None:
    prompt = [5, 6, 7, 8] * 12
    for _ in range(2):
        server.complete(prompt=prompt, max_tokens=10, ignore_eos=True)
    server.stream(prompt=prompt, max_tokens=4, ignore_eos=True, n=2)
    server.complete(prompt=prompt, max_tokens=1)
    metric = server.metric
    assert metric("prompt_tokens_total") == metric("prefix_cache_queries_total") == 4 * 48
    assert metric("prefix_cache_hits_total") == 3 * 32
    assert metric("generation_tokens_total") == 10 + 10 + 4 + 4 + 1
    assert metric("computed_tokens_total") == 48 + 3 * 16 + 9 + 9 + 3 + 3
    assert metric("time_to_first_token_seconds_count") == metric("e2e_request_latency_seconds_count") == 4
    assert metric("inter_token_latency_seconds_count") == 9 + 9 + 3
    assert metric("request_queue_time_seconds_count") == 4
    assert metric("request_success_total", 'finished_reason="length"') == 5
    assert metric("num_requests_running") == metric("num_requests_waiting") == metric("kv_cache_usage_perc") == 0
    assert metric("kv_cache_free_blocks") == metric("kv_cache_total_blocks") == 64


def test_every_name_is_there_from_the_start(server) -> None:
    families = {family.name for family in text_string_to_metric_families(server.client.get("/metrics").text)}
    assert {
        "minipaged:num_requests_running",
        "minipaged:num_requests_waiting",
        "minipaged:kv_cache_usage_perc",
        "minipaged:kv_cache_free_blocks",
        "minipaged:kv_cache_total_blocks",
        "minipaged:prefix_cache_queries",
        "minipaged:prefix_cache_hits",
        "minipaged:num_preemptions",
        "minipaged:prompt_tokens",
        "minipaged:generation_tokens",
        "minipaged:time_to_first_token_seconds",
        "minipaged:inter_token_latency_seconds",
        "minipaged:e2e_request_latency_seconds",
        "minipaged:cache_config_info",
    } <= families


def test_a_client_that_goes_away_is_counted(server) -> None:
    asked = {"prompt": [3] * 10, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=asked) as response:
        pieces = response.iter_bytes()
        next(pieces)
    server.assert_empty()
    assert server.metric("request_success_total", 'finished_reason="abort"') == 1
    assert server.metric("time_to_first_token_seconds_count") == 1


def test_preemptions_are_counted() -> None:
    with running(tiny_llm(num_blocks=4)) as server:
        server.complete(prompt=[3] * 10, max_tokens=50, ignore_eos=True, n=2)
        assert server.metric("num_preemptions_total") == server.engine.stats.num_preemptions > 0


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    with running(tiny_llm(enable_prefix_caching=False)) as server:
        server.complete(prompt=[3] * 40, max_tokens=1)
        assert server.metric("prompt_tokens_total") == 40
        assert server.metric("prefix_cache_queries_total") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_latency_is_counted_when_its_token_is_there(server, stream) -> None:
    """Not when the prompt ends: who hangs up after a long wait would never count."""
    asked = {"prompt": [3] * 10, "max_tokens": 200, "ignore_eos": True, "stream": stream}
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.url, timeout=60) as client:
        answer = pool.submit(client.post, "/v1/completions", json=asked)
        while server.metric("inter_token_latency_seconds_count") < 3:
            assert not answer.done()
            sleep(0.005)
        assert server.metric("time_to_first_token_seconds_count") == 1
        assert server.metric("e2e_request_latency_seconds_count") == 0
        assert answer.result().status_code == 200
    assert server.metric("inter_token_latency_seconds_count") == 199
    assert server.metric("e2e_request_latency_seconds_count") == 1
