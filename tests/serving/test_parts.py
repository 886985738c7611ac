"""One protocol test for the reference parts and for parts that a learner would write: simple, slow, and right."""

from __future__ import annotations

import hashlib

import pytest
import torch

from minipaged.attention import AttentionBackend, ReferenceBackend
from minipaged.kv_cache import BlockPool, BlockTable, KVCacheBlock, PrefixCache
from minipaged.kv_cache.protocols import BlockPoolProtocol, BlockTableProtocol, PrefixCacheProtocol
from minipaged.serving import Scheduler, SchedulerOutput
from minipaged.serving.baselines import RequestLevelScheduler, StaticBatchScheduler
from minipaged.serving.protocols import Scheduler as SchedulerProtocol
from minipaged.serving.request import RequestStatus
from tests.serving.helpers import BeamSearchParams, SamplingParams, assert_empty, greedy, make_llm, naive_beam_search


class MyBlockTable:
    """A list, and two formulas."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.blocks = []

    def num_missing_blocks(self, num_tokens):
        needed = 0
        while needed * self.block_size < num_tokens:
            needed += 1
        return max(needed - len(self.blocks), 0)

    def append_blocks(self, blocks):
        for block in blocks:
            self.blocks.append(block)

    def replace_block(self, index, block):
        old = self.blocks[index]
        self.blocks[index] = block
        return old

    def slot_mapping(self, start, stop):
        slots = []
        for position in range(start, stop):
            block = self.blocks[position // self.block_size]
            slots.append(block.block_id * self.block_size + position % self.block_size)
        return slots

    def clear(self):
        blocks = self.blocks
        self.blocks = []
        return blocks


class MyBlockPool:
    """A list of free blocks, nothing cached. The newest free one goes first."""

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.blocks = [KVCacheBlock(i) for i in range(num_blocks)]
        self.free = list(self.blocks)

    @property
    def num_free_blocks(self):
        return len(self.free)

    def get_new_blocks(self, n):
        if n > len(self.free):
            raise ValueError("not enough blocks")
        taken = [self.free.pop() for _ in range(n)]
        for block in taken:
            block.ref_cnt = 1
        return taken

    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                raise ValueError("freed twice")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free.append(block)

    def check_integrity(self):
        for block in self.blocks:
            assert (block.ref_cnt == 0) == (block in self.free)
        assert len(set(self.free)) == len(self.free)


class MyPrefixCache:
    """A list of (hash, block) in the order of insertion."""

    def __init__(self):
        self.entries = []

    def __len__(self):
        return len({name for name, _ in self.entries})

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.md5(repr((parent_hash, list(token_ids), keys)).encode()).digest()

    def lookup(self, block_hash):
        for name, block in self.entries:
            if name == block_hash:
                return block
        return None

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.entries.append((block_hash, block))

    def remove(self, block):
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[1] is not block]
        block.block_hash = None
        return len(self.entries) < before

    def clear(self):
        for _, block in self.entries:
            block.block_hash = None
        self.entries = []


class MyScheduler:
    """First come, first served, whole prompts, one new request a step; the newest one is preempted."""

    def __init__(self, config, manager):
        self.config, self.manager = config, manager
        self.waiting, self.running = [], []

    def add_request(self, request):
        self.waiting.append(request)

    def schedule(self):
        output = SchedulerOutput()
        for request in list(self.running):
            if request not in self.running or request.num_uncomputed_tokens == 0:
                continue
            while self.manager.allocate_slots(request, request.num_uncomputed_tokens) is None:
                victim = self.running[-1]
                self.preempt(victim, output)
                if victim is request:
                    break
            if request in self.running:
                output.add(request, request.num_uncomputed_tokens)
        if self.waiting and not output.preempted:
            request = self.waiting[0]
            blocks, hit = self.manager.get_computed_blocks(request)
            if self.manager.allocate_slots(request, request.num_tokens - hit, hit, blocks) is not None:
                request.num_computed_tokens = hit
                request.status = RequestStatus.RUNNING
                self.running.append(self.waiting.pop(0))
                output.add(request, request.num_tokens - hit)
                output.admitted.append(request)
        return output

    def preempt(self, victim, output):
        assert victim not in output.scheduled
        self.manager.free(victim)
        victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        output.preempted.append(victim)

    def fork_request(self, parent, child):
        self.manager.fork(parent, child)
        child.status = RequestStatus.RUNNING
        self.running.append(child)

    def finish_request(self, request):
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.manager.free(request)


class MyBackend:
    """One token at a time."""

    name = "mine"

    def write(self, key, value, k_cache, v_cache, slot_mapping):
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                k_cache[slot // k_cache.shape[1], slot % k_cache.shape[1]] = key[token]
                v_cache[slot // k_cache.shape[1], slot % k_cache.shape[1]] = value[token]

    def attend(self, query, k_cache, v_cache, metadata, scale):
        block_size, group = k_cache.shape[1], query.shape[1] // k_cache.shape[2]
        out = torch.empty_like(query)
        starts = metadata.query_start_loc.tolist()
        for s, seq_len in enumerate(metadata.seq_lens.tolist()):
            table = metadata.block_tables[s].tolist()
            for row in range(starts[s], starts[s + 1]):
                length = seq_len - (starts[s + 1] - 1 - row)
                keys = torch.stack([k_cache[table[p // block_size], p % block_size] for p in range(length)])
                values = torch.stack([v_cache[table[p // block_size], p % block_size] for p in range(length)])
                for head in range(query.shape[1]):
                    weights = (keys[:, head // group] @ query[row, head] * scale).softmax(0)
                    out[row, head] = weights @ values[:, head // group]
        return out

    def copy_blocks(self, k_cache, v_cache, pairs):
        for source, destination in pairs:
            k_cache[destination] = k_cache[source].clone()
            v_cache[destination] = v_cache[source].clone()


PARTS = [
    ("block_table", BlockTable),
    ("block_table", MyBlockTable),
    ("block_pool", BlockPool),
    ("block_pool", MyBlockPool),
    ("prefix_cache", PrefixCache),
    ("prefix_cache", MyPrefixCache),
    ("scheduler", Scheduler),
    ("scheduler", MyScheduler),
    ("scheduler", RequestLevelScheduler),
    ("scheduler", StaticBatchScheduler),
    ("attention", ReferenceBackend),
    ("attention", MyBackend),
    ("attention", MyBackend()),
]
PROTOCOLS = {
    "block_table": BlockTableProtocol,
    "block_pool": BlockPoolProtocol,
    "prefix_cache": PrefixCacheProtocol,
    "scheduler": SchedulerProtocol,
    "attention": AttentionBackend,
}
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 1], [5], [1, 2, 3, 4, 9, 9]]


def name_of(value):
    return value if isinstance(value, str) else getattr(value, "__name__", f"a {type(value).__name__}")


@pytest.mark.parametrize(("socket", "part"), PARTS, ids=name_of)
class TestEveryPart:
    def test_same_text_with_room_and_without(self, socket, part):
        for num_blocks in (64, 8):
            llm = make_llm(parts={socket: part}, num_blocks=num_blocks, watermark=0.0)
            for _ in range(2):
                outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=10, ignore_eos=True))
                assert [o.outputs[0].token_ids for o in outputs] == [greedy(p, 10, ignore_eos=True) for p in PROMPTS]
            assert_empty(llm)

    def test_forks_and_beams(self, socket, part):
        llm = make_llm(parts={socket: part}, num_blocks=24)
        output = llm.generate(PROMPTS[0], SamplingParams(n=3, max_tokens=8))[0]
        assert [o.token_ids for o in output.outputs] == [greedy(PROMPTS[0], 8)] * 3
        beam = BeamSearchParams(beam_width=3, max_tokens=6)
        found = llm.generate(PROMPTS[0], beam)[0].outputs
        assert [o.token_ids for o in found] == [tokens for tokens, _ in naive_beam_search(PROMPTS[0], beam)]
        assert_empty(llm)

    def test_abort_anywhere(self, socket, part):
        llm = make_llm(parts={socket: part}, num_blocks=12)
        for steps in (0, 1, 2, 5):
            for number, prompt in enumerate(PROMPTS):
                llm.engine.add_request(prompt, SamplingParams(max_tokens=9, n=1 + number % 2), f"{number}")
            for _ in range(steps):
                llm.engine.step()
            for number in range(len(PROMPTS)):
                llm.engine.abort(f"{number}")
            assert_empty(llm)

    def test_protocol(self, socket, part):
        llm = make_llm(parts={socket: part})
        engine = llm.engine
        made = {
            "block_table": BlockTable(4) if part is BlockTable else part,
            "block_pool": engine.manager.pool,
            "prefix_cache": getattr(engine.manager.pool, "prefix_cache", None),
            "scheduler": engine.scheduler,
            "attention": engine.runner.backend,
        }[socket]
        made = made(4) if isinstance(made, type) else made
        assert isinstance(made, PROTOCOLS[socket])


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=name_of)
def test_no_protocol_asks_for_more_than_six_methods(protocol):
    methods = [n for n in vars(protocol) if callable(getattr(protocol, n)) and (n[0] != "_" or n == "__len__")]
    assert 1 <= len(methods) <= 6, methods


def test_all_own_parts_at_once():
    """MyBlockPool keeps no prefix cache: the engine runs without prefix caching."""
    parts = {"block_table": MyBlockTable, "block_pool": MyBlockPool, "scheduler": MyScheduler, "attention": MyBackend}
    llm = make_llm(parts=parts, num_blocks=10)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=10))
    assert [o.outputs[0].token_ids for o in outputs] == [greedy(p, 10) for p in PROMPTS]
    assert not llm.engine.manager.enable_caching


class Half:
    def __init__(self, block_size):
        pass

    def clear(self):
        return []


class Lazy:
    def __init__(self, config, manager):
        pass

    def schedule(self):
        return SchedulerOutput()


class TestWrongParts:
    @pytest.mark.parametrize(
        ("parts", "error", "message"),
        [
            ({"blocktable": BlockTable}, ValueError, "there is no part 'blocktable'; the parts are block_t"),
            ([BlockTable], TypeError, "parts is a list; give a dict"),
            ({"block_table": BlockTable(4)}, TypeError, r"parts\['block_table'\] is a BlockTable object; give"),
            ({"attention": "triton"}, TypeError, r"parts\['attention'\] is a name"),
            ({"block_table": Half}, TypeError, "Half lacks append_blocks, blocks, num_missing_blocks"),
            ({"scheduler": Lazy}, TypeError, "Lazy lacks add_request, finish_request, fork_request, running, waiting"),
            ({"attention": type("Blind", (), {})}, TypeError, "Blind is no attention backend: it lacks name, write"),
        ],
    )
    def test_refused(self, parts, error, message):
        with pytest.raises(error, match=message):
            make_llm(parts=parts)

    def test_wrong_number_of_arguments(self):
        class Odd(MyBlockTable):
            def replace_block(self, index):
                return None

        with pytest.raises(TypeError, match=r"Odd.replace_block must take \(index, block\): too many positional"):
            make_llm(parts={"block_table": Odd})

    def test_constructor(self):
        class NoArguments(MyBlockTable):
            def __init__(self):
                super().__init__(4)

        with pytest.raises(TypeError, match=r"parts\['block_table'\] cannot be made as YourTable\(block_size\)"):
            make_llm(parts={"block_table": NoArguments})

    def test_missing_attribute(self):
        class NoBlocks(MyBlockTable):
            def __init__(self, block_size):
                self.block_size = block_size

        with pytest.raises(TypeError, match="NoBlocks lacks blocks"):
            make_llm(parts={"block_table": NoBlocks})

    def test_pool_without_null_block(self):
        with pytest.raises(ValueError, match="null_block=True needs a pool that takes null_block"):
            make_llm(parts={"block_pool": MyBlockPool}, null_block=True)

    def test_a_scheduler_that_starves(self):
        class Starving(MyScheduler):
            def schedule(self):
                return SchedulerOutput()

        llm = make_llm(parts={"scheduler": Starving})
        with pytest.raises(RuntimeError, match=r"Starving ran nobody in 3 steps; unfinished requests: 1;"):
            llm.generate([[1, 2]])
        assert_empty(llm)

    def test_a_scheduler_that_asks_for_tokens_that_do_not_exist(self):
        class Greedy(MyScheduler):
            def schedule(self):
                output = super().schedule()
                for name in output.num_scheduled_tokens:
                    output.num_scheduled_tokens[name] += 1
                return output

        with pytest.raises(ValueError, match="asks for 3 tokens of r0 from position 0, but it has 2 tokens"):
            make_llm(parts={"scheduler": Greedy}).generate([[1, 2]])

    def test_a_table_that_points_to_the_wrong_slot(self):
        class OffByOne(MyBlockTable):
            def slot_mapping(self, start, stop):
                return [slot ^ 1 for slot in super().slot_mapping(start, stop)]

        with pytest.raises(AssertionError, match="expected positions"):
            make_llm(parts={"block_table": OffByOne}).generate([[1, 2, 3]])

    def test_a_pool_that_leaks_is_found(self):
        class Leaky(MyBlockPool):
            def free_blocks(self, blocks):
                super().free_blocks(list(blocks)[1:])

        with pytest.raises(AssertionError, match="block"):
            make_llm(parts={"block_pool": Leaky}).generate([[1, 2, 3]])
