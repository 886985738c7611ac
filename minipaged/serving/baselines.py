"""How batches were made before iteration-level scheduling: two baselines for the lesson, on the same engine.

Source of the comparison: Yu et al., "Orca", OSDI 2022, §2 and §3.1. Give one as ``LLM(parts={"scheduler": …})``.
"""

from __future__ import annotations

from minipaged.serving.protocols import SchedulerOutput
from minipaged.serving.request import Request
from minipaged.serving.scheduler import Scheduler


class RequestLevelScheduler(Scheduler):
    """A batch is taken when the engine is idle, and nobody enters before all of it have ended.

    A sequence that ends early leaves; its seat stays empty until the longest one is done.
    """

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        if self.running:
            self._note_waiting(output, "a batch is running: the next one starts when all of it have ended")
        else:
            super()._schedule_waiting(output, budget)


class StaticBatchScheduler(RequestLevelScheduler):
    """The same, with memory as before paging: a batch is only as large as the longest possible text of each allows,
    and a sequence that ends early keeps its seat and its blocks until the whole batch has ended.

    So nothing is ever preempted, and the pool is mostly promised and not used.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.ended: list[Request] = []  # finished, their blocks still taken
        self.promised_blocks = 0

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        for request in self.ended:
            self._note(output, "hold", request, 0, "ended; seat and blocks stay taken until the batch has ended")
        return output

    def _admit(self, request: Request, output: SchedulerOutput, budget: int) -> tuple[int, str]:
        group = request.group
        longest = group.seats * -(-(group.max_total_tokens - 1) // self.manager.block_size)
        promised = self.promised_blocks if self.running else 0
        if self.running and promised + longest > self.manager.num_usable_blocks:
            return 0, f"{promised} of {self.manager.num_usable_blocks} blocks are promised, it may need {longest} more"
        num_tokens, reason = super()._admit(request, output, budget)
        if num_tokens:
            self.promised_blocks = promised + longest
        return num_tokens, reason

    def finish_request(self, request: Request) -> None:
        if request not in self.running:
            super().finish_request(request)
            return
        self.running.remove(request)
        self.ended.append(request)
        if not self.running:  # the last one: the batch has ended
            for ended in self.ended:
                super().finish_request(ended)
            self.ended.clear()
