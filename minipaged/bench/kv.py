"""`minipaged bench kv`: the pool, the prefix cache and the manager, alone or beside vLLM's own."""

from pathlib import Path
from statistics import median

from minipaged.bench import kv_rows
from minipaged.bench.process import PeerProcess
from minipaged.kv_cache import BlockHasher, BlockPool, CacheRequest, KVCacheManager

PEER_SCRIPTS = {"vllm": "peer_vllm_kv.py"}


class OurAdapter:
    """minipaged's manager behind the adapter of kv_rows.py."""

    name = "minipaged"

    def make_pool(self, num_blocks: int, caching: bool) -> BlockPool:
        return BlockPool(num_blocks, caching, null_block=True)

    def get(self, pool: BlockPool, n: int) -> list:
        return pool.get_new_blocks(n)

    def free(self, pool: BlockPool, blocks: list) -> None:
        pool.free_blocks(blocks)

    def touch(self, pool: BlockPool, blocks: list) -> None:
        pool.touch(blocks)

    def fill_cache(self, pool: BlockPool, n: int) -> list[bytes]:
        blocks = pool.get_new_blocks(n)
        keys = [i.to_bytes(32, "big") for i in range(n)]
        for key, block in zip(keys, blocks, strict=True):
            pool.prefix_cache.insert(key, block)
        pool.free_blocks(blocks)
        return keys

    def lookup(self, pool: BlockPool, keys: list[bytes]) -> list:
        return [pool.prefix_cache.lookup(key) for key in keys]

    def hash_block(self, algorithm: str) -> BlockHasher:
        return BlockHasher(algorithm)

    def make_manager(self, num_blocks: int, block_size: int) -> KVCacheManager:
        return KVCacheManager(num_blocks, block_size, null_block=True)

    def make_request(self, manager: KVCacheManager, name: str, prompt: list[int]) -> CacheRequest:
        return CacheRequest(name, prompt)

    def prefill(self, manager: KVCacheManager, request: CacheRequest) -> bool:
        blocks, hit = manager.get_computed_blocks(request)
        n = request.num_tokens - hit
        if manager.allocate_slots(request, n, hit, blocks) is None:
            return False
        request.num_computed_tokens = hit + n
        return True

    def decode(self, manager: KVCacheManager, request: CacheRequest, token: int) -> bool:
        if request.num_computed_tokens == request.num_tokens:
            request.append_token(token)
        if manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True

    def finish(self, manager: KVCacheManager, request: CacheRequest) -> None:
        manager.free(request)


class Peer(PeerProcess):
    """Another interpreter that answers one group of rows at a time."""

    def __init__(self, name: str, python: str) -> None:
        if name not in PEER_SCRIPTS:
            raise ValueError(f"peer {name!r} is unknown for kv; choose one of {', '.join(PEER_SCRIPTS)}")
        super().__init__(python, Path(__file__).parent / PEER_SCRIPTS[name])

    def rows(self, group: str) -> dict[str, float]:
        """Seconds of each row of a group."""
        return self.ask(group)


def run(rounds: int = 3, peer: Peer | None = None) -> dict[str, dict[str, list[float]]]:
    """Seconds of every row and round: {row: {"minipaged": [...], peer's name: [...]}}, measured in alternation."""
    ours = OurAdapter()
    results: dict[str, dict[str, list[float]]] = {}
    for group, measure in kv_rows.GROUPS.items():
        for _ in range(rounds):
            for name, rows in ((ours.name, measure(ours)), (peer.name, peer.rows(group)) if peer else (None, {})):
                for row, seconds in rows.items():
                    results.setdefault(row, {}).setdefault(name, []).append(seconds)
    return results


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """The medians in microseconds, and the peer's time over ours."""
    names = list(dict.fromkeys(name for row in results.values() for name in row))
    lines = [f"{'microseconds':<40}" + "".join(f"{name:>16}" for name in names) + ("   ratio" if names[1:] else "")]
    for row, columns in results.items():
        middle = [median(columns[name]) * 1e6 for name in names if name in columns]
        line = f"{row:<40}" + "".join(f"{value:>16,.2f}" for value in middle)
        lines.append(line + (f"{middle[1] / middle[0]:>8.2f}" if middle[1:] else ""))
    return "\n".join(lines)
