"""Month 5's helpers: orders on the real scheduler, step by step, and one step followed through all parts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from minipaged.course.words import counted
from minipaged.serving import LLM, SamplingParams, Scheduler
from minipaged.serving.protocols import SchedulerOutput
from minipaged.serving.request import Request

# ── orders, and a model that counts down ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Order:
    """One request of a burger shop: a prompt, an answer of a length that only the model knows, and when it comes."""

    name: str
    steps: int  # tokens of the answer, the end-of-sequence token included
    prompt_tokens: int = 1
    arrival: int = 0  # steps before it arrives


class CountdownModel:
    """A model whose next token is the last one minus 1, and 0 ends the text: a prompt that ends in 5 is answered with
    4, 3, 2, 1, 0.

    So the length of every answer is known to us and to nobody else: scheduler, cache manager and engine are the real
    ones. It stores nothing, because a countdown needs no memory; the blocks are counted all the same.
    """

    def __init__(self, longest: int = 4096) -> None:
        self.config = SimpleNamespace(
            vocab_size=512, num_layers=1, num_kv_heads=1, head_dim=1, max_position_embeddings=longest, eos_token_id=0
        )

    def forward(self, token_ids, positions, storage, metadata, backend):
        return token_ids

    def compute_logits(self, hidden):
        return torch.nn.functional.one_hot((hidden - 1).clamp(min=0), self.config.vocab_size).float()


@dataclass(frozen=True)
class Cell:
    """What one request does in one step. `kind`: waits, prefill, decode, again (with tokens that were computed
    before), idle (the step's budget was spent), holds, preempted, swapped."""

    kind: str
    num_tokens: int = 0
    reason: str = ""


@dataclass
class Schedule:
    """What a scheduler did with some orders, step by step; made by `serve_orders`."""

    name: str
    orders: Sequence[Order]
    num_blocks: int
    rows: dict[str, dict[int, Cell]] = field(default_factory=dict)  # order → step → cell
    used_blocks: list[int] = field(default_factory=list)  # one entry a step
    first_token: dict[str, int] = field(default_factory=dict)
    last_token: dict[str, int] = field(default_factory=dict)
    llm: LLM | None = None

    @property
    def num_steps(self) -> int:
        return len(self.used_blocks)

    def count(self, *kinds: str) -> int:
        """Cells of these kinds, over all steps."""
        return sum(cell.kind in kinds for row in self.rows.values() for cell in row.values())

    @property
    def computed_tokens(self) -> int:
        return sum(cell.num_tokens for row in self.rows.values() for cell in row.values())

    @property
    def repeated_tokens(self) -> int:
        """Tokens computed again. The last token of an answer is never computed: it is no input of any step."""
        return self.computed_tokens - sum(order.prompt_tokens + order.steps - 1 for order in self.orders)

    @property
    def mean_end(self) -> float:
        return statistics.fmean(self.last_token.values())


def serve_orders(
    orders: Sequence[Order],
    scheduler: type[Scheduler] = Scheduler,
    name: str = "",
    *,
    seats: int = 256,
    budget: int = 2048,
    num_blocks: int = 256,
    block_size: int = 4,
    longest: int = 64,
    max_steps: int = 400,
    **options,
) -> Schedule:
    """Run orders through the real engine with this scheduler and write down what happened in each step.

    `longest` is what a request may ask for at most (its max_tokens): a system without paging must reserve it.
    Stops after `max_steps`: a scheduler that is wrong on purpose may go on for ever.
    """
    llm = LLM(
        (CountdownModel(), None),
        num_blocks=num_blocks,
        block_size=block_size,
        attention="reference",
        enable_prefix_caching=False,
        parts={"scheduler": scheduler},
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        watermark=0.0,
        trace=True,
        check_integrity=True,
        **options,
    )
    schedule = Schedule(name, orders, num_blocks, {order.name: {} for order in orders}, llm=llm)
    coming = sorted(orders, key=lambda order: order.arrival)
    reader = _TraceReader(schedule)
    while (coming or llm.engine.has_unfinished_requests()) and schedule.num_steps < max_steps:
        while coming and coming[0].arrival <= schedule.num_steps:
            order = coming.pop(0)
            prompt = [1] * (order.prompt_tokens - 1) + [order.steps]
            llm.engine.add_request(prompt, SamplingParams(max_tokens=longest), order.name, stream=True)
        before = len(llm.engine.trace)
        counted = llm.stats.num_steps
        grown = llm.engine.step()
        reader.read(llm.engine.trace[before:], ran=llm.stats.num_steps > counted)
        for output in grown:
            schedule.first_token.setdefault(output.request_id, schedule.num_steps)
            schedule.last_token[output.request_id] = schedule.num_steps
    return schedule


class _TraceReader:
    """Turns the engine's trace into cells: it must remember what was computed once already."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.prompt = {order.name: order.prompt_tokens for order in schedule.orders}
        self.computed = dict.fromkeys(self.prompt, 0)
        self.furthest = dict.fromkeys(self.prompt, 0)

    def read(self, decisions: Sequence, ran: bool) -> None:
        """The decisions of one step. ``ran``: somebody ran in it, so that the engine counted it."""
        schedule, step = self.schedule, self.schedule.num_steps + 1
        for action, name, tokens, reason in (decision[1:] for decision in decisions):
            if action in ("admit", "run", "swap_in"):
                kind = self._kind(name)
                self.computed[name] += tokens
                self.furthest[name] = max(self.furthest[name], self.computed[name])
                schedule.rows[name][step] = Cell(kind, tokens, reason)
            elif action in ("preempt", "swap_out"):
                self.computed[name] = 0 if action == "preempt" else self.computed[name]
                schedule.rows[name][step] = Cell("preempted" if action == "preempt" else "swapped", 0, reason)
            elif action == "wait":
                schedule.rows[name][step] = Cell("waits", 0, reason)
            elif action in ("idle", "hold"):
                schedule.rows[name][step] = Cell("idle" if action == "idle" else "holds", 0, reason)
        llm = schedule.llm
        for request in llm.engine.scheduler.running:  # a learner's scheduler need not write down who was idle
            schedule.rows[request.request_id].setdefault(step, Cell("idle"))
        manager = llm.engine.manager
        now = manager.num_usable_blocks - manager.num_free_blocks
        # Where somebody ran, the engine counted before those who ended gave their blocks back.
        schedule.used_blocks.append(llm.stats.history[-1].used_blocks if ran else now)

    def _kind(self, name: str) -> str:
        if self.computed[name] < self.furthest[name]:
            return "again"
        return "prefill" if self.computed[name] < self.prompt[name] else "decode"


# ── one step, followed ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Message:
    """Who tells whom what."""

    sender: str
    receiver: str
    words: str

    @property
    def answer(self) -> bool:
        """True for what comes back after a question or an order."""
        return self.sender in ("manager", "model") or (self.sender, self.receiver) == ("worker", "scheduler")


@dataclass
class FollowedStep:
    """One step of an engine: the messages in order, and the flat batch, one row a token."""

    messages: list[Message] = field(default_factory=list)
    batch: list[list[object]] = field(default_factory=list)  # [request, token, position, slot]


def follow_step(llm: LLM) -> FollowedStep:
    """Let the engine take one step, and listen to its parts."""
    engine, manager, runner = llm.engine, llm.engine.manager, llm.engine.runner
    step, text = FollowedStep(), llm.tokenizer.decode
    say = lambda *words: step.messages.append(Message(*words))  # noqa: E731

    def get_computed_blocks(request):
        blocks, hit = type(manager).get_computed_blocks(manager, request)
        found = [block.block_id for block in blocks]
        say("scheduler", "manager", f"get_computed_blocks({request.request_id})")
        say("manager", "scheduler", f"{counted(hit, 'token')} hit, in blocks {found}" if hit else "nothing hits")
        return blocks, hit

    def allocate_slots(request, num_new_tokens, hit=0, *rest):
        got = type(manager).allocate_slots(manager, request, num_new_tokens, hit, *rest)
        behind = f", behind {hit} hit" if hit else ""
        say("scheduler", "manager", f"allocate_slots({request.request_id}, {num_new_tokens}{behind})")
        new = "None: too few blocks are free" if got is None else f"new blocks {[block.block_id for block in got]}"
        say("manager", "scheduler", new if got is None or got else "no new block needed")
        return got

    def prepare(output: SchedulerOutput):
        say("scheduler", "worker", f"run {output.num_scheduled_tokens}")
        batch = type(runner).prepare(runner, output)
        tokens, positions, metadata = (part.tolist() if isinstance(part, torch.Tensor) else part for part in batch)
        owners = [r.request_id for r in output.scheduled for _ in range(output.num_scheduled_tokens[r.request_id])]
        slots = metadata.slot_mapping.tolist()
        step.batch = [list(row) for row in zip(owners, map(text, ([t] for t in tokens)), positions, slots, strict=True)]
        say("worker", "model", f"{counted(len(tokens), 'token')}, no padding")
        say("worker", "model", f"write K, V to slots {_short(slots)}")
        say("worker", "model", f"read {metadata.seq_lens.tolist()} tokens by block tables")
        return batch

    def execute(*batch):
        logits = type(runner).execute(runner, *batch)
        say("model", "worker", f"logits of {len(logits)} rows × {logits.shape[1]} tokens")
        return logits

    def append(request: Request, token: int):
        say("worker", "scheduler", f"{request.request_id} grows by {text([token])!r}")
        type(engine.processor)._append(engine.processor, request, token)

    def free(request):
        blocks = manager.block_ids(request.request_id)
        type(manager).free(manager, request)
        say("scheduler", "manager", f"free({request.request_id}): blocks {blocks}")

    ears = {
        manager: (get_computed_blocks, allocate_slots, free),
        runner: (prepare, execute),
    }
    for part, functions in ears.items():
        for function in functions:
            setattr(part, function.__name__, function)
    engine.processor._append = append
    try:
        engine.step()
    finally:
        for part, functions in ears.items():
            for function in functions:
                delattr(part, function.__name__)
        del engine.processor._append
    return step


def _short(numbers: Sequence[int], most: int = 3) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return f"[{shown}, …]" if len(numbers) > most else f"[{shown}]"
