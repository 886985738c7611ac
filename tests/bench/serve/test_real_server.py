"""The client against `minipaged serve` itself, in processes of their own. Counts are compared, never times."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from minipaged.bench.serve import ServerProblem, run_workload

pytestmark = pytest.mark.slow  # two processes that import torch
OPTIONS = {"on": [], "off": ["--no-enable-prefix-caching", "--max-queue", "2", "--api-key", "sesame"]}
START_SECONDS = 60


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """Two servers: with prefix caching, and without it but with a key and a short queue."""
    processes, logs, found = {}, {}, {}
    try:
        for name, options in OPTIONS.items():
            logs[name] = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115
            command = [sys.executable, "-m", "minipaged", "serve", "tiny", "--port", "0", "--attention", "reference"]
            processes[name] = subprocess.Popen([*command, *options], stdout=logs[name], stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while len(found) < len(OPTIONS):
            for name, log in logs.items():
                log.seek(0)
                words = log.read()
                assert processes[name].poll() is None, words
                assert time.monotonic() < end, words
                if "http://" in words:
                    found[name] = "http://" + words.split("http://")[1].split()[0]
            time.sleep(0.1)
        yield found
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(30)
        for log in logs.values():
            log.close()


def run(url: str, workload: str = "shared-prefix", **options):
    return run_workload(url, workload, **{"requests": 6, "scale": 0.2, "metrics_interval": 0.05, **options})


def test_caching_on_computes_fewer_tokens(urls):
    on = run(urls["on"], max_concurrency=1).summary
    off = run(urls["off"], max_concurrency=1, api_key="sesame").summary
    assert (on.completed, off.completed, on.failed, off.failed) == (6, 6, 0, 0)
    assert on.output_tokens == off.output_tokens
    assert off.prefill_tokens == off.input_tokens == on.input_tokens
    # 68 shared tokens are 4 full blocks of 16; the first request computes them, the other five find them.
    assert on.prefill_tokens == on.input_tokens - 5 * 64
    assert on.prefix_hit_rate == pytest.approx(5 * 64 / on.input_tokens)
    assert off.prefix_hit_rate == 0
    assert 0 < on.peak_kv_usage < 1


def test_unique_prompts_and_long_answers(urls):
    result = run(urls["on"], "B", unique=True, seed=5, scale=0.02)
    assert {record.output_tokens for record in result.records} == {40}
    assert result.summary.prefill_tokens == result.summary.input_tokens
    assert {record.finish_reason for record in result.records} == {"length"}


def test_a_full_queue_is_named_and_waits_if_told(urls):
    refused = run(urls["off"], "B", requests=12, scale=0.05, api_key="sesame")
    assert refused.summary.completed + refused.summary.failed == 12
    assert all("HTTP 429" in words for words in refused.summary.errors)
    patient = run(urls["off"], "A", requests=12, retries=100, api_key="sesame", seed=2)
    assert (patient.summary.completed, patient.summary.failed) == (12, 0)


@pytest.mark.parametrize(
    ("server", "options", "words"),
    [
        ("off", {}, "wants an API key"),
        ("on", {"model": "large"}, "no model 'large'; it has 'tiny'"),
        ("on", {"workload": "B", "scale": 3}, "holds 4,096: --scale 1.99"),
    ],
)
def test_runs_that_cannot_begin(urls, server, options, words):
    with pytest.raises(ServerProblem, match=words):
        run(urls[server], **options)
