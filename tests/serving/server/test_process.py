"""The real process, `python -m minipaged serve`, and the client that people use: OpenAI's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager

import openai
import pytest

from minipaged.serving import SamplingParams
from tests.serving.server.helpers import PROMPT, tiny_llm, wait_until

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "MINIPAGED_API_KEY": ""}
del ENVIRONMENT["MINIPAGED_API_KEY"]


class Process:
    def __init__(self, *options: str) -> None:
        self.lines: list[str] = []
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "minipaged", "serve", "tiny", "--port", "0", "--num-blocks", "512", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.popen.stdout), daemon=True)
        self._reader.start()
        wait_until(lambda: "minipaged serves" in self.output or self.popen.poll() is not None, 90)
        assert self.popen.poll() is None, self.output
        self.url = re.search(r"http://\S+", self.output)[0]

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        return float(re.search(rf"^minipaged:{name}{{.*}} (\S+)$", text, re.MULTILINE)[1])

    def wait(self) -> int:
        code = self.popen.wait(timeout=60)
        self._reader.join(timeout=10)
        return code


@contextmanager
def process(*options: str):
    one = Process(*options)
    try:
        yield one
    finally:
        if one.popen.poll() is None:
            one.popen.kill()
            one.popen.wait()


@pytest.fixture(scope="module")
def served():
    with process("--api-key", "a-key") as one:
        yield one
        one.popen.send_signal(signal.SIGTERM)
        assert one.wait() == 0, one.output
        assert "all 512 blocks are free" in one.output
        assert "Traceback" not in one.output


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="a-key", timeout=60, max_retries=0) as one:
        yield one


def test_the_first_line_says_what_fits(served) -> None:
    assert served.lines[0].startswith(
        "CPU KV cache size: 8,192 tokens, Maximum concurrency for 4,096 tokens per request: 2.00x"
    )
    assert "http://127.0.0.1:" in served.lines[1]


def test_it_completes_as_the_engine_does(client) -> None:
    prompts = [PROMPT, "A page table"]
    expected = tiny_llm().generate(prompts, SamplingParams(max_tokens=24))
    answer = client.completions.create(model="tiny", prompt=prompts, max_tokens=24, temperature=0)
    assert [choice.text for choice in answer.choices] == [output.outputs[0].text for output in expected]
    assert answer.usage.completion_tokens == sum(len(output.outputs[0].token_ids) for output in expected)


def test_it_streams(client) -> None:
    whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, temperature=0)
    pieces = list(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, temperature=0, stream=True))
    assert len(pieces) > 1
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


def test_it_chats_with_several_answers(client) -> None:
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "What is a page table?"}],
        "n": 2,
        "temperature": 1.0,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 12,
        "extra_body": {"ignore_eos": True, "cache_salt": "mine", "top_k": 50},
    }
    answer = client.chat.completions.create(**asked)
    assert len(answer.choices) == 2
    assert all(len(choice.logprobs.content) == 12 for choice in answer.choices)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    texts = ["", ""]
    for piece in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in piece.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]
    assert piece.usage.completion_tokens == 24


def test_a_client_that_goes_away_gives_its_blocks_back(served, client) -> None:
    stream = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    for _, _ in zip(range(3), stream, strict=False):
        pass
    assert served.metric("num_requests_running") == 1
    assert served.metric("kv_cache_free_blocks") < 512
    stream.close()
    wait_until(lambda: served.metric("num_requests_running") == 0)
    assert served.metric("kv_cache_free_blocks") == 512


def test_errors_are_the_clients_own_kinds(served, client) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=-1)
    assert wrong.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-5", prompt=PROMPT)
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_at_a_signal_what_runs_is_finished_and_at_the_second_it_is_cut_off() -> None:
    with process("--grace-period", "60") as one:
        body = b'{"prompt": "The", "max_tokens": %d, "ignore_eos": true, "stream": true}'

        def ask(max_tokens: int):
            request = urllib.request.Request(
                f"{one.url}/v1/completions", body % max_tokens, {"Content-Type": "application/json"}
            )
            return urllib.request.urlopen(request, timeout=60)

        with ask(60) as short, ask(4000) as long:
            short.readline(), long.readline()  # both run
            one.popen.send_signal(signal.SIGINT)
            assert short.read().endswith(b"data: [DONE]\n\n")
            assert b"error" not in short.read()
            time.sleep(0.1)
            assert one.popen.poll() is None  # it waits for the long one
            one.popen.send_signal(signal.SIGINT)
            rest = long.read().decode()
            assert "shutting down" in rest
            assert rest.endswith("data: [DONE]\n\n")
        assert one.wait() == 0, one.output
        assert "all 512 blocks are free" in one.output


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--port", "70000"], "port"),
        (["--host", "256.1.1.1"], "--host"),
        (["--num-blocks", "0"], "num_blocks"),
        (["--max-queue", "0"], "max_queue"),
        (["no-such-folder"], "no-such-folder"),
        (["--attention", "magic"], "magic"),
        (["--port", "-1"], "port is -1; allowed is 0 … 65535"),
        (["--port", "65536"], "port is 65536; allowed is 0 … 65535"),
        (["--served-model-name", ""], "model_name is ''"),
    ],
)
def test_what_cannot_start_says_why(capsys, options, word) -> None:
    from minipaged.serving import serve_cli

    assert serve_cli.main(["--port", "0", *options]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("name", [None, "float32", "bfloat16", "float16"])
def test_weights_and_cache_have_the_type_that_was_asked_for(name: str | None) -> None:
    import torch

    from minipaged.attention.launch import cache_dtype
    from minipaged.serving import serve_cli

    options = ["--num-blocks", "4", *(["--dtype", name] if name else [])]
    llm = serve_cli._make_llm(serve_cli.build_parser().parse_args(options))
    wanted = getattr(torch, name or "float32")
    assert {weight.dtype for weight in llm.model.parameters()} == {wanted}
    assert llm.engine.runner.storage.k_cache[0].dtype == cache_dtype(llm.engine.runner.backend, wanted)


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_another_type_is_refused_with_the_types_there_are(capsys, command: str) -> None:
    from minipaged.cli import main

    with pytest.raises(SystemExit, match="2"):
        main([command, "--dtype", "int8", "tiny"])
    assert "'int8' (choose from 'float32', 'bfloat16', 'float16')" in capsys.readouterr().err


def test_a_port_that_is_taken(capsys) -> None:
    from minipaged.serving import serve_cli
    from minipaged.serving.server.process import open_socket

    with open_socket("127.0.0.1", 0) as sock:
        sock.listen()
        assert serve_cli.main(["--port", str(sock.getsockname()[1])]) == 2
    assert "--port" in capsys.readouterr().err


def test_without_its_packages_the_server_says_which_to_install(monkeypatch, capsys) -> None:
    from minipaged.serving import serve_cli

    for name in list(sys.modules):
        if name.startswith("minipaged.serving.server"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert serve_cli.main([]) == 2
    assert "[server]" in capsys.readouterr().err
