"""Month 5: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong

STATIC = """
def static_steps(lengths, width):
    return sum(max(lengths[start : start + width]) for start in range(0, len(lengths), width))
"""
CONTINUOUS = """
def continuous_steps(lengths, width):
    seats = [0] * width
    for length in lengths:
        first = seats.index(min(seats))
        seats[first] += length
    return max(seats)
"""
GIVE_BACK = """
def give_back(pool, table):
    pool.free_blocks(table.clear()[::-1])
"""
SWAP = """
def swap_seconds(num_tokens, block_size, costs):
    num_blocks = -(-num_tokens // block_size)
    overhead = costs.transfers_per_block * costs.seconds_per_transfer
    return 2 * num_blocks * (overhead + block_size * costs.bytes_per_token / costs.bytes_per_second)
"""
AGAIN = """
def recompute_seconds(num_tokens, costs):
    return num_tokens / costs.prefill_per_second
"""
SCHEDULER = """
class MyScheduler:
    def __init__(self, config, manager):
        self.config, self.manager = config, manager
        self.waiting, self.running = [], []

    def fork_request(self, parent, child):
        self.manager.fork(parent, child)
        self.running.append(child)

    def add_request(self, request):
        self.waiting.append(request)

    def finish_request(self, request):
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        self.manager.free(request)

    def preempt(self, victim, output):
        self.manager.free(victim)
        victim.num_computed_tokens = 0
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        output.preempted.append(victim)

    def schedule(self):
        output = SchedulerOutput()
        budget = self.config.max_num_batched_tokens
        for request in list(self.running):
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if num_tokens == 0:
                break
            while request in self.running and self.manager.allocate_slots(request, num_tokens) is None:
                self.preempt(self.running[-1], output)
            if request not in self.running:
                break
            output.add(request, num_tokens)
            budget -= num_tokens
        while self.waiting and budget and not output.preempted and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if self.manager.allocate_slots(request, num_tokens) is None:
                break
            self.running.append(self.waiting.pop(0))
            output.admitted.append(request)
            output.add(request, num_tokens)
            budget -= num_tokens
        return output
"""


def changed(code: str, old: str, new: str, *more: tuple[str, str]) -> str:
    """The code with one place changed (or several): what a learner might have written instead."""
    for before, after in ((old, new), *more):
        assert code.count(before) == 1, before
        code = code.replace(before, after)
    return code


ANSWERS = [
    Wrong("5.1", "one after the other", "Slots run in parallel", STATIC + """
def continuous_steps(lengths, width):
    return sum(lengths)
"""),
    Wrong("5.1", "adds up within the batch", "Slots run in parallel", """
def static_steps(lengths, width):
    return sum(sum(lengths[start : start + width]) for start in range(0, len(lengths), width))
""" + CONTINUOUS),
    Wrong("5.1", "static for both", "as soon as one is free", STATIC + """
def continuous_steps(lengths, width):
    return sum(max(lengths[start : start + width]) for start in range(0, len(lengths), width))
"""),
    Wrong("5.1", "continuous for both", "until the whole batch has ended", """
def static_steps(lengths, width):
    seats = [0] * width
    for length in lengths:
        seats[seats.index(min(seats))] += length
    return max(seats)
""" + CONTINUOUS),
    Wrong("5.1", "the longest alone", "there are width seats", STATIC + """
def continuous_steps(lengths, width):
    return max(lengths, default=0)
"""),
    Wrong("5.1", "the longest goes first", "First come, first served", STATIC + """
def continuous_steps(lengths, width):
    seats = [0] * width
    for length in sorted(lengths, reverse=True):
        first = seats.index(min(seats))
        seats[first] += length
    return max(seats)
"""),
    Wrong("5.1", "the longest of all as a static batch", "The longest of all", CONTINUOUS + """
def static_steps(lengths, width):
    return max(lengths, default=0)
"""),
    Wrong("5.1", "spreads one answer over the seats", "cannot be cut", STATIC + """
def continuous_steps(lengths, width):
    return -(-sum(lengths) // width)
"""),
    Alternative("5.1", "step by step", """
def static_steps(lengths, width):
    steps, rest = 0, list(lengths)
    while rest:
        batch, rest = rest[:width], rest[width:]
        while any(batch):
            batch = [max(0, left - 1) for left in batch]
            steps += 1
    return steps


def continuous_steps(lengths, width):
    steps, waiting, running = 0, list(lengths), []
    while waiting or running:
        while waiting and len(running) < width:
            running.append(waiting.pop(0))
        running = [left - 1 for left in running if left > 1]
        steps += 1
    return steps
"""),
    Wrong("5.2", "counts the longest, too", "The longest needs none", "padding, places = 15, 30"),
    Wrong("5.2", "the filled places", "The empty ones are asked for", "padding, places = 18, 30"),
    Wrong("5.2", "places without the padding", "the padding, too", "padding, places = 12, 18"),
    Wrong("5.2", "the other way round", "first the padding", "padding, places = 30, 12"),
    Alternative("5.2", "computed", """
lengths = [3, 5, 10]
places = len(lengths) * max(lengths)
padding = places - sum(lengths)
"""),
    Wrong("5.3", "the prompt first", "Decodes first", """
def chunks(num_prompt_tokens, num_decodes, budget):
    return [min(budget, num_prompt_tokens - start) for start in range(0, num_prompt_tokens, budget)]
"""),
    Wrong("5.3", "the last chunk is a whole one", "what is left of the prompt", """
def chunks(num_prompt_tokens, num_decodes, budget):
    room = budget - num_decodes
    return [room] * -(-num_prompt_tokens // room)
"""),
    Wrong("5.3", "equal parts", "Not in equal parts", """
def chunks(num_prompt_tokens, num_decodes, budget):
    count = -(-num_prompt_tokens // (budget - num_decodes))
    return [num_prompt_tokens // count] * count
"""),
    Wrong("5.3", "nothing left: an empty list", "say so instead of looping", """
def chunks(num_prompt_tokens, num_decodes, budget):
    room = budget - num_decodes
    return [min(room, num_prompt_tokens - start) for start in range(0, num_prompt_tokens, room)] if room > 0 else []
"""),
    Wrong("5.3", "nothing left: loops for ever", "say so instead of looping", """
def chunks(num_prompt_tokens, num_decodes, budget):
    pieces = []
    while num_prompt_tokens > 0:
        pieces.append(min(budget - num_decodes, num_prompt_tokens))
        num_prompt_tokens -= pieces[-1]
    return pieces
"""),
    Wrong("5.3", "an error without numbers", "say so instead of looping", """
def chunks(num_prompt_tokens, num_decodes, budget):
    room = budget - num_decodes
    if room <= 0:
        raise ValueError("no room")
    return [min(room, num_prompt_tokens - start) for start in range(0, num_prompt_tokens, room)]
"""),
    Alternative("5.3", "divmod", """
def chunks(num_prompt_tokens, num_decodes, budget):
    if budget <= num_decodes:
        raise ValueError(f"a budget of {budget} is eaten up by {num_decodes} decodes")
    whole, rest = divmod(num_prompt_tokens, budget - num_decodes)
    return [budget - num_decodes] * whole + [rest] * (rest > 0)
"""),
    Wrong("5.4", "takes blocks until there are none", "Check before popping", """
def allocate(pool, table, num_tokens):
    new = []
    for _ in range(table.num_missing_blocks(num_tokens)):
        if pool.num_free_blocks == 0:
            return None
        new += pool.get_new_blocks(1)
    table.append_blocks(new)
    return new
"""),
    Wrong("5.4", "as many as there are", "Check before popping", """
def allocate(pool, table, num_tokens):
    new = pool.get_new_blocks(min(table.num_missing_blocks(num_tokens), pool.num_free_blocks))
    table.append_blocks(new)
    return new
"""),
    Wrong("5.4", "takes them back in another order", "Check before popping", """
def allocate(pool, table, num_tokens):
    new = []
    for _ in range(table.num_missing_blocks(num_tokens)):
        if pool.num_free_blocks == 0:
            pool.free_blocks(new[::-1])
            return None
        new += pool.get_new_blocks(1)
    table.append_blocks(new)
    return new
"""),
    Wrong("5.4", "the blocks of all tokens again", "may have room left", """
def allocate(pool, table, num_tokens):
    missing = -(-num_tokens // table.block_size)
    if missing - len(table.blocks) > pool.num_free_blocks or missing > pool.num_free_blocks + len(table.blocks):
        return None
    new = pool.get_new_blocks(min(missing, pool.num_free_blocks))
    table.append_blocks(new)
    return new
"""),
    Wrong("5.4", "forgets the table", "behind the old ones", """
def allocate(pool, table, num_tokens):
    missing = table.num_missing_blocks(num_tokens)
    return pool.get_new_blocks(missing) if missing <= pool.num_free_blocks else None
"""),
    Wrong("5.4", "keeps one block back", "that is enough", """
def allocate(pool, table, num_tokens):
    missing = table.num_missing_blocks(num_tokens)
    if missing >= pool.num_free_blocks:
        return None
    new = pool.get_new_blocks(missing)
    table.append_blocks(new)
    return new
"""),
    Wrong("5.4", "None when nothing is missing", "an empty list", """
def allocate(pool, table, num_tokens):
    missing = table.num_missing_blocks(num_tokens)
    if missing == 0 or missing > pool.num_free_blocks:
        return None
    new = pool.get_new_blocks(missing)
    table.append_blocks(new)
    return new
"""),
    Alternative("5.4", "lets the pool refuse", """
def allocate(pool, table, num_tokens):
    try:
        new = pool.get_new_blocks(max(0, -(-num_tokens // table.block_size) - len(table.blocks)))
    except ValueError:
        return None
    table.blocks.extend(new)
    return new
"""),
    Wrong("5.5", "only the name waits", "to the front of the queue", """
def preempt(running, waiting, manager):
    victim = running.pop()
    manager.free(victim)
    victim.num_computed_tokens = 0
    waiting.append(victim.request_id)
    return victim
"""),
    Wrong("5.5", "the oldest", "all or nothing", """
def preempt(running, waiting, manager):
    victim = running.pop(0)
    manager.free(victim)
    victim.num_computed_tokens = 0
    waiting.insert(0, victim)
    return victim
"""),
    Wrong("5.5", "only its last block", "a sequence without one of its blocks cannot run", """
def preempt(running, waiting, manager):
    victim = running.pop()
    table = manager.block_table(victim.request_id)
    manager.pool.free_blocks([table.blocks.pop()])
    victim.num_computed_tokens = len(table.blocks) * manager.block_size
    waiting.insert(0, victim)
    return victim
"""),
    Wrong("5.5", "throws the generated tokens away", "no text is lost", """
def preempt(running, waiting, manager):
    victim = running.pop()
    manager.free(victim)
    victim.num_computed_tokens = 0
    del victim.token_ids[victim.num_prompt_tokens :]
    waiting.insert(0, victim)
    return victim
"""),
    Wrong("5.5", "counts its prompt as computed", "all are computed again", """
def preempt(running, waiting, manager):
    victim = running.pop()
    manager.free(victim)
    victim.num_computed_tokens = victim.num_prompt_tokens
    waiting.insert(0, victim)
    return victim
"""),
    Wrong("5.5", "to the end of the queue", "came before all that wait", """
def preempt(running, waiting, manager):
    victim = running.pop()
    manager.free(victim)
    victim.num_computed_tokens = 0
    waiting.append(victim)
    return victim
"""),
    Wrong("5.5", "returns nothing", "Return the request that gave way", """
def preempt(running, waiting, manager):
    victim = running.pop()
    manager.free(victim)
    victim.num_computed_tokens = 0
    waiting.insert(0, victim)
"""),
    Alternative("5.5", "by arrival", """
def preempt(running, waiting, manager):
    victim = max(running, key=lambda request: request.key)
    running.remove(victim)
    waiting.append(victim)
    waiting.sort(key=lambda request: request.key)
    victim.num_computed_tokens = 0
    manager.free(victim)
    return victim
"""),
    Wrong("5.6", "n gaps", "n - 1 gaps", """
def latencies(arrival, times):
    return times[0] - arrival, (times[-1] - times[0]) / len(times)
"""),
    Wrong("5.6", "the time to the first token counts in", "it is TTFT already", """
def latencies(arrival, times):
    return times[0] - arrival, (times[-1] - arrival) / len(times)
"""),
    Wrong("5.6", "forgets the arrival", "waiting in the queue", """
def latencies(arrival, times):
    return times[0], (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
"""),
    Wrong("5.6", "one token: zero", "One token has no gap", """
def latencies(arrival, times):
    return times[0] - arrival, (times[-1] - times[0]) / max(1, len(times) - 1)
"""),
    Wrong("5.6", "one token: division by zero", "division by zero", """
def latencies(arrival, times):
    return times[0] - arrival, (times[-1] - times[0]) / (len(times) - 1)
""", status="error"),
    Alternative("5.6", "the mean of the gaps", """
def latencies(arrival, times):
    gaps = [after - before for before, after in zip(times, times[1:])]
    return times[0] - arrival, sum(gaps) / len(gaps) if gaps else None
"""),
    Wrong("5.7", "the content is lost", "Free ≠ forgotten", "usage, hit_tokens = 0.0, 0" + GIVE_BACK),
    Wrong("5.7", "the prompt's blocks only", "Generated tokens fill blocks", "usage, hit_tokens = 0.0, 8" + GIVE_BACK),
    Wrong("5.7", "cached blocks count as used", "count as free", "usage, hit_tokens = 0.3, 12" + GIVE_BACK),
    Wrong("5.7", "all 13 tokens", "never computed", "usage, hit_tokens = 0.0, 13" + GIVE_BACK),
    Wrong("5.7", "forgets the names", "Free ≠ forgotten", """
usage, hit_tokens = 0.0, 12


def give_back(pool, table):
    blocks = table.clear()[::-1]
    for block in blocks:
        pool.prefix_cache.remove(block)
    pool.free_blocks(blocks)
"""),
    Wrong("5.7", "wipes the blocks' names by hand", "the pool's matter", """
usage, hit_tokens = 0.0, 12
def give_back(pool, table):
    blocks = table.clear()[::-1]
    pool.free_blocks(blocks)
    for block in blocks:
        block.block_hash = None
"""),
    Wrong("5.7", "the head first", "The tail first", """
usage, hit_tokens = 0.0, 12


def give_back(pool, table):
    pool.free_blocks(table.clear())
"""),
    Wrong("5.7", "keeps the blocks", "takes one user", """
usage, hit_tokens = 0.0, 12


def give_back(pool, table):
    table.clear()
"""),
    Wrong("5.7", "the table still points to them", "somebody else's block", """
usage, hit_tokens = 0.0, 12


def give_back(pool, table):
    pool.free_blocks(table.blocks[::-1])
"""),
    Alternative("5.7", "block by block", """
usage, hit_tokens = 0, 3 * 4


def give_back(pool, table):
    blocks = table.clear()
    while blocks:
        pool.free_blocks([blocks.pop()])
"""),
    Wrong("5.8", "bytes only", "per-transfer overhead", """
def swap_seconds(num_tokens, block_size, costs):
    return 2 * num_tokens * costs.bytes_per_token / costs.bytes_per_second

smallest_block = 1
""" + AGAIN),
    Wrong("5.8", "one way", "swapped out, and later back in", changed(SWAP, "2 * num_blocks", "num_blocks") + AGAIN
          + "\nsmallest_block = 8\n"),
    Wrong("5.8", "one transfer a block", "not moved in one piece",
          changed(SWAP, "costs.transfers_per_block * ", "") + AGAIN + "\nsmallest_block = 1\n"),
    Wrong("5.8", "tokens instead of whole blocks", "Whole blocks are moved", """
def swap_seconds(num_tokens, block_size, costs):
    num_blocks = -(-num_tokens // block_size)
    overhead = num_blocks * costs.transfers_per_block * costs.seconds_per_transfer
    return 2 * (overhead + num_tokens * costs.bytes_per_token / costs.bytes_per_second)

smallest_block = 16
""" + AGAIN),
    Wrong("5.8", "rounds down", "round up", changed(SWAP, "-(-num_tokens // block_size)", "num_tokens // block_size")
          + AGAIN + "\nsmallest_block = 16\n"),
    Wrong("5.8", "computing again pays for blocks", "No transfer takes part", SWAP + """
def recompute_seconds(num_tokens, costs):
    return num_tokens / costs.prefill_per_second + costs.seconds_per_transfer

smallest_block = 16
"""),
    Wrong("5.8", "the cheapest of all", "The largest is the cheapest", SWAP + AGAIN + "\nsmallest_block = 256\n"),
    Wrong("5.8", "one step too early", "still the dearer one", SWAP + AGAIN + "\nsmallest_block = 8\n"),
    Alternative("5.8", "from the rates", """
def swap_seconds(num_tokens, block_size, costs):
    transfers = 2 * math.ceil(num_tokens / block_size) * costs.transfers_per_block
    one = costs.seconds_per_transfer
    size = block_size * costs.bytes_per_token / costs.transfers_per_block
    return transfers * (one + size / costs.bytes_per_second)

import math
smallest_block = 16
""" + AGAIN),
    Wrong("5.9", "the preempted goes to the end of the queue", "Who waits longest?",
          changed(SCHEDULER, "self.waiting.insert(0, victim)", "self.waiting.append(victim)")),
    Wrong("5.9", "the newest is admitted first", "Who waits longest?",
          changed(SCHEDULER, "self.waiting.append(request)", "self.waiting.insert(0, request)")),
    Wrong("5.9", "the oldest gives way", "Who waits longest?",
          changed(SCHEDULER, "self.preempt(self.running[-1], output)", "self.preempt(self.running[0], output)")),
    Wrong("5.9", "skips a request that does not fit", "Who waits longest?", changed(SCHEDULER, """
        while self.waiting and budget and not output.preempted and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
""", """
        for request in list(self.waiting):
            if not budget or output.preempted or len(self.running) >= self.config.max_num_seqs:
                break
""", ("            if self.manager.allocate_slots(request, num_tokens) is None:\n                break",
      "            if self.manager.allocate_slots(request, num_tokens) is None:\n                continue"),
          ("self.running.append(self.waiting.pop(0))", "self.waiting.remove(request)\n"
           "            self.running.append(request)"))),
    Wrong("5.9", "a budget for each request", "One budget for the whole step", changed(
        SCHEDULER, "            output.admitted.append(request)\n            output.add(request, num_tokens)\n"
        "            budget -= num_tokens", "            output.admitted.append(request)\n"
        "            output.add(request, num_tokens)")),
    Wrong("5.9", "looks at no seats", "config.max_num_seqs is a limit too", changed(
        SCHEDULER, " and len(self.running) < self.config.max_num_seqs", "")),
    Wrong("5.9", "drops the preempted", "in neither list is never served", changed(
        SCHEDULER, "        self.waiting.insert(0, victim)\n", "")),
    Wrong("5.9", "preempts in a loop that never ends", "An endless loop", changed(
        SCHEDULER, "                self.preempt(self.running[-1], output)", "                pass")),
    Wrong("5.9", "everybody starts anew in every step", "Requests run and never get on", changed(
        SCHEDULER, "        for request in list(self.running):\n", "        for victim in self.running[::-1]:\n"
        "            self.preempt(victim, output)\n        output.preempted.clear()\n"
        "        for request in list(self.running):\n")),
    Wrong("5.9", "waits until all tokens fit into one step", "compute it in pieces", changed(
        SCHEDULER, "            num_tokens = min(request.num_uncomputed_tokens, budget)\n            if self.manager",
        "            num_tokens = request.num_uncomputed_tokens\n            if num_tokens > budget or self.manager")),
    Wrong("5.9", "keeps what it cannot have computed", "all or nothing", changed(
        SCHEDULER, "        victim.num_computed_tokens = 0\n", "")),
    Wrong("5.9", "does not free the finished", "Who gives the blocks", changed(
        SCHEDULER, "                queue.remove(request)\n        self.manager.free(request)",
        "                queue.remove(request)")),
    Wrong("5.9", "finishes only the running", "look in both lists", changed(
        SCHEDULER, "for queue in (self.waiting, self.running):", "for queue in (self.running,):")),
    Alternative("5.9", "sorted by key, admits with one loop over all", """
class MyScheduler:
    def __init__(self, config, manager):
        self.config, self.manager = config, manager
        self.requests, self.running = [], []

    @property
    def waiting(self):
        return [request for request in self.requests if request not in self.running]

    def add_request(self, request):
        self.requests.append(request)

    def fork_request(self, parent, child):
        self.manager.fork(parent, child)
        self.requests.append(child)
        self.running.append(child)

    def finish_request(self, request):
        self.requests.remove(request)
        if request in self.running:
            self.running.remove(request)
        self.manager.free(request)

    def schedule(self):
        output, budget, short = SchedulerOutput(), self.config.max_num_batched_tokens, False
        for request in sorted(self.requests, key=lambda one: one.key):
            new = request not in self.running
            if budget == 0 or new and (short or len(self.running) == self.config.max_num_seqs):
                break
            count = min(budget, request.num_uncomputed_tokens)
            while self.manager.allocate_slots(request, count) is None:
                short = True
                if new:
                    break
                victim = max(self.running, key=lambda one: one.key)
                self.running.remove(victim)
                self.manager.free(victim)
                victim.num_computed_tokens = 0
                output.preempted.append(victim)
                if victim is request:
                    break
            else:
                if new:
                    self.running.append(request)
                    output.admitted.append(request)
                output.add(request, count)
                budget -= count
                continue
            break
        return output
"""),
]
