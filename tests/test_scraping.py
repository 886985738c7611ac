"""Reading `/metrics`: whose names, several engines, lines that are no samples."""

import pytest

from minipaged.scraping import MetricsSample, parse_metrics

VLLM = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a {b} c"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a {b} c"} 0.75
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:prefix_cache_queries_total{engine="0"} 1.2e+03
vllm:prefix_cache_queries_created{engine="0"} 1.79e+09
vllm:prefix_cache_hits_total{engine="0"} 900.0
external_vllm:kv_cache_usage_perc 5
"""


def test_vllm_with_two_engines():
    """Counts add up; usage is a part of the whole, so it is averaged."""
    want = MetricsSample(1.5, usage=0.5, running=7.0, prefix_queries=1200.0, prefix_hits=900.0)
    assert parse_metrics(VLLM, 1.5) == want


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("minipaged:kv_cache_usage_perc 0.5", "usage", 0.5),
        ('minipaged:num_preemptions_total{model_name="tiny"} 2.0', "preemptions", 2.0),
        ("sglang:token_usage 0.1", "usage", 0.1),
        ("sglang:num_queue_reqs 4", "waiting", 4.0),
        (
            'sglang:cached_tokens_total{cache_source="device"} 5\nsglang:cached_tokens_total{x="y"} 6',
            "prefix_hits",
            11.0,
        ),
        ("vllm:gpu_cache_usage_perc 0.3", "usage", 0.3),
        ("vllm:kv_cache_usage_perc 0.4 1395066363000", "usage", 0.4),  # with a time stamp
    ],
)
def test_names(text, field, value):
    assert parse_metrics(text, 0.0) == MetricsSample(0.0, **{field: value})


@pytest.mark.parametrize(
    "text",
    ["", "<html>no</html>", "vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc x", "sglang:token_usage NaN", "\x00"],
)
def test_what_is_no_sample_is_left_out(text):
    assert parse_metrics(text, 0.0) == MetricsSample(0.0)
