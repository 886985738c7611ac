"""The scheduler: at every step it decides anew who runs, who waits and who must give back blocks.

Iteration-level scheduling is Orca's idea (Yu et al., OSDI 2022): after each step finished requests leave and new ones
enter. All-or-nothing eviction of the newest is the paper's (Kwon et al., SOSP 2023, §4.5). There is no separate
prefill phase: a request has tokens that are not computed yet, one or many, as in vLLM V1
(vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from bisect import insort

from minipaged.kv_cache import KVCacheManager
from minipaged.serving.protocols import Decision, SchedulerConfig, SchedulerOutput
from minipaged.serving.request import Request, RequestStatus


class OutOfBlocksError(RuntimeError):
    """A request is alone in the pool and still finds no block. Some part has lost blocks."""


class Scheduler:
    """First come, first served (or by priority), chunked prefill, preemption of the newest.

    Both lists are sorted by ``Request.key``. Why nobody starves and nothing loops for ever: the running request
    with the smallest key is served first and may take the blocks of all others; nobody may overtake the first of
    the waiting; and a request that does not fit into the whole pool was refused at the door. So the smallest key
    always gets on, finishes, and hands the role to the next. (The paper preempts all sequences of a prompt together.
    Here each is on its own; the same argument holds for beams, because all beams of a prompt fit into the pool.)
    """

    def __init__(self, config: SchedulerConfig, manager: KVCacheManager, swap_space=None) -> None:
        self.config = config
        self.manager = manager
        self.swap_space = swap_space
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.watermark_blocks = int(config.watermark * manager.pool.num_blocks)
        self.step = 0

    def add_request(self, request: Request) -> None:
        insort(self.waiting, request, key=_key)

    def schedule(self) -> SchedulerOutput:
        """One step: the running ones first, oldest first; then, if nobody was preempted, the waiting ones."""
        self.step += 1
        output = SchedulerOutput(step=self.step)
        budget = self._schedule_running(output, self.config.max_num_batched_tokens)
        if not output.preempted:  # who was just preempted would be admitted and preempted again
            self._schedule_waiting(output, budget)
        elif self.config.trace:
            self._note_waiting(output, "blocks are short: somebody was preempted in this step")
        return output

    def fork_request(self, parent: Request, child: Request) -> None:
        self.manager.fork(parent, child)
        child.status = RequestStatus.RUNNING
        insort(self.running, child, key=_key)

    def finish_request(self, request: Request) -> None:
        """Leave the queue, and give back blocks and swap slots. Fine in every state, also before any allocation."""
        queue = self.running if request.status is RequestStatus.RUNNING else self.waiting
        if request in queue:
            queue.remove(request)
        if self.swap_space is not None:
            self.swap_space.release(request.request_id)
        self.manager.free(request)

    # Running requests

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> int:
        """Returns what is left of the token budget."""
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            num_tokens = min(request.num_uncomputed_tokens, budget)
            index += 1
            if num_tokens == 0:
                self._note(output, "idle", request, request.num_tokens, "a beam that waits for its siblings")
                continue
            while self.manager.allocate_slots(request, num_tokens) is None:
                victim = self.running[-1]  # the newest: it comes after ``request``, or it is ``request``
                self._preempt(victim, request, output)
                if victim is request:
                    return budget
            output.add(request, num_tokens)
            budget -= num_tokens
            self._note(output, "run", request, num_tokens, "running")
        for request in self.running[index:]:
            self._note(output, "idle", request, request.num_tokens, "older ones have spent the token budget")
        return budget

    def _preempt(self, victim: Request, asking: Request, output: SchedulerOutput) -> None:
        """Take all blocks of ``victim``; the paper's all-or-nothing. Its tokens so far are kept."""
        if len(self.running) == 1:
            raise OutOfBlocksError(
                f"request {asking.request_id} runs alone and needs a block for token {asking.num_computed_tokens}, "
                f"but {self.manager.num_free_blocks} of {self.manager.num_usable_blocks} blocks are free. It was "
                "admitted because the whole pool is enough for it: so blocks were lost. check_integrity() of "
                "the manager says which; if you plugged in a part of your own, look at its free path first"
            )
        swapped = self.config.preemption == "swap" and self._swap_out(victim, output)
        self.manager.free(victim)
        if not swapped:
            victim.num_computed_tokens = 0
        victim.status = RequestStatus.SWAPPED if swapped else RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        self.running.remove(victim)
        insort(self.waiting, victim, key=_key)
        output.preempted.append(victim)
        reason = "no block is free, and it is the newest"
        if victim is not asking:
            reason = f"{asking.request_id} needs a block and is older"
        self._note(output, "swap_out" if swapped else "preempt", victim, victim.num_tokens, reason)

    # Waiting requests

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        """Admit from the front for as long as it goes. The first that does not fit stops all behind it."""
        while self.waiting and budget > 0:
            request = self.waiting[0]
            num_tokens, reason = self._admit(request, output, budget)
            if not num_tokens:
                self._note_waiting(output, reason)
                return
            budget -= num_tokens
        if self.waiting:
            self._note_waiting(output, "the token budget is spent")

    def _admit(self, request: Request, output: SchedulerOutput, budget: int) -> tuple[int, str]:
        """Try to start a request. Returns (its tokens in this step, ""), or (0, why it must wait)."""
        if not self._has_seat(request):
            return 0, f"all {self.config.max_num_seqs} seats (max_num_seqs) are taken"
        swapped = request.status is RequestStatus.SWAPPED
        # A swapped sequence gets new blocks for all its tokens, and their content is copied back.
        hit_blocks, hit = ([], 0) if swapped else self.manager.get_computed_blocks(request)
        restored = request.num_computed_tokens if swapped else 0
        wanted = request.num_tokens - hit - restored
        if wanted > budget and not self.config.enable_chunked_prefill:
            return 0, f"its {wanted} tokens exceed the budget's rest of {budget}, and chunked prefill is off"
        num_tokens = min(wanted, budget)
        free = self._free_after(hit_blocks, hit + restored + num_tokens)
        if output.scheduled and 0 <= free < self.watermark_blocks:
            return 0, f"it would leave {free} blocks free, fewer than the watermark of {self.watermark_blocks}"
        request.num_computed_tokens = 0
        got = self.manager.allocate_slots(request, restored + num_tokens, hit, hit_blocks)
        request.num_computed_tokens = hit + restored
        if got is None:
            there = self.manager.num_free_blocks
            return 0, f"it needs {there - free} blocks, and {there} {'is' if there == 1 else 'are'} free"
        if swapped:
            self._swap_in(request, output)
        self.waiting.pop(0)
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=_key)
        output.add(request, num_tokens)
        output.admitted.append(request)
        self._note(output, "swap_in" if swapped else "admit", request, num_tokens, f"{hit} tokens cached")
        return num_tokens, ""

    def _has_seat(self, request: Request) -> bool:
        """A group takes all its seats when its first sequence is admitted, so its forks always find one."""
        seats = {r.group.request_id: r.group.seats for r in self.running}
        seats[request.group.request_id] = request.group.seats
        return sum(seats.values()) <= self.config.max_num_seqs

    def _free_after(self, hit_blocks: list, num_tokens: int) -> int:
        """Free blocks that would be left if ``num_tokens`` tokens, the hit ones included, had their blocks."""
        missing = -(-num_tokens // self.manager.block_size) - len(hit_blocks)
        revived = sum(block.ref_cnt == 0 for block in hit_blocks)  # free now, in use then
        return self.manager.num_free_blocks - missing - revived

    # Swap: the scheduler plans, the engine moves the data

    def _swap_out(self, victim: Request, output: SchedulerOutput) -> bool:
        """Plan to save all blocks of a sequence. False: the swap space has no room, so recompute."""
        # With no token left to compute, the last one is computed again on return: its logits are needed.
        victim.num_computed_tokens = min(victim.num_computed_tokens, victim.num_tokens - 1)
        num_blocks = -(-victim.num_computed_tokens // self.manager.block_size)
        slots = self.swap_space.reserve(victim.request_id, num_blocks) if num_blocks else None
        if slots is None:
            output.num_swap_fallbacks += 1
            return False
        output.swap_out += zip(self.manager.block_ids(victim.request_id), slots, strict=False)
        return True

    def _swap_in(self, request: Request, output: SchedulerOutput) -> None:
        slots = self.swap_space.slots(request.request_id)
        output.swap_in += zip(slots, self.manager.block_ids(request.request_id), strict=False)
        output.swapped_in.append(request)

    # Trace

    def _note(self, output: SchedulerOutput, action: str, request: Request, num_tokens: int, reason: str) -> None:
        if self.config.trace:
            output.decisions.append(Decision(self.step, action, request.request_id, num_tokens, reason))

    def _note_waiting(self, output: SchedulerOutput, reason: str) -> None:
        """Why the first one waits, and that the others wait for it: nobody overtakes."""
        if not self.config.trace:
            return
        preempted = {request.request_id for request in output.preempted}
        for place, request in enumerate(self.waiting):
            if request.request_id not in preempted:
                behind = f"behind {self.waiting[0].request_id}"
                self._note(output, "wait", request, request.num_tokens, behind if place else reason)


def _key(request: Request) -> tuple:
    return request.key
