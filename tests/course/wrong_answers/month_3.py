"""Month 3: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong

ANSWERS = [
    Wrong("3.1", "no parent in the name", "parent's name", """
def hash_chain(token_ids, block_size):
    blocks = [token_ids[i : i + block_size] for i in range(0, len(token_ids) - block_size + 1, block_size)]
    return [hashlib.sha256(repr(tokens).encode()).digest() for tokens in blocks]
"""),
    Wrong("3.1", "names the last, partly filled block too", "leave it out", """
def hash_chain(token_ids, block_size):
    names, parent = [], b""
    for start in range(0, len(token_ids), block_size):
        parent = hashlib.sha256(parent + repr(token_ids[start : start + block_size]).encode()).digest()
        names.append(parent)
    return names
"""),
    Wrong("3.1", "only the tokens of the block before", "whole past", """
def hash_chain(token_ids, block_size):
    names = []
    for stop in range(block_size, len(token_ids) + 1, block_size):
        names.append(hashlib.sha256(repr(token_ids[max(0, stop - 2 * block_size) : stop]).encode()).digest())
    return names
"""),
    Wrong("3.1", "digits without a separator", "must not look alike", """
def hash_chain(token_ids, block_size):
    names, parent = [], b""
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        text = "".join(str(token) for token in token_ids[start : start + block_size])
        parent = hashlib.sha256(parent + text.encode()).digest()
        names.append(parent)
    return names
"""),
    Wrong("3.1", "Python's hash()", "made for dictionaries", """
def hash_chain(token_ids, block_size):
    names, parent = [], 0
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = hash((parent, *token_ids[start : start + block_size]))
        names.append(parent)
    return names
"""),
    Wrong("3.1", "keeps the text instead of its digest", "only its digest", """
def hash_chain(token_ids, block_size):
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [repr(token_ids[:end]).encode() for end in ends]
"""),
    Alternative("3.1", "hashes the whole past each time", """
def hash_chain(token_ids, block_size):
    stops = range(block_size, len(token_ids) + 1, block_size)
    return [hashlib.sha256(",".join(map(str, token_ids[:stop])).encode()).digest() for stop in stops]
"""),
    Wrong("3.2", "all shared tokens", "third block holds 2 shared tokens", "hit_tokens = 10"),
    Wrong("3.2", "rounded up", "as a whole or not at all", "hit_tokens = 12"),
    Wrong("3.2", "blocks instead of tokens", "asks for tokens", "hit_tokens = 2"),
    Wrong("3.2", "one different token spoils all", "does not spoil them", "hit_tokens = 0"),
    Alternative("3.2", "computed", "hit_tokens = 10 // 4 * 4"),
    Wrong("3.3", "nothing to compute", "suffix is still prefilled", "hit, computed = 16, 0"),
    Wrong("3.3", "no hit", "fills one whole block", "hit, computed = 0, 22"),
    Wrong("3.3", "one token to compute", "suffix is still prefilled", "hit, computed = 16, 1"),
    Wrong("3.3", "computes everything anyway", "not computed again", "hit, computed = 16, 22"),
    Alternative("3.3", "computed", """
hit = (16 + 6 - 1) // 16 * 16
computed = 16 + 6 - hit
"""),
    Wrong("3.4", "a full hit", "last token must run", """
def usable_hit(num_tokens, cached_blocks, block_size):
    return min(cached_blocks * block_size, num_tokens)
"""),
    Wrong("3.4", "n - 1 tokens, not in whole blocks", "round down", """
def usable_hit(num_tokens, cached_blocks, block_size):
    return min(cached_blocks * block_size, num_tokens - 1)
"""),
    Wrong("3.4", "forgets what is cached", "no more", """
def usable_hit(num_tokens, cached_blocks, block_size):
    return (num_tokens - 1) // block_size * block_size
"""),
    Wrong("3.4", "always computes the last block", "Token 17 runs", """
def usable_hit(num_tokens, cached_blocks, block_size):
    return max(0, cached_blocks - 1) * block_size
"""),
    Alternative("3.4", "block by block", """
def usable_hit(num_tokens, cached_blocks, block_size):
    hit = 0
    while cached_blocks > 0 and hit + block_size < num_tokens:
        hit, cached_blocks = hit + block_size, cached_blocks - 1
    return hit
"""),
    Wrong("3.5", "the oldest block first", "Tail first", "free_queue = [6, 4, 7, 8, 9, 0, 1, 2, 3, 5]"),
    Wrong("3.5", "head first", "The tail first", "free_queue = [6, 4, 7, 8, 9, 2, 3, 0, 1, 5]"),
    Wrong("3.5", "the rule of older releases", "bear no name", "free_queue = [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]"),
    Wrong("3.5", "forgets that r1 uses 0 and 1", "still uses 0 and 1", "free_queue = [6, 4, 7, 8, 9, 3, 2, 1, 0, 5]"),
    Wrong("3.5", "the unnamed in order", "before everything else", "free_queue = [4, 6, 7, 8, 9, 3, 2, 5, 1, 0]"),
    Alternative("3.5", "asked the manager", """
manager = KVCacheManager(10, 4)
first, second = CacheRequest("r0", range(15)), CacheRequest("r1", [*range(10), 90, 91, 92, 93])
manager.allocate_slots(first, 15)
first.num_computed_tokens = 15
for token in (15, 16):
    first.append_token(token)
    manager.allocate_slots(first, 1)
    first.num_computed_tokens += 1
blocks, num_hit = manager.get_computed_blocks(second)
manager.allocate_slots(second, 14 - num_hit, num_hit, blocks)
manager.free(first)
manager.free(second)
free_queue = [block.block_id for block in manager.pool.free_queue]
"""),
    Wrong("3.6", "takes new blocks first, then touches", "Touch before allocating", """
def start(num_tokens, hits, free_queue, ref_counts, block_size):
    num_new = -(-num_tokens // block_size) - len(hits)
    idle = [block for block in hits if ref_counts[block] == 0]
    if num_new > len(free_queue) - len(idle):
        return None
    new = [free_queue.pop(0) for _ in range(num_new)]
    for block in idle:
        if block in free_queue:
            free_queue.remove(block)
    for block in hits + new:
        ref_counts[block] += 1
    return len(hits) * block_size, hits + new
"""),
    Wrong("3.6", "leaves the hits in the queue", "a hit leaves the queue first", """
def start(num_tokens, hits, free_queue, ref_counts, block_size):
    num_new = -(-num_tokens // block_size) - len(hits)
    if num_new > len(free_queue):
        return None
    table = hits + [free_queue.pop(0) for _ in range(num_new)]
    for block in table:
        ref_counts[block] += 1
    return len(hits) * block_size, table
"""),
    Wrong("3.6", "counts the idle hits as free", "it will leave them", """
def start(num_tokens, hits, free_queue, ref_counts, block_size):
    num_new = -(-num_tokens // block_size) - len(hits)
    if num_new > len(free_queue):
        return None
    for block in hits:
        if ref_counts[block] == 0:
            free_queue.remove(block)
    table = hits + [free_queue.pop(0) for _ in range(num_new) if free_queue]
    for block in table:
        ref_counts[block] += 1
    return len(hits) * block_size, table
"""),
    Wrong("3.6", "touches, then refuses", "count what is needed before the first change", """
def start(num_tokens, hits, free_queue, ref_counts, block_size):
    num_new = -(-num_tokens // block_size) - len(hits)
    for block in hits:
        if ref_counts[block] == 0:
            free_queue.remove(block)
        ref_counts[block] += 1
    if num_new > len(free_queue):
        return None
    new = [free_queue.pop(0) for _ in range(num_new)]
    for block in new:
        ref_counts[block] += 1
    return len(hits) * block_size, hits + new
"""),
    Wrong("3.6", "removes a hit in use from the queue", "not in list", """
def start(num_tokens, hits, free_queue, ref_counts, block_size):
    num_new = -(-num_tokens // block_size) - len(hits)
    for block in hits:
        free_queue.remove(block)
    new = [free_queue.pop(0) for _ in range(num_new)]
    for block in hits + new:
        ref_counts[block] += 1
    return len(hits) * block_size, hits + new
""", status="error"),
    Alternative("3.6", "builds the new queue first", """
def start(num_tokens, hits, free_queue, ref_counts, block_size):
    rest = [block for block in free_queue if block not in hits]
    num_new = -(-(num_tokens - len(hits) * block_size) // block_size)
    if num_new > len(rest):
        return None
    new, free_queue[:] = rest[:num_new], rest[num_new:]
    for block in (*hits, *new):
        ref_counts[block] = ref_counts[block] + 1
    return len(hits) * block_size, [*hits, *new]
"""),
    Wrong("3.7", "the bug as it was", "Who else points here", """
class NamedPool:
    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))
        self.name_of = {}
        self.found = {}

    def lookup(self, name):
        return self.found.get(name)

    def insert(self, name, block):
        self.name_of[block] = name
        self.found.setdefault(name, block)

    def give_back(self, block):
        self.free.append(block)

    def take(self):
        return self.free.pop(0)
"""),
    Wrong("3.7", "forgets the name at the block only", "Who else points here", """
class NamedPool:
    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))
        self.name_of = {}
        self.found = {}

    def lookup(self, name):
        return self.found.get(name)

    def insert(self, name, block):
        self.name_of[block] = name
        self.found.setdefault(name, block)

    def give_back(self, block):
        self.free.append(block)

    def take(self):
        block = self.free.pop(0)
        self.name_of.pop(block, None)
        return block
"""),
    Wrong("3.7", "removes the name although a duplicate holds the content", "was a duplicate", """
class NamedPool:
    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))
        self.name_of = {}
        self.found = {}

    def lookup(self, name):
        return self.found.get(name)

    def insert(self, name, block):
        self.name_of[block] = name
        self.found.setdefault(name, block)

    def give_back(self, block):
        self.free.append(block)

    def take(self):
        block = self.free.pop(0)
        self.found.pop(self.name_of.pop(block, None), None)
        return block
"""),
    Wrong("3.7", "forgets when the block is given back", "Free does not mean forgotten", """
class NamedPool:
    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))
        self.name_of = {}
        self.found = {}

    def lookup(self, name):
        return self.found.get(name)

    def insert(self, name, block):
        self.name_of[block] = name
        self.found.setdefault(name, block)

    def give_back(self, block):
        self.found.pop(self.name_of.pop(block, None), None)
        self.free.append(block)

    def take(self):
        return self.free.pop(0)
"""),
    Alternative("3.7", "looks for the block in the map", """
class NamedPool:
    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))
        self.name_of = {}
        self.found = {}

    def lookup(self, name):
        return self.found.get(name)

    def insert(self, name, block):
        self.name_of[block] = name
        self.found.setdefault(name, block)

    def give_back(self, block):
        self.free.append(block)

    def take(self):
        block = self.free.pop(0)
        self.name_of.pop(block, None)
        self.found = {name: where for name, where in self.found.items() if where != block}
        return block
"""),
    Wrong("3.8", "merges the duplicate", "Append-only in V1", "table_r1 = [0, 1]"),
    Wrong("3.8", "shares everything", "only full blocks of its prompt", "table_r1 = [0, 1, 2]"),
    Wrong("3.8", "no hit at all", "block 0 hits", "table_r1 = [3, 4]"),
    Wrong("3.8", "hits block 1 and takes another", "It cannot hit", "table_r1 = [0, 1, 3]"),
    Alternative("3.8", "as hit and new blocks", "table_r1 = [0] + [3]"),
    Wrong("3.9", "the salt only in later blocks", "first block's name", """
def keys_of(block_index, adapter, cache_salt):
    keys = (("adapter", adapter),) if adapter else ()
    return keys + ((("cache_salt", cache_salt),) if block_index > 0 and cache_salt else ())
"""),
    Wrong("3.9", "no salt", "first block's name", """
def keys_of(block_index, adapter, cache_salt):
    return (("adapter", adapter),) if adapter else ()
"""),
    Wrong("3.9", "values without tags", "Tag your keys", """
def keys_of(block_index, adapter, cache_salt):
    return tuple(value for value in (adapter, cache_salt) if value is not None)
"""),
    Wrong("3.9", "no adapter", "other K and V", """
def keys_of(block_index, adapter, cache_salt):
    return (("cache_salt", cache_salt),) if cache_salt and block_index == 0 else ()
"""),
    Wrong("3.9", "empty keys where nothing is special", "return ()", """
def keys_of(block_index, adapter, cache_salt):
    return (("adapter", adapter), ("cache_salt", cache_salt))
"""),
    Alternative("3.9", "the salt in every block, other tags", """
def keys_of(block_index, adapter, cache_salt):
    pairs = {"lora": adapter, "salt": cache_salt}
    return tuple((tag, value) for tag, value in pairs.items() if value is not None)
"""),
    Wrong("3.10", "all tokens hit", "0 % can be right", "hit_784, hit_16, shortest = 240, 240, 784"),
    Wrong("3.10", "any prefix hits", "0 % can be right", "hit_784, hit_16, shortest = 240, 240, 240"),
    Wrong("3.10", "minus the last block", "exactly 15 blocks of 16", "hit_784, hit_16, shortest = 0, 224, 784"),
    Wrong("3.10", "one token more than a block", "tokens of its own", "hit_784, hit_16, shortest = 0, 240, 785"),
    Alternative("3.10", "computed", """
hit_784, hit_16 = (240 // size * size for size in (784, 16))
shortest = next(n for n in range(10_000) if n // 784)
"""),
    Wrong("3.11", "unchained hash", "The same block, another past", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.sha256(repr((list(token_ids), keys)).encode()).digest()

    def lookup(self, block_hash):
        return next(iter(self.blocks.get(block_hash, [])), None)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks.setdefault(block_hash, []).append(block)

    def remove(self, block):
        if block.block_hash is None:
            return False
        found = self.blocks[block.block_hash]
        found.remove(block)
        if not found:
            del self.blocks[block.block_hash]
        block.block_hash = None
        return True

    def clear(self):
        for found in self.blocks.values():
            for block in found:
                block.block_hash = None
        self.blocks = {}
"""),
    Wrong("3.11", "no extra keys", "extra keys belong", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.sha256(repr((parent_hash, list(token_ids))).encode()).digest()

    def lookup(self, block_hash):
        return next(iter(self.blocks.get(block_hash, [])), None)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks.setdefault(block_hash, []).append(block)

    def remove(self, block):
        if block.block_hash is None:
            return False
        found = self.blocks[block.block_hash]
        found.remove(block)
        if not found:
            del self.blocks[block.block_hash]
        block.block_hash = None
        return True

    def clear(self):
        for found in self.blocks.values():
            for block in found:
                block.block_hash = None
        self.blocks = {}
"""),
    Wrong("3.11", "one block a name, the newest", "return the oldest", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.sha256(repr((parent_hash, list(token_ids), keys)).encode()).digest()

    def lookup(self, block_hash):
        return self.blocks.get(block_hash)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks[block_hash] = block

    def remove(self, block):
        if block.block_hash is None:
            return False
        del self.blocks[block.block_hash]
        block.block_hash = None
        return True

    def clear(self):
        for block in self.blocks.values():
            block.block_hash = None
        self.blocks = {}
"""),
    Wrong("3.11", "one block a name, the oldest; its end takes the duplicate with it", "forget this block only", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.sha256(repr((parent_hash, list(token_ids), keys)).encode()).digest()

    def lookup(self, block_hash):
        return self.blocks.get(block_hash)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks.setdefault(block_hash, block)

    def remove(self, block):
        if block.block_hash is None:
            return False
        self.blocks.pop(block.block_hash, None)
        block.block_hash = None
        return True

    def clear(self):
        for block in self.blocks.values():
            block.block_hash = None
        self.blocks = {}
"""),
    Wrong("3.11", "the name stays at the removed block", "Set block_hash back", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.sha256(repr((parent_hash, list(token_ids), keys)).encode()).digest()

    def lookup(self, block_hash):
        return next(iter(self.blocks.get(block_hash, [])), None)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks.setdefault(block_hash, []).append(block)

    def remove(self, block):
        found = self.blocks[block.block_hash]
        found.remove(block)
        if not found:
            del self.blocks[block.block_hash]
        return True

    def clear(self):
        for found in self.blocks.values():
            for block in found:
                block.block_hash = None
        self.blocks = {}
"""),
    Wrong("3.11", "an empty list stays behind", "may be found", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.sha256(repr((parent_hash, list(token_ids), keys)).encode()).digest()

    def lookup(self, block_hash):
        return next(iter(self.blocks.get(block_hash, [])), None)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks.setdefault(block_hash, []).append(block)

    def remove(self, block):
        if block.block_hash is None:
            return False
        self.blocks[block.block_hash].remove(block)
        block.block_hash = None
        return True

    def clear(self):
        for found in self.blocks.values():
            for block in found:
                block.block_hash = None
        self.blocks = {}
"""),
    Wrong("3.11", "clear leaves the names on the blocks", "takes the names off", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hashlib.sha256(repr((parent_hash, list(token_ids), keys)).encode()).digest()

    def lookup(self, block_hash):
        return next(iter(self.blocks.get(block_hash, [])), None)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks.setdefault(block_hash, []).append(block)

    def remove(self, block):
        if block.block_hash is None:
            return False
        found = self.blocks[block.block_hash]
        found.remove(block)
        if not found:
            del self.blocks[block.block_hash]
        block.block_hash = None
        return True

    def clear(self):
        self.blocks = {}
"""),
    Wrong("3.11", "a name that is Python's hash of a list", "unhashable", """
class MyPrefixCache:
    def __init__(self):
        self.blocks = {}

    def __len__(self):
        return len(self.blocks)

    def hash_block(self, parent_hash, token_ids, keys):
        return hash((parent_hash, token_ids, keys))

    def lookup(self, block_hash):
        return next(iter(self.blocks.get(block_hash, [])), None)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.blocks.setdefault(block_hash, []).append(block)

    def remove(self, block):
        if block.block_hash is None:
            return False
        found = self.blocks[block.block_hash]
        found.remove(block)
        if not found:
            del self.blocks[block.block_hash]
        block.block_hash = None
        return True

    def clear(self):
        for found in self.blocks.values():
            for block in found:
                block.block_hash = None
        self.blocks = {}
""", status="error"),
    Alternative("3.11", "one flat list of pairs", """
class MyPrefixCache:
    def __init__(self):
        self.pairs = []

    def __len__(self):
        return len({name for name, _ in self.pairs})

    def hash_block(self, parent_hash, token_ids, keys):
        state = hashlib.blake2b(parent_hash or b"the beginning", digest_size=16)
        state.update(",".join(map(str, token_ids)).encode())
        state.update(repr(keys or ()).encode())
        return state.digest()

    def lookup(self, block_hash):
        return next((block for name, block in self.pairs if name == block_hash), None)

    def insert(self, block_hash, block):
        block.block_hash = block_hash
        self.pairs.append((block_hash, block))

    def remove(self, block):
        if block.block_hash is None:
            return False
        self.pairs = [pair for pair in self.pairs if pair[1] is not block]
        block.block_hash = None
        return True

    def clear(self):
        while self.pairs:
            self.pairs.pop()[1].block_hash = None
"""),
    Wrong("3.12", "finds nothing", "0 tokens may hit", """
def broken_rules(make_manager):
    broken = []
    return broken
"""),
    Wrong("3.12", "returns a list only when all is well", "in every case", """
def broken_rules(make_manager):
    if make_manager is KVCacheManager:
        return []
"""),
    Wrong("3.12", "accuses everybody", "pass a manager that is right", """
def broken_rules(make_manager):
    return ["stale hash", "unchained hash", "hit beyond n - 1", "count not restored"]
"""),
    Wrong("3.12", "looks for the second block behind the same beginning", "share their second block", """
def broken_rules(make_manager):
    broken = []
    manager = make_manager(2, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    manager.free(run(manager, "second", [6, 7, 8, 9, 10, 11, 12, 13]))
    if look_up(manager, [1, 2, 3, 4, 5]):
        broken.append("stale hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    if look_up(manager, [1, 2, 3, 5, 5, 6, 7, 8, 9]):
        broken.append("unchained hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    if look_up(manager, [1, 2, 3, 4, 5, 6, 7, 8]) == 8:
        broken.append("hit beyond n - 1")
    manager = make_manager(3, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    run(manager, "too large", [1, 2, 3, 4, *range(20, 40)])
    if any(block.ref_cnt for block in manager.pool.blocks):
        broken.append("count not restored")
    return broken
"""),
    Wrong("3.12", "never on an exact multiple", "multiple of the block size", """
def broken_rules(make_manager):
    broken = []
    manager = make_manager(2, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    manager.free(run(manager, "second", [6, 7, 8, 9, 10, 11, 12, 13]))
    if look_up(manager, [1, 2, 3, 4, 5]):
        broken.append("stale hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    if look_up(manager, [5, 6, 7, 8, 9]):
        broken.append("unchained hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7])
    if look_up(manager, [1, 2, 3, 4, 5, 6, 7]) == 8:
        broken.append("hit beyond n - 1")
    manager = make_manager(3, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    run(manager, "too large", [1, 2, 3, 4, *range(20, 40)])
    if any(block.ref_cnt for block in manager.pool.blocks):
        broken.append("count not restored")
    return broken
"""),
    Wrong("3.12", "a refusal without a hit", "refused, and compare counts", """
def broken_rules(make_manager):
    broken = []
    manager = make_manager(2, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    manager.free(run(manager, "second", [6, 7, 8, 9, 10, 11, 12, 13]))
    if look_up(manager, [1, 2, 3, 4, 5]):
        broken.append("stale hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    if look_up(manager, [5, 6, 7, 8, 9]):
        broken.append("unchained hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    if look_up(manager, [1, 2, 3, 4, 5, 6, 7, 8]) == 8:
        broken.append("hit beyond n - 1")
    manager = make_manager(3, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    run(manager, "too large", list(range(20, 44)))
    if any(block.ref_cnt for block in manager.pool.blocks):
        broken.append("count not restored")
    return broken
"""),
    Wrong("3.12", "one probe sees two bugs", "One bug at a time", """
def broken_rules(make_manager):
    broken = []
    manager = make_manager(2, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    manager.free(run(manager, "second", [6, 7, 8, 9, 10, 11, 12, 13]))
    if look_up(manager, [1, 2, 3, 4, 5]):
        broken.append("stale hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    if look_up(manager, [1, 2, 3, 4, 5, 6, 7, 8]) == 8 or look_up(manager, [5, 6, 7, 8, 1, 2, 3, 4]):
        broken.append("unchained hash")
    manager = make_manager(8, 4)
    run(manager, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    if look_up(manager, [1, 2, 3, 4, 5, 6, 7, 8]) == 8:
        broken.append("hit beyond n - 1")
    manager = make_manager(3, 4)
    manager.free(run(manager, "first", [1, 2, 3, 4, 5]))
    run(manager, "too large", [1, 2, 3, 4, *range(20, 40)])
    if any(block.ref_cnt for block in manager.pool.blocks):
        broken.append("count not restored")
    return broken
"""),
    Alternative("3.12", "integrity and other numbers", """
def broken_rules(make_manager):
    size, a, b, c = 2, [1, 2, 3], [4, 5, 6, 7, 8, 9], [7, 7, 4, 5, 6, 7]
    broken = set()
    manager = make_manager(3, size)
    for name, tokens in (("a", a), ("b", b)):
        manager.free(run(manager, name, tokens))
    if look_up(manager, a):
        broken.add("stale hash")
    manager = make_manager(9, size)
    run(manager, "b", b)
    if look_up(manager, b[2:] + [0]):
        broken.add("unchained hash")
    if look_up(manager, b) == len(b):
        broken.add("hit beyond n - 1")
    manager = make_manager(3, size)
    manager.free(run(manager, "b", b))
    assert run(manager, "c", b + [1, 2]) is None
    try:
        manager.check_integrity()
    except AssertionError:
        broken.add("count not restored")
    return list(broken)
"""),
]
