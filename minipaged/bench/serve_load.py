"""Does the server hold? Many streaming clients for a while, some of whom hang up in the middle of an answer.

`python -m minipaged.bench.serve_load --clients 200 --seconds 60` starts a server of its own, and afterwards it
requires: no error, every answer that was read to its end equal to the offline engine's, token for token; nobody
running, every block free, and the pool whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

PROMPTS = ("The operating system", "A page table", "Memory is", "When two processes", "The", "A block of", "Paging")
LENGTHS = (8, 24, 60, 120)


@dataclass
class Load:
    """What the clients saw."""

    finished: int = 0
    hung_up: int = 0
    tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    errors: Counter = field(default_factory=Counter)


def expected_answers() -> dict[tuple[str, int], tuple[str, int]]:
    """{(prompt, max_tokens): (text, tokens)}, from the engine without any server."""
    from minipaged.serving import LLM, SamplingParams

    orders = [(prompt, length) for prompt in PROMPTS for length in LENGTHS]
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for _, length in orders]
    outputs = LLM("tiny").generate([prompt for prompt, _ in orders], params)
    completions = [output.outputs[0] for output in outputs]
    return {order: (one.text, len(one.token_ids)) for order, one in zip(orders, completions, strict=True)}


async def press(
    host: str, port: int, expected: dict, clients: int, seconds: float, kill_share: float, seed: int
) -> Load:
    """``clients`` at once, each with one request after the other, until the time is over."""
    load, deadline = Load(), time.monotonic() + seconds

    async def client(number: int) -> None:
        rng = random.Random(seed * 100_003 + number)
        while time.monotonic() < deadline:
            order = rng.choice(list(expected))
            kill_after = rng.randrange(1, order[1]) if rng.random() < kill_share else None
            try:
                await _one_answer(host, port, order, expected[order], kill_after, load)
            except Exception as error:
                load.errors[f"{type(error).__name__}: {error}"[:200]] += 1
                await asyncio.sleep(0.1)

    await asyncio.gather(*map(client, range(clients)))
    return load


async def _one_answer(host: str, port: int, order, expected, kill_after: int | None, load: Load) -> None:
    prompt, max_tokens = order
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    asked = time.monotonic()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_request("POST", "/v1/completions", json.dumps(body).encode()))
        text, usage, pieces = "", None, 0
        async for event in _events(reader):
            if not pieces:
                load.first_token.append(time.monotonic() - asked)
            pieces += 1
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            text += "".join(choice["text"] for choice in event["choices"])
            usage = event["usage"] or usage
            if kill_after is not None and pieces >= kill_after:
                load.hung_up += 1
                writer.transport.abort()
                return
        if (text, usage["completion_tokens"]) != expected:
            raise RuntimeError(f"an answer differs from the offline engine's: {text[:60]!r}")
        load.finished += 1
        load.tokens += usage["completion_tokens"]
    finally:
        writer.close()


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: load\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _events(reader: asyncio.StreamReader):
    """The events of an answer. (Chunks of HTTP have lines of their own, which are no event lines.)"""
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError((status + await reader.read()).decode(errors="replace")[:300])
    ended = False
    async for line in reader:
        if line.startswith(b"data: [DONE]"):
            ended = True
        elif line.startswith(b"data: "):
            yield json.loads(line[6:])
    if not ended:
        raise RuntimeError("the stream broke off")


async def read_metrics(host: str, port: int) -> dict[str, float]:
    """{name: value} of the plain counts."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(_request("GET", "/metrics"))
    text = (await reader.read()).decode()
    writer.close()
    return {name: float(value) for name, value in re.findall(r"^minipaged:(\w+){[^}]*} (\S+)$", text, re.MULTILINE)}


async def settle(host: str, port: int, seconds: float = 30) -> dict[str, float]:
    """Wait until nobody runs any more: the last who hung up are found out at the next step."""
    deadline = time.monotonic() + seconds
    while True:
        metrics = await read_metrics(host, port)
        if metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0 or time.monotonic() > deadline:
            return metrics
        await asyncio.sleep(0.05)


async def run(args: argparse.Namespace) -> int:
    expected = expected_answers()
    command = [sys.executable, "-m", "minipaged", "serve", "tiny", "--port", "0", "--num-blocks", str(args.num_blocks)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        port = await _port_of(server)
        load = await press("127.0.0.1", port, expected, args.clients, args.seconds, args.kill, args.seed)
        metrics = await settle("127.0.0.1", port)
        server.send_signal(signal.SIGTERM)
        last_words = (await server.stdout.read()).decode().strip()
        code = await server.wait()
    finally:
        if server.returncode is None:
            server.kill()
    free, total = metrics["kv_cache_free_blocks"], metrics["kv_cache_total_blocks"]
    first = sorted(load.first_token) or [0.0]
    print(
        f"{args.clients} clients, {args.seconds:g} s: {load.finished} answers read to their end and equal to the "
        f"offline engine's ({load.tokens} tokens), {load.hung_up} clients hung up, {load.errors.total()} errors"
    )
    tokens, preemptions = metrics["generation_tokens_total"], metrics["num_preemptions_total"]
    print(f"server: {tokens:.0f} tokens, {preemptions:.0f} preemptions")
    print(f"first token: median {first[len(first) // 2]:.2f} s, 99 % {first[int(len(first) * 0.99)]:.2f} s")
    print(f"afterwards: {free:.0f} of {total:.0f} blocks free; {last_words.splitlines()[-1]}")
    for words, count in load.errors.most_common(5):
        print(f"  {count} × {words}")
    return int(load.errors.total() > 0 or free != total or code != 0 or not load.finished)


async def _port_of(server) -> int:
    while line := (await server.stdout.readline()).decode():
        print(line.rstrip(), flush=True)
        if found := re.search(r"http://\S+:(\d+)", line):
            return int(found[1])
    raise RuntimeError("the server did not start")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if all held, else 1."""
    parser = argparse.ArgumentParser(prog="python -m minipaged.bench.serve_load", description=__doc__)
    parser.add_argument("--clients", type=int, default=200, help="streaming at the same time (default 200)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (default 60)")
    parser.add_argument("--kill", type=float, default=0.2, help="share of requests whose client hangs up (default 0.2)")
    parser.add_argument("--num-blocks", type=int, default=1024, help="of the server's pool (few: preemptions, too)")
    parser.add_argument("--seed", type=int, default=0)
    return asyncio.run(run(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
