"""A benchmark client for any OpenAI-compatible server: minipaged's own, vLLM, SGLang.

`run_workload` sends a workload to a server and returns a `ServeResult`; `comparison` puts several side by side.
On the command line: `minipaged bench serve --base-url URL --workload A`.
"""

from minipaged.bench.serve.client import ServerProblem
from minipaged.bench.serve.command import main
from minipaged.bench.serve.report import comparison
from minipaged.bench.serve.run import ServeResult, run_workload

__all__ = ["ServeResult", "ServerProblem", "comparison", "main", "run_workload"]
