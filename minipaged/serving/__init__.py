"""Month 5: the engine that serves many requests at once. ``LLM("tiny").generate(…)`` is the shortest way in."""

from minipaged.serving.engine import EngineStuckError, LLMEngine
from minipaged.serving.llm import LLM
from minipaged.serving.metrics import EngineStats, StepStats
from minipaged.serving.outputs import CompletionOutput, RequestOutput
from minipaged.serving.protocols import Decision, SchedulerConfig, SchedulerOutput
from minipaged.serving.request import Request, RequestStatus
from minipaged.serving.sampling import BeamSearchParams, SamplingParams
from minipaged.serving.scheduler import OutOfBlocksError, Scheduler

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "Decision",
    "EngineStats",
    "EngineStuckError",
    "LLMEngine",
    "OutOfBlocksError",
    "Request",
    "RequestOutput",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutput",
    "StepStats",
]
