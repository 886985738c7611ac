"""A manager without any cleverness: lists, linear scans, contents compared as tuples instead of hashes.

It follows the rules in words (CONFORMANCE of the course: vLLM's rules) and is the other side of the differential test.
"""


class NaiveManager:
    """Free list as a list, content of a block as the tuple of the whole prefix (with its extra keys)."""

    def __init__(self, num_blocks, block_size, enable_caching, null_block):
        self.size = block_size
        self.caching = enable_caching
        self.count = [0] * num_blocks
        self.content = [None] * num_blocks
        self.age = [None] * num_blocks  # when the content came, to find the oldest duplicate
        self.clock = 0
        self.null = null_block
        self.free_list = list(range(1 if null_block else 0, num_blocks))
        self.tables = {}
        self.named = {}

    def prefix(self, request, stop):
        return (request.cache_salt, request.adapter, tuple(request.token_ids[:stop]))

    def lookup(self, request):
        hits = []
        if self.caching:
            while (len(hits) + 1) * self.size <= request.num_tokens - 1:
                wanted = self.prefix(request, (len(hits) + 1) * self.size)
                holders = [i for i, content in enumerate(self.content) if content == wanted]
                if not holders:
                    break
                hits.append(min(holders, key=lambda i: self.age[i]))
        return hits

    def allocate(self, request, n, hits=()):
        table = self.tables.get(request.request_id, [])
        start = request.num_computed_tokens + len(hits) * self.size
        stop = start + n
        blocks_wanted = -(-stop // self.size)
        shared = [i for i in range(start // self.size, min(len(table), blocks_wanted)) if self.count[table[i]] > 1]
        missing = max(0, blocks_wanted - len(table) - len(hits))
        if len(shared) + missing > len([i for i in self.free_list if i not in hits]):
            return None
        for i in hits:
            if i in self.free_list:
                self.free_list.remove(i)
            self.count[i] += 1
        new = [self.free_list.pop(0) for _ in range(len(shared) + missing)]
        for i in new:
            self.content[i], self.count[i] = None, 1
        table = [*table, *hits]
        for place, i in zip(shared, new, strict=False):
            self.count[table[place]] -= 1
            table[place] = i
        table += new[len(shared) :]
        self.tables[request.request_id] = table
        if self.caching:
            named = self.named.get(request.request_id, len(hits))
            for place in range(named, min(stop, request.num_tokens) // self.size):
                if self.content[table[place]] is None:
                    self.content[table[place]] = self.prefix(request, (place + 1) * self.size)
                    self.age[table[place]] = self.clock
                    self.clock += 1
                named = place + 1
            self.named[request.request_id] = named
        return new

    def fork(self, parent, child):
        self.tables[child.request_id] = list(self.tables[parent.request_id])
        self.named[child.request_id] = self.named.get(parent.request_id, 0)
        for i in self.tables[child.request_id]:
            self.count[i] += 1

    def free(self, request):
        front, back = [], []
        for i in reversed(self.tables.pop(request.request_id, [])):
            self.count[i] -= 1
            if self.count[i] == 0:
                (front if self.content[i] is None else back).append(i)
        self.named.pop(request.request_id, None)
        self.free_list = front + self.free_list + back

    def reset(self):
        if any(self.count):
            return False
        self.content = [None] * len(self.content)
        return True
