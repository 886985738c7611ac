"""Replay recorded traces of vLLM's KV cache manager through minipaged's, and compare every field of every answer.

    python -m tests.conformance.replay FILE...

The traces were recorded from vLLM 0.32.0 (one full-attention group, sha256, block 0 reserved). Prints
`N traces, M steps, 0 differences` and exits 0, or the first difference of each trace and exits 1.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from minipaged.kv_cache import CacheRequest, KVCacheManager


class Driver:
    """Does to our manager what the recorder did to vLLM's."""

    def __init__(self, config: dict) -> None:
        self.manager = KVCacheManager(**config)
        self.requests: dict[str, CacheRequest] = {}

    def answer(self, op: dict) -> dict:
        """Carry out one operation; its answer has the fields of the recorded one."""
        special = getattr(self, op["name"])(**{key: value for key, value in op.items() if key != "name"})
        pool = self.manager.pool
        return {
            **special,
            "num_free": pool.num_free_blocks,
            "free_queue": [block.block_id for block in pool.free_queue],
            "ref_cnt": [block.ref_cnt for block in pool.blocks],
        }

    def arrive(self, request: str, prompt: list[int], cache_salt: str | None) -> dict:
        self.requests[request] = CacheRequest(request, prompt, cache_salt=cache_salt)
        return {}

    def prefill(self, request: str, num_new_tokens: int) -> dict:
        req = self.requests[request]
        blocks, hit = self.manager.get_computed_blocks(req)
        ok = self.manager.allocate_slots(req, num_new_tokens, hit, blocks) is not None
        if ok:
            req.num_computed_tokens = hit + num_new_tokens
        return {"hit": hit, "ok": ok, "block_ids": self.manager.block_ids(request) if ok else None}

    def extend(self, request: str, num_new_tokens: int) -> dict:
        req = self.requests[request]
        ok = self.manager.allocate_slots(req, num_new_tokens) is not None
        if ok:
            req.num_computed_tokens += num_new_tokens
        return {"ok": ok, "block_ids": self.manager.block_ids(request)}

    def append(self, request: str, token: int) -> dict:
        self.requests[request].append_token(token)
        return {}

    def preempt(self, request: str) -> dict:
        req = self.requests[request]
        self.manager.free(req)
        req.num_computed_tokens = 0
        return {}

    def finish(self, request: str) -> dict:
        self.manager.free(self.requests.pop(request))
        return {}

    def reset_prefix_cache(self) -> dict:
        return {"ok": self.manager.reset_prefix_cache()}


def first_difference(trace: dict) -> str | None:
    """The first step and field in which the two managers differ, or None. Also proves integrity after every step."""
    driver = Driver(trace["config"])
    for number, step in enumerate(trace["steps"]):
        expected, got = step["answer"], driver.answer(step["op"])
        driver.manager.check_integrity()
        for field in sorted(expected.keys() | got.keys()):
            if expected.get(field, "(absent)") != got.get(field, "(absent)"):
                return (
                    f"step {number} ({step['op']['name']}), field {field}: "
                    f"expected {expected.get(field, '(absent)')}, got {got.get(field, '(absent)')}"
                )
    return None


def main(paths: Sequence[str]) -> int:
    if not paths:
        print("no trace given; usage: python -m tests.conformance.replay FILE...", file=sys.stderr)
        return 2
    steps = differences = 0
    for path in paths:
        trace = json.loads(Path(path).read_text())
        steps += len(trace["steps"])
        difference = first_difference(trace)
        if difference is not None:
            differences += 1
            print(f"{path}: {difference}")
    print(f"{len(paths)} traces, {steps} steps, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
