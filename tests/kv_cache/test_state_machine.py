"""Random lives of requests against a simple model, with the integrity proof after every step.

The model is a dictionary: what token each slot of the physical memory holds. Every step checks that each request
finds its own tokens through its table, whatever was shared, copied, evicted or freed meanwhile.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from minipaged.kv_cache import CacheRequest, KVCacheManager


class Lives(RuleBasedStateMachine):
    """arrive, prefill in chunks, decode, fork, preempt, finish, abort, a failed step, reset."""

    requests = Bundle("requests")

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 5),
        enable_caching=st.booleans(),
        null_block=st.booleans(),
    )
    def start(self, num_blocks, block_size, enable_caching, null_block):
        self.manager = KVCacheManager(num_blocks, block_size, enable_caching, null_block)
        self.block_size = block_size
        self.memory: dict[int, tuple] = {}  # slot → the whole prefix up to its token: what K and V depend on
        self.alive: dict[str, CacheRequest] = {}
        self.count = 0

    def new_request(self, tokens) -> CacheRequest:
        self.count += 1
        request = CacheRequest(f"r{self.count}", tokens)
        self.alive[request.request_id] = request
        return request

    def run(self, request: CacheRequest, n: int) -> None:
        """What the model's step does: copies first, then writes to the slots, then the tokens count as computed."""
        for source, destination in self.manager.take_copies():
            for offset in range(self.block_size):
                self.memory[destination * self.block_size + offset] = self.memory.get(source * self.block_size + offset)
        start = request.num_computed_tokens
        slots = self.manager.block_table(request.request_id).slot_mapping(start, start + n)
        for position, slot in enumerate(slots, start):
            self.memory[slot] = tuple(request.token_ids[: position + 1])
        request.num_computed_tokens += n

    @rule(target=requests, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=18))
    def arrive(self, tokens):
        return self.new_request(tokens)

    def allocate(self, request: CacheRequest, n: int) -> bool:
        """Allocate; a refusal must leave everything as it was."""
        before = self.snapshot()
        blocks, hit = ([], 0)
        if not self.manager.has_blocks(request.request_id):
            blocks, hit = self.manager.get_computed_blocks(request)
            n = max(1, min(n, request.num_tokens - hit))
        if self.manager.allocate_slots(request, n, hit, blocks) is None:
            assert self.snapshot() == before
            return False
        request.num_computed_tokens += hit
        return True

    def snapshot(self):
        pool = self.manager.pool
        return (
            [b.block_id for b in pool.free_queue],
            [b.ref_cnt for b in pool.blocks],
            [b.block_hash for b in pool.blocks],
            {name: self.manager.block_ids(name) for name in self.alive},
        )

    @rule(request=requests, n=st.integers(1, 8))
    def compute(self, request, n):
        """A chunk of the prompt, or one token of decode: up to n tokens that exist and are not computed yet."""
        left = request.num_tokens - request.num_computed_tokens
        if left and request.request_id in self.alive and self.allocate(request, min(n, left)):
            start = request.num_computed_tokens
            rows = self.manager.block_table(request.request_id)
            self.run(request, min(n, left, request.num_tokens - start, len(rows) * self.block_size - start))

    @rule(request=requests, token=st.integers(0, 1))
    def append(self, request, token):
        if request.num_computed_tokens == request.num_tokens and request.num_tokens < 30:
            request.append_token(token)

    @rule(target=requests, parent=requests, token=st.integers(0, 1))
    def fork(self, parent, token):
        computed = parent.num_computed_tokens
        child = self.new_request([*parent.token_ids[:computed], token] if computed else parent.token_ids)
        if self.manager.has_blocks(parent.request_id) and computed >= parent.num_tokens - 1:
            self.manager.fork(parent, child)
            assert self.manager.block_ids(child.request_id) == self.manager.block_ids(parent.request_id)
        return child

    @rule(request=requests)
    def preempt(self, request):
        self.manager.free(request)
        request.num_computed_tokens = 0

    @rule(request=consumes(requests))
    def finish(self, request):
        self.manager.free(request)
        del self.alive[request.request_id]

    @rule(request=requests, n=st.integers(1, 6), abort_first=st.booleans())
    def failed_step(self, request, n, abort_first):
        """Slots were allocated and hashed, then the model did not run: take the hashes back, then free."""
        left = request.num_tokens - request.num_computed_tokens
        if not left or not self.allocate(request, min(n, left)):
            return
        self.manager.uncache(request, request.num_computed_tokens)
        if abort_first:
            self.manager.free(request)
            self.copy_now()
        else:
            self.copy_now()
            self.manager.free(request)
        request.num_computed_tokens = 0

    def copy_now(self):
        for source, destination in self.manager.take_copies():
            for offset in range(self.block_size):
                self.memory[destination * self.block_size + offset] = self.memory.get(source * self.block_size + offset)

    @rule()
    @precondition(lambda self: hasattr(self, "manager"))
    def reset(self):
        in_use = any(self.manager.has_blocks(name) for name in self.alive)
        assert self.manager.reset_prefix_cache() == (not in_use)

    @invariant()
    def whole(self):
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        for request in self.alive.values():
            if not self.manager.has_blocks(request.request_id):
                continue
            slots = self.manager.block_table(request.request_id).slot_mapping(0, request.num_computed_tokens)
            for position, slot in enumerate(slots):
                assert self.memory[slot] == tuple(request.token_ids[: position + 1])


class NoBigExamples:
    settings = settings(
        max_examples=150,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


TestLives = Lives.TestCase
TestLives.settings = NoBigExamples.settings
