"""Whole runs against a fake server: what is sent, what is counted, and every way in which a server can fail."""

import asyncio
import json

import pytest

from minipaged.bench import main
from minipaged.bench.serve import ServerProblem, comparison, run_workload
from minipaged.bench.serve.metrics import Slo
from minipaged.workloads import Workload
from tests.bench.serve.fake_server import FakeServer


def run(server: FakeServer, workload="A", **options):
    return run_workload(server.url, workload, **{"requests": 4, "metrics_interval": 0.01, "timeout": 5.0, **options})


def test_a_run_that_goes_well(tmp_path):
    with FakeServer() as server:
        result = run(server, slo=Slo(ttft_ms=10_000))
    summary = result.summary
    assert (summary.completed, summary.failed, summary.errors) == (4, 0, {})
    assert (summary.input_tokens, summary.output_tokens) == (200, 40)
    assert (summary.peak_kv_usage, summary.preemptions) == (0.25, 0)
    assert summary.goodput == summary.request_throughput
    assert all(len(record.itls) == 9 and record.finish_reason == "length" for record in result.records)
    sent = server.bodies[1:]  # the probe came first
    assert all(body["ignore_eos"] and body["temperature"] == 0 and body["model"] == "fake" for body in sent)
    assert [body["prompt"] for body in sent] == [request.prompt for request in result.plan.requests]
    text = str(result)
    for words in ("workload A: 4 requests, all at once", "TTFT", "E2EL", "goodput", "25.0 % peak"):
        assert words in text
    result.save(tmp_path / "out.json")
    read = json.loads((tmp_path / "out.json").read_text())
    assert read["summary"]["completed"] == 4
    assert len(read["requests"]) == 4
    assert read["metrics"][0]["time"] == -1


def test_shared_prefixes_hit_and_unique_ones_do_not():
    with FakeServer() as server:
        shared = run(server, "shared-prefix", max_concurrency=1)
        unique = run(server, "shared-prefix", unique=True, seed=1)
    assert shared.summary.prefix_hit_rate > 0.6
    assert shared.summary.prefill_tokens < shared.summary.input_tokens / 2
    assert unique.summary.prefix_hit_rate == 0
    assert unique.summary.prefill_tokens == unique.summary.input_tokens
    side_by_side = repr(comparison({"shared": shared, "unique": unique}))
    assert "prefill tokens computed" in side_by_side


def test_a_server_that_reports_nothing():
    with FakeServer(metrics_prefix=None, usage=False, max_model_len=None) as server:
        result = run(server)
    assert result.summary.counted_by_chunks == 4
    assert result.summary.output_tokens == 40
    assert str(result).count("not reported") == 4
    assert "counted by chunks" in str(result)


def test_max_concurrency():
    with FakeServer() as server:
        result = run(server, requests=9, max_concurrency=2)
    assert server.peak_in_flight == 2
    assert result.records[-1].sent > result.records[-1].arrival == 0


def test_connections_are_used_again():
    with FakeServer(keep_alive=True) as server:
        result = run(server, requests=5, max_concurrency=1, metrics_interval=0)
    assert result.summary.completed == 5
    assert server.connections == 1
    with FakeServer(lambda number, body: 3 if number == 2 else None, keep_alive=True) as server:
        result = run(server, requests=5, max_concurrency=1, metrics_interval=0)
    assert (result.summary.completed, result.summary.failed) == (4, 1)
    assert "the connection broke after 3 chunks" in next(iter(result.summary.errors))
    assert server.connections == 2


def test_a_turn_waits_for_the_turn_before():
    with FakeServer() as server:
        result = run(server, "multi-turn", requests=8, rate=float("inf"), scale=0.1)
    assert server.peak_in_flight == 2  # two chats
    for request, record in zip(result.plan.requests, result.records, strict=True):
        if request.follows is not None:
            assert record.sent >= result.records[request.follows].chunk_times[-1]


# ── runs that cannot begin ───────────────────────────────────────────────────────────────────────────────────


def test_nobody_there():
    with FakeServer() as server:
        url = server.url
    with pytest.raises(ServerProblem, match="no server answers at http"):
        run_workload(url, "A")
    for wrong in ("127.0.0.1:8000", "http://", "http://host:port", "ftp://host", "http://host/?x=1"):
        with pytest.raises(ValueError, match="must look like http"):
            run_workload(wrong, "A")
    with pytest.raises(ValueError, match="printable ASCII"):
        run_workload("http://127.0.0.1:9", "A", api_key="clé")


@pytest.mark.parametrize(
    ("server", "options", "words"),
    [
        (FakeServer(), {"model": "gpt"}, "no model 'gpt'; it has 'fake'"),
        (FakeServer(models=()), {}, "lists no model"),
        (FakeServer(api_key="k"), {}, "wants an API key"),
        (FakeServer(api_key="k"), {"api_key": "x"}, "wants an API key"),
        (FakeServer(max_model_len=1000), {"workload": "B"}, "takes 2,050 tokens.*holds 1,000: --scale 0.48"),
        (
            FakeServer(lambda n, b: (500, {}, {"error": {"message": "broken"}})),
            {},
            "refuses a request.*HTTP 500: broken",
        ),
        (FakeServer(lambda n, b: (200, {}, {"choices": []})), {}, "no event stream but application/json"),
        (FakeServer(lambda n, b: (400, {}, {"message": "odd"})), {"ignore_eos": True}, "HTTP 400: odd"),
    ],
)
def test_runs_that_cannot_begin(server, options, words):
    with server, pytest.raises(ServerProblem, match=words):
        run(server, **options)


def test_the_named_scale_fits():
    with FakeServer(max_model_len=1000) as server:
        result = run(server, "B", scale=0.487, requests=1)
    assert result.plan.longest <= 1000


def test_a_server_without_ignore_eos():
    def refuse(number, body):
        return (400, {}, {"error": {"message": "Unrecognized argument: ignore_eos"}}) if "ignore_eos" in body else None

    with FakeServer(refuse, stop_after=3) as server:
        result = run(server)
    assert result.summary.short == 4
    assert "the server refuses it" in str(result)
    assert "4 outputs are shorter than asked for" in str(result)
    with FakeServer(stop_after=3) as server:
        assert run(server).summary.short == 0
        assert run(server, ignore_eos=False).summary.short == 4


def test_other_servers_names():
    with FakeServer(metrics_prefix="minipaged:") as server:
        assert run(server).summary.peak_kv_usage == 0.25
    with FakeServer(metrics_prefix="other:") as server:
        assert run(server).summary.peak_kv_usage is None


# ── requests that fail: counted and named ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (3, "the stream ended early, after 3 chunks, without [DONE]"),
        (0, "the stream ended early, after 0 chunks, without [DONE]"),
        ((429, {"retry-after": "7"}, {"error": {"message": "queue full"}}), "HTTP 429 (retry after 7 s): queue full"),
        ((503, {}, "busy\nnow"), "HTTP 503: busy now"),
        ((422, {}, {"detail": "max_tokens"}), "HTTP 422: max_tokens"),
        ((200, {"content-type": "text/event-stream"}, "data: {broken\n\n"), "a chunk is no JSON object"),
        ((200, {"content-type": "text/event-stream"}, 'data: {"choices": 5}\n\n'), "not the form of a completion"),
        (
            (200, {"content-type": "text/event-stream"}, 'data: {"error": {"message": "out of blocks"}}\n\n'),
            "the server reported an error after 0 chunks: out of blocks",
        ),
        ((200, {"content-type": "text/event-stream"}, "data: [DONE]\n\n"), "ended without a token"),
        ((200, {"content-length": "9999", "content-type": "text/event-stream"}, "data: "), "the connection broke"),
    ],
)
def test_failures_are_named(answer, words):
    with FakeServer(lambda number, body: answer if number == 2 else None) as server:
        result = run(server)
    assert (result.summary.completed, result.summary.failed) == (3, 1)
    (error,) = result.summary.errors
    assert words in error
    assert f"1 × {error}" in str(result)
    assert "1 failed" in result.picture().text


def test_a_slow_server_times_out():
    class Hanging(FakeServer):
        async def _completion(self, writer, body):
            if self.bodies:
                await asyncio.sleep(30)
            await super()._completion(writer, body)

    with Hanging() as server:
        result = run(server, requests=1, timeout=0.2)
    assert "time-out" in next(iter(result.summary.errors))


def test_retries_wait_as_told():
    def refuse_once(number, body):
        return (429, {"retry-after": "0.05"}, {"message": "full"}) if number == 1 else None

    with FakeServer(refuse_once) as server:
        result = run(server, requests=2, retries=1)
    assert (result.summary.failed, result.summary.refused_then_taken) == (0, 1)
    retried = next(record for record in result.records if record.retries)
    assert retried.ttft >= 0.05
    assert "refused at first" in str(result)


# ── the ways in ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command(tmp_path, capsys):
    out, png = tmp_path / "run.json", tmp_path / "run.png"
    with FakeServer(lambda number, body: 2 if number == 3 else None) as server:
        arguments = ["serve", "--base-url", server.url + "/v1/", "--requests", "3", "--json", str(out)]
        assert main([*arguments, "--picture", str(png), "--slo-ttft-ms", "9000", "--no-progress"]) == 1
        assert main(["serve", "--base-url", server.url, "--requests", "2"]) == 0
    printed = capsys.readouterr()
    assert "2 / 1" in printed.out
    assert printed.err == ""
    assert png.read_bytes().startswith(b"\x89PNG")
    assert json.loads(out.read_text())["summary"]["failed"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload", "C"], "'C' is unknown"),
        (["--rate", "-1"], "rate is -1"),
        (["--max-concurrency", "0"], "max_concurrency is 0"),
        (["--retries", "-1"], "retries is -1"),
        (["--timeout", "0"], "timeout is 0"),
        (["--timeout", "nan"], "timeout is nan"),
        (["--metrics-interval", "-1"], "metrics_interval is -1"),
        (["--metrics-interval", "inf"], "metrics_interval is inf"),
        (["--slo-ttft-ms", "-5"], "TTFT is -5 ms"),
        (["--token-ids", "9", "5"], "--token-ids is 9 5; give a first id"),
        (["--token-ids", "-1", "5"], "--token-ids is -1 5; give a first id"),
        ([], "no server answers"),
    ],
)
def test_a_wrong_call_is_one_line(arguments, words, capsys):
    assert main(["serve", "--base-url", "http://127.0.0.1:9", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_folder_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--base-url", "http://127.0.0.1:9", "--json", "no/such/folder.json"])
    assert "a folder that exists" in capsys.readouterr().err


def test_inside_a_running_loop():
    """As in a notebook."""

    async def cell(url):
        return run_workload(url, [Workload(0.0, 5, 2)], metrics_interval=0)

    with FakeServer() as server:
        assert asyncio.run(cell(server.url)).summary.completed == 1
