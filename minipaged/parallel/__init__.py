"""Month 7: one engine on several ranks. Each rank holds its heads of every block; one block table is for all.

torchrun --nproc-per-node 2 -m minipaged.parallel.generate "Four score and seven years ago our"
"""

from minipaged.parallel.engine import ParallelLLM, Shard, StepPlan, serve
from minipaged.parallel.group import RankGroup, join, join_from_torchrun
from minipaged.parallel.launch import run_ranks
from minipaged.parallel.layout import ParallelLayout, ParallelSizeError
from minipaged.parallel.protocols import TensorParallelAttention
from minipaged.parallel.run import ParallelRun, RankReport, generate_parallel, run_parallel
from minipaged.parallel.watch import RankError

__all__ = [
    "ParallelLLM",
    "ParallelLayout",
    "ParallelRun",
    "ParallelSizeError",
    "RankError",
    "RankGroup",
    "RankReport",
    "Shard",
    "StepPlan",
    "TensorParallelAttention",
    "generate_parallel",
    "join",
    "join_from_torchrun",
    "run_parallel",
    "run_ranks",
    "serve",
]
