"""`minipaged bench generate`: decoding on the CPU beside other engines, and beside what the machine can do at best."""

from minipaged.bench.generate.command import main

__all__ = ["main"]
