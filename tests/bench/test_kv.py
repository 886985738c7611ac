"""The benchmark measures what it says, through the wire too, and has a clear word when a peer fails."""

import json
import subprocess
import sys

import pytest

from minipaged.bench import kv, kv_rows, main


def test_rows_have_times(monkeypatch):
    monkeypatch.setattr(kv_rows, "GROUPS", {"hash": kv_rows.hash_blocks, "small": lambda a: kv_rows.replay(a, 12)})
    results = kv.run(rounds=1)
    assert list(results) == [
        "hash a block of 16 tokens, sha256",
        "hash a block of 16 tokens, xxhash",
        "replay of 12 requests",
    ]
    assert all(seconds > 0 for row in results.values() for seconds in row["minipaged"])
    assert "minipaged" in kv.table(results)


def test_the_replay_leaves_a_whole_pool():
    class Watching(kv.OurAdapter):
        def make_manager(self, num_blocks, block_size):
            self.manager = super().make_manager(num_blocks, block_size)
            return self.manager

    adapter = Watching()
    kv_rows.replay(adapter, 40)
    adapter.manager.check_integrity()
    assert adapter.manager.usage == 0
    assert adapter.manager.prefix_stats.hits > 0


def test_a_peer_that_cannot_start(capsys):
    assert main(["kv", "--against", "vllm", "--python", sys.executable, "--rounds", "1"]) == 2
    assert "could not be started" in capsys.readouterr().err


def test_the_wire_speaks_json():
    code = "from minipaged.bench import kv, kv_rows; kv_rows.serve(kv.OurAdapter())"
    out = subprocess.run([sys.executable, "-c", code], input="hash\n", capture_output=True, text=True, check=True)
    name, rows = map(json.loads, out.stdout.splitlines())
    assert name == {"name": "minipaged"}
    assert len(rows) == 2


def test_bad_arguments(capsys):
    assert main([]) == 2
    assert main(["nothing"]) == 2
    assert "unknown benchmark 'nothing'" in capsys.readouterr().err
    for argv in (["kv", "--against", "vllm"], ["kv", "--rounds", "0"]):
        with pytest.raises(SystemExit):
            main(argv)
