"""Benchmarks: figures that anyone can reproduce, beside a peer or a limit in the same run.

`minipaged bench kv | attention | fragmentation | serve | generate` — see benchmarks/README.md for the method.
"""

from minipaged.bench.command import main

__all__ = ["main"]
