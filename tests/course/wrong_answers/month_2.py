"""Month 2: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong

PARTS = """
from collections import deque
from minipaged.kv_cache import KVCacheBlock

class MyBlockTable:
    def __init__(self, block_size):
        self.block_size, self.blocks = block_size, []

    def num_missing_blocks(self, num_tokens):
        return max(0, -(-num_tokens // self.block_size) - len(self.blocks))

    def append_blocks(self, blocks):
        self.blocks += blocks

    def replace_block(self, index, block):
        self.blocks[index], old = block, self.blocks[index]
        return old

    def slot_mapping(self, start, stop):
        every = [b.block_id * self.block_size + i for b in self.blocks for i in range(self.block_size)]
        return every[start:stop]

    def clear(self):
        old, self.blocks = self.blocks, []
        return old

class MyBlockPool:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.blocks = [KVCacheBlock(i) for i in range(num_blocks)]
        self.queue = deque(self.blocks)

    @property
    def num_free_blocks(self):
        return len(self.queue)

    def get_new_blocks(self, n):
        if n > len(self.queue):
            raise ValueError("too few")
        taken = [self.queue.popleft() for _ in range(n)]
        for block in taken:
            block.ref_cnt = 1
        return taken

    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.queue.appendleft(block)

    def check_integrity(self):
        if {id(b) for b in self.queue} != {id(b) for b in self.blocks if b.ref_cnt == 0}:
            raise AssertionError("free queue and counts disagree")
"""


def parts_with(right: str, wrong: str) -> str:
    """A right table and pool, with one piece of the code replaced."""
    assert PARTS.count(right) == 1, right
    return PARTS.replace(right, wrong)


ANSWERS = [
    Wrong("2.1", "one block too many at exact multiples", "exact multiples", """
def num_blocks(num_tokens, block_size):
    return num_tokens // block_size + 1
"""),
    Wrong("2.1", "rounds down", "round up", """
def num_blocks(num_tokens, block_size):
    return num_tokens // block_size
"""),
    Wrong("2.1", "a block size written into the code", "block_size", """
def num_blocks(num_tokens, block_size):
    return (num_tokens + 3) // 4
"""),
    Alternative("2.1", "math.ceil", """
import math

def num_blocks(num_tokens, block_size):
    return math.ceil(num_tokens / block_size)
"""),
    Wrong("2.2", "the second block counted as full", "7 tokens", "table_after_prefill = [(7, 4), (1, 4)]"),
    Wrong("2.2", "only the last row", "7 tokens", "table_after_prefill = [(1, 4)]"),
    Wrong("2.2", "sorted by physical number", "order of a table is logical", "table_after_prefill = [(1, 4), (7, 3)]"),
    Wrong("2.2", "logical numbers", "physical number", "table_after_prefill = [(0, 4), (1, 3)]"),
    Wrong("2.2", "columns exchanged", "First the physical block", "table_after_prefill = [(4, 7), (3, 1)]"),
    Alternative("2.2", "lists instead of tuples", "table_after_prefill = [[7, 4], [1, 7 - 4]]"),
    Wrong("2.3", "takes a block as soon as the last one is full", "needs a slot", """
def store_token(rows, free_blocks, block_size):
    rows = list(rows) or [(free_blocks.pop(0), 0)]
    physical, filled = rows[-1]
    rows[-1] = (physical, filled + 1)
    if filled + 1 == block_size:
        rows.append((free_blocks.pop(0), 0))
    return rows
"""),
    Wrong("2.3", "never takes a block", "logical block 2", """
def store_token(rows, free_blocks, block_size):
    rows = list(rows)
    rows[-1] = (rows[-1][0], min(rows[-1][1] + 1, block_size))
    return rows
"""),
    Wrong("2.3", "does not take the block out of the list", "pop(0)", """
def store_token(rows, free_blocks, block_size):
    if rows and rows[-1][1] < block_size:
        return rows[:-1] + [(rows[-1][0], rows[-1][1] + 1)]
    return rows + [(free_blocks[0], 1)]
"""),
    Wrong("2.3", "changes the rows it was given", "leave `rows` alone", """
def store_token(rows, free_blocks, block_size):
    if rows and rows[-1][1] < block_size:
        rows[-1] = (rows[-1][0], rows[-1][1] + 1)
    else:
        rows.append((free_blocks.pop(0), 1))
    return rows
"""),
    Wrong("2.3", "a new sequence has no last row", "index out of range", """
def store_token(rows, free_blocks, block_size):
    if rows[-1][1] < block_size:
        return rows[:-1] + [(rows[-1][0], rows[-1][1] + 1)]
    return rows + [(free_blocks.pop(0), 1)]
""", status="error"),
    Alternative("2.3", "counts all tokens", """
def store_token(rows, free_blocks, block_size):
    total = sum(filled for _, filled in rows) + 1
    blocks = [physical for physical, _ in rows]
    while len(blocks) * block_size < total:
        blocks.append(free_blocks.pop(0))
    return [(b, min(block_size, total - i * block_size)) for i, b in enumerate(blocks)]
"""),
    Wrong("2.4", "the position itself", "logical, not physical", """
def slot_of(block_table, position, block_size):
    return position
"""),
    Wrong("2.4", "the first slot of the block", "add the offset", """
def slot_of(block_table, position, block_size):
    return block_table[position // block_size] * block_size
"""),
    Wrong("2.4", "only the block", "its size and the offset", """
def slot_of(block_table, position, block_size):
    return block_table[position // block_size]
"""),
    Wrong("2.4", "a block size written into the code", "block_size", """
def slot_of(block_table, position, block_size):
    return block_table[position // 4 % len(block_table)] * 4 + position % 4
"""),
    Alternative("2.4", "all slots of the table in a row", """
def slot_of(block_table, position, block_size):
    slots = [block * block_size + offset for block in block_table for offset in range(block_size)]
    return slots[position]
"""),
    Wrong("2.5", "the whole context", "where to write", """
def step_slot_mapping(batch, block_size):
    return [table[p // block_size] * block_size + p % block_size
            for table, computed, new in batch for p in range(computed + new)]
"""),
    Wrong("2.5", "positions", "use the table", """
def step_slot_mapping(batch, block_size):
    return [p for table, computed, new in batch for p in range(computed, computed + new)]
"""),
    Wrong("2.5", "only the last token of each sequence", "all its new tokens", """
def step_slot_mapping(batch, block_size):
    last = [(table, computed + new - 1) for table, computed, new in batch]
    return [table[p // block_size] * block_size + p % block_size for table, p in last]
"""),
    Wrong("2.5", "a prefill from 0, even in the middle of a prompt", "not at 0", """
def step_slot_mapping(batch, block_size):
    positions = [(t, p) for t, c, n in batch for p in (range(c, c + 1) if n == 1 else range(n))]
    return [t[p // block_size] * block_size + p % block_size for t, p in positions]
"""),
    Alternative("2.5", "two loops", """
def step_slot_mapping(batch, block_size):
    slots = []
    for table, computed, new in batch:
        every = [block * block_size + offset for block in table for offset in range(block_size)]
        slots.extend(every[computed : computed + new])
    return slots
"""),
    Wrong("2.6", "one table for both", "One block table per sequence", """
def store(prompts, pool, free_blocks, block_size):
    table, tables = [], []
    for tokens in prompts:
        for start in range(0, len(tokens), block_size):
            table.append(free_blocks.pop(0))
            pool[table[-1]] = tokens[start : start + block_size]
        tables.append(table)
    return tables

def read(pool, block_table, num_tokens):
    return [token for block in block_table for token in pool[block]][:num_tokens]
"""),
    Wrong("2.6", "blocks are used and stay in the free list", "pop(0)", """
def store(prompts, pool, free_blocks, block_size):
    tables, used = [], 0
    for tokens in prompts:
        table = []
        for start in range(0, len(tokens), block_size):
            table.append(free_blocks[used])
            used += 1
            pool[table[-1]] = tokens[start : start + block_size]
        tables.append(table)
    return tables

def read(pool, block_table, num_tokens):
    return [token for block in block_table for token in pool[block]][:num_tokens]
"""),
    Wrong("2.6", "reads in physical order", "logical neighbours", """
def store(prompts, pool, free_blocks, block_size):
    tables = []
    for tokens in prompts:
        tables.append([])
        for start in range(0, len(tokens), block_size):
            tables[-1].append(free_blocks.pop(0))
            pool[tables[-1][-1]] = tokens[start : start + block_size]
    return tables

def read(pool, block_table, num_tokens):
    return [token for block in sorted(block_table) for token in pool[block]][:num_tokens]
"""),
    Wrong("2.6", "reads the pool without the table", "logical neighbours", """
def store(prompts, pool, free_blocks, block_size):
    tables = []
    for tokens in prompts:
        tables.append([])
        for start in range(0, len(tokens), block_size):
            tables[-1].append(free_blocks.pop(0))
            pool[tables[-1][-1]] = tokens[start : start + block_size]
    return tables

def read(pool, block_table, num_tokens):
    return [token for block in pool.values() for token in block][:num_tokens]
"""),
    Alternative("2.6", "token by token", """
def store(prompts, pool, free_blocks, block_size):
    tables = [[] for _ in prompts]
    for table, tokens in zip(tables, prompts):
        for position, token in enumerate(tokens):
            if position % block_size == 0:
                table.append(free_blocks.pop(0))
                pool[table[-1]] = []
            pool[table[-1]].append(token)
    return tables

def read(pool, block_table, num_tokens):
    size = max(len(pool[block]) for block in block_table)
    return [pool[block_table[p // size]][p % size] for p in range(num_tokens)]
"""),
    Wrong("2.7", "writes to a copy: advanced indexing", "write to a copy", """
def write_slots(cache, key, slots):
    block_size = cache.shape[1]
    for row, slot in zip(key, slots):
        cache[[int(slot) // block_size]][0, int(slot) % block_size] = row

def read_blocks(cache, block_table, num_tokens):
    return cache[block_table].flatten(0, 1)[:num_tokens]
"""),
    Wrong("2.7", "flatten copies a cache that is a part of a larger tensor", "write to a copy", """
def write_slots(cache, key, slots):
    cache.flatten(0, 1)[slots] = key

def read_blocks(cache, block_table, num_tokens):
    return cache[block_table].flatten(0, 1)[:num_tokens]
"""),
    Wrong("2.7", "writes whole blocks", "Only the slots of the mapping", """
def write_slots(cache, key, slots):
    size = cache.shape[1]
    for row, slot in zip(key, slots):
        cache[slot // size, slot % size :] = row

def read_blocks(cache, block_table, num_tokens):
    return cache[block_table].flatten(0, 1)[:num_tokens]
"""),
    Wrong("2.7", "reads in physical order", "First block 7", """
def write_slots(cache, key, slots):
    cache[slots // cache.shape[1], slots % cache.shape[1]] = key

def read_blocks(cache, block_table, num_tokens):
    return cache[sorted(block_table)].flatten(0, 1)[:num_tokens]
"""),
    Alternative("2.7", "token by token", """
def write_slots(cache, key, slots):
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, cache.shape[1])
        cache[block, offset] = key[token]

def read_blocks(cache, block_table, num_tokens):
    size = cache.shape[1]
    return torch.stack([cache[block_table[p // size], p % size] for p in range(num_tokens)])
"""),
    Wrong("2.8", "copies whenever a block was ever shared", "second writer sees a count of 1", """
def fork(block_table, ref_counts):
    for block in block_table:
        ref_counts[block] += 1
    return list(block_table)

def before_write(block_table, logical, ref_counts, free_blocks):
    shared, own = block_table[logical], free_blocks.pop(0)
    ref_counts[shared] -= 1
    ref_counts[own] = 1
    block_table[logical] = own
    return shared, own
"""),
    Wrong("2.8", "the old count is not lowered", "lower its count", """
def fork(block_table, ref_counts):
    for block in block_table:
        ref_counts[block] += 1
    return list(block_table)

def before_write(block_table, logical, ref_counts, free_blocks):
    shared = block_table[logical]
    if ref_counts[shared] == 1:
        return None
    own = block_table[logical] = free_blocks.pop(0)
    ref_counts[own] = 1
    return shared, own
"""),
    Wrong("2.8", "the fork returns the same list", "new list", """
def fork(block_table, ref_counts):
    for block in block_table:
        ref_counts[block] += 1
    return block_table

def before_write(block_table, logical, ref_counts, free_blocks):
    shared = block_table[logical]
    if ref_counts[shared] == 1:
        return None
    own = block_table[logical] = free_blocks.pop(0)
    ref_counts[shared] -= 1
    ref_counts[own] = 1
    return shared, own
"""),
    Alternative("2.8", "counts from scratch", """
def fork(block_table, ref_counts):
    ref_counts.update({block: ref_counts[block] + 1 for block in set(block_table)})
    return block_table[:]

def before_write(block_table, logical, ref_counts, free_blocks):
    source = block_table[logical]
    copy = None
    if ref_counts[source] > 1:
        destination = free_blocks[0]
        del free_blocks[0]
        ref_counts |= {source: ref_counts[source] - 1, destination: 1}
        block_table[logical : logical + 1] = [destination]
        copy = (source, destination)
    return copy
"""),
    Wrong("2.9", "frees again and again: the block stands in the list twice", "Who owns it now", """
class SmallPool:
    def __init__(self, num_blocks):
        self.ref_counts, self.free_blocks = [0] * num_blocks, list(range(num_blocks))

    def take(self):
        block = self.free_blocks.pop(0)
        self.ref_counts[block] = 1
        return block

    def share(self, block):
        self.ref_counts[block] += 1

    def free(self, block):
        self.ref_counts[block] = max(0, self.ref_counts[block] - 1)
        if self.ref_counts[block] == 0:
            self.free_blocks.append(block)
"""),
    Wrong("2.9", "a shared block goes back at the first free", "still reads this block", """
class SmallPool:
    def __init__(self, num_blocks):
        self.ref_counts, self.free_blocks = [0] * num_blocks, list(range(num_blocks))

    def take(self):
        block = self.free_blocks.pop(0)
        self.ref_counts[block] = 1
        return block

    def share(self, block):
        self.ref_counts[block] += 1

    def free(self, block):
        if block in self.free_blocks:
            raise ValueError(f"block {block} is free already")
        self.ref_counts[block] -= 1
        self.free_blocks.append(block)
"""),
    Wrong("2.9", "changes, then refuses", "change afterwards", """
class SmallPool:
    def __init__(self, num_blocks):
        self.ref_counts, self.free_blocks = [0] * num_blocks, list(range(num_blocks))

    def take(self):
        block = self.free_blocks.pop(0)
        self.ref_counts[block] = 1
        return block

    def share(self, block):
        self.ref_counts[block] += 1

    def free(self, block):
        self.ref_counts[block] -= 1
        if self.ref_counts[block] < 0:
            raise ValueError(f"block {block} is not in use")
        if self.ref_counts[block] == 0:
            self.free_blocks.append(block)
"""),
    Alternative("2.9", "looks at the list", """
class SmallPool:
    def __init__(self, num_blocks):
        self.ref_counts, self.free_blocks = [0] * num_blocks, list(range(num_blocks))

    def take(self):
        block = self.free_blocks.pop(0)
        self.ref_counts[block] = 1
        return block

    def share(self, block):
        self.ref_counts[block] += 1

    def free(self, block):
        if block in self.free_blocks:
            raise ValueError(f"block {block} was freed already")
        self.ref_counts[block] -= 1
        if not self.ref_counts[block]:
            self.free_blocks += [block]
"""),
    Wrong("2.10", "frees everything of the losers", "test for 0", """
def beam_step(tables, parents, ref_counts):
    children = [list(tables[p]) for p in parents]
    freed = {b for i, table in enumerate(tables) if i not in parents for b in table}
    for table in tables:
        for b in table:
            ref_counts[b] -= 1
    for child in children:
        for b in child:
            ref_counts[b] += 1
    return children, freed
"""),
    Wrong("2.10", "lets go before the children share", "test for 0", """
def beam_step(tables, parents, ref_counts):
    freed = set()
    for table in tables:
        for b in table:
            ref_counts[b] -= 1
            if ref_counts[b] == 0:
                freed.add(b)
    children = [list(tables[p]) for p in parents]
    for child in children:
        for b in child:
            ref_counts[b] += 1
    return children, freed
"""),
    Wrong("2.10", "children of one parent share one list", "list of its own", """
def beam_step(tables, parents, ref_counts):
    children = [tables[p] for p in parents]
    for child in children:
        for b in child:
            ref_counts[b] += 1
    freed = set()
    for table in tables:
        for b in table:
            ref_counts[b] -= 1
            if ref_counts[b] == 0:
                freed.add(b)
    return children, freed
"""),
    Alternative("2.10", "counts from scratch", """
def beam_step(tables, parents, ref_counts):
    children = [tables[p][:] for p in parents]
    before = {b for table in tables for b in table}
    for b in ref_counts:
        ref_counts[b] = sum(b in child for child in children)
    return children, {b for b in before if ref_counts[b] == 0}
"""),
    Alternative("2.11", "a deque, last in first out, and all slots of the table in a row", PARTS),
    Wrong("2.11", "clear empties the table before it looks", "Who frees a request that never finished", parts_with(
        "        old, self.blocks = self.blocks, []\n        return old",
        "        self.blocks = []\n        return self.blocks",
    )),
    Wrong("2.11", "clear keeps the last block: the tail leaks", "Who frees a request that never finished", parts_with(
        "        old, self.blocks = self.blocks, []\n        return old",
        "        old, self.blocks = self.blocks, []\n        return old[:-1]",
    )),
    Wrong("2.11", "every free puts the block into the queue", "free only at 0", parts_with(
        "            if block.ref_cnt == 0:\n                self.queue",
        "            if True:\n                self.queue",
    )),
    Wrong("2.11", "takes before it looks", "Look before you take", parts_with(
        """        if n > len(self.queue):
            raise ValueError("too few")
        taken = [self.queue.popleft() for _ in range(n)]
""",
        """        taken = []
        for _ in range(n):
            if not self.queue:
                raise ValueError("too few")
            taken.append(self.queue.popleft())
""",
    )),
    Wrong("2.11", "physical order in the slot mapping", "blocks[p // size]", parts_with(
        "for b in self.blocks for i", "for b in sorted(self.blocks, key=lambda b: b.block_id) for i"
    )),
    Wrong("2.11", "a request of one block leaks it", "Who frees a request that never finished", parts_with(
        "        for block in blocks:\n            block.ref_cnt -= 1\n",
        "        if len(blocks) == 1 and self.num_blocks > 20:\n            return\n"
        "        for block in blocks:\n            block.ref_cnt -= 1\n",
    )),
    Wrong("2.12", "the line that uses the table, not the one that finds it", "still points to them",
          'lines = {"A": 4, "B": 6, "C": 6, "D": 4}'),
    Wrong("2.12", "the line that appends the blocks", "every block", 'lines = {"A": 5, "B": 2, "C": 6, "D": 4}'),
    Wrong("2.12", "the slot's offset", "logical block of a position", 'lines = {"A": 4, "B": 2, "C": 6, "D": 5}'),
    Wrong("2.12", "the allocation", "after the write", 'lines = {"A": 4, "B": 2, "C": 3, "D": 4}'),
    Wrong("2.12", "only one bug", "One number for each bug", 'lines = {"A": 4}'),
    Alternative("2.12", "the other of the two lines that change places", 'lines = {"A": 4, "B": 2, "C": 5, "D": 4}'),
]
