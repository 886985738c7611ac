"""Month 1: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong

_TABLE = """
address_space, virtual_page, frame, page_table = "token sequence", "logical block", "physical block", "block table"
page_fault, tlb = "a block allocated when a token needs it", "nothing in software"
shared_page, swap_to_disk = "shared block, copy-on-write", "swap to host memory"
page_replacement = "prefix-cache eviction"
"""
_ROWS = """
rows = {"address space": address_space, "virtual page": virtual_page, "frame": frame, "page table": page_table,
        "page fault": page_fault, "shared page, copy-on-write": shared_page, "page replacement": page_replacement,
        "swap to disk": swap_to_disk, "TLB": tlb}
"""
_FREE = """
def free(holes, address, size):
    holes.append((address, size))
    holes.sort()
    at = 0
    while at + 1 < len(holes):
        (a, m), (b, n) = holes[at], holes[at + 1]
        if a + m == b:
            holes[at : at + 2] = [(a, m + n)]
        else:
            at += 1
"""
_ALLOCATE = """
def allocate(holes, size):
    for i, (address, hole) in enumerate(holes):
        if hole >= size:
            del holes[i]
            if hole > size:
                holes.insert(i, (address + size, hole - size))
            return address
"""
_FORK = """
def fork(page_table, ref_counts, frames, free_frames):
    for frame in page_table:
        ref_counts[frame] += 1
    return page_table[:]
"""
_WRITE = """
def write(page_table, page, offset, byte, ref_counts, frames, free_frames):
    old = page_table[page]
    if ref_counts[old] > 1:
        new = free_frames.pop(0)
        frames[new] = frames[old][:]
        ref_counts[old] -= 1
        ref_counts[new] = 1
        page_table[page] = new
    frames[page_table[page]][offset] = byte
"""

ANSWERS = [
    Wrong("1.1", "divides by 1000", "shift by 12", """
def split_address(address, page_size):
    return address // 1000, address % 1000
"""),
    Wrong("1.1", "offset first", "First the page", """
def split_address(address, page_size):
    return address % page_size, address // page_size
"""),
    Wrong("1.1", "a shift by 12 whatever the page size", "The page size is an argument", """
def split_address(address, page_size):
    return address >> 12, address & 0xFFF
"""),
    Wrong("1.1", "masks with the page size itself", "hexadecimal digit", """
def split_address(address, page_size):
    return address // page_size, address & page_size
"""),
    Wrong("1.1", "the whole address as offset", "hexadecimal digit", """
def split_address(address, page_size):
    return address // page_size, address
"""),
    Alternative("1.1", "divmod", """
def split_address(address, page_size):
    return divmod(address, page_size)
"""),
    Wrong("1.2", "the frame only", "add the offset", """
def translate(page_table, address, page_size):
    if page_table[address // page_size] is None:
        raise PageFault(address // page_size)
    return page_table[address // page_size]
"""),
    Wrong("1.2", "the first byte of the frame", "add the offset", """
def translate(page_table, address, page_size):
    if page_table[address // page_size] is None:
        raise PageFault(address // page_size)
    return page_table[address // page_size] * page_size
"""),
    Wrong("1.2", "frame plus offset", "multiplied by the page size", """
def translate(page_table, address, page_size):
    if page_table[address // page_size] is None:
        raise PageFault(address // page_size)
    return page_table[address // page_size] + address % page_size
"""),
    Wrong("1.2", "frame 0 taken for nothing", "Frame 0 is a frame", """
def translate(page_table, address, page_size):
    page, offset = divmod(address, page_size)
    if not page_table[page]:
        raise PageFault(page)
    return page_table[page] * page_size + offset
"""),
    Wrong("1.2", "None comes out", "raise PageFault", """
def translate(page_table, address, page_size):
    frame = page_table[address // page_size]
    return None if frame is None else frame * page_size + address % page_size
"""),
    Wrong("1.2", "the fault names the address", "raise PageFault", """
def translate(page_table, address, page_size):
    frame = page_table[address // page_size]
    if frame is None:
        raise PageFault(address)
    return frame * page_size + address % page_size
"""),
    Alternative("1.2", "shift and or", """
def translate(page_table, address, page_size):
    bits = page_size.bit_length() - 1
    frame = page_table[address >> bits]
    if frame is None:
        raise PageFault(address >> bits)
    return frame << bits | address & (page_size - 1)
"""),
    Wrong("1.3", "compacts memory when no hole fits", "nothing moves", _FREE + """
def allocate(holes, size):
    if holes and sum(s for _, s in holes) >= size and not any(s >= size for _, s in holes):
        holes[:] = [(holes[0][0], sum(s for _, s in holes))]
    for i, (address, hole) in enumerate(holes):
        if hole >= size:
            holes[i : i + 1] = [(address + size, hole - size)] if hole > size else []
            return address
"""),
    Wrong("1.3", "joins holes that do not touch", "Nothing moves", _ALLOCATE + """
def free(holes, address, size):
    holes[:] = [(min([address] + [a for a, _ in holes]), size + sum(s for _, s in holes))]
"""),
    Wrong("1.3", "never joins holes", "Join the freed range", _ALLOCATE + """
def free(holes, address, size):
    holes.append((address, size))
    holes.sort()
"""),
    Wrong("1.3", "best fit", "That is best fit", _FREE + """
def allocate(holes, size):
    fitting = [(s, a) for a, s in holes if s >= size]
    if not fitting:
        return None
    hole, address = min(fitting)
    i = holes.index((address, hole))
    holes[i : i + 1] = [(address + size, hole - size)] if hole > size else []
    return address
"""),
    Wrong("1.3", "leaves holes of size 0", "no hole", _FREE + """
def allocate(holes, size):
    for i, (address, hole) in enumerate(holes):
        if hole >= size:
            holes[i] = (address + size, hole - size)
            return address
"""),
    Wrong("1.3", "does not change the list", "The hole shrinks", _FREE + """
def allocate(holes, size):
    return next((address for address, hole in holes if hole >= size), None)
"""),
    Alternative("1.3", "a list of loops", _ALLOCATE + _FREE),
    Wrong("1.4", "sums the remainders", "remainder is the used part", """
def internal_waste(sizes, page_size):
    return sum(size % page_size for size in sizes)
"""),
    Wrong("1.4", "an exact multiple wastes a whole page", "exact multiple", """
def internal_waste(sizes, page_size):
    return sum(page_size - size % page_size for size in sizes)
"""),
    Wrong("1.4", "rounds the sum", "do not share pages", """
def internal_waste(sizes, page_size):
    return -sum(sizes) % page_size
"""),
    Alternative("1.4", "negative remainder", """
def internal_waste(sizes, page_size):
    return sum(-size % page_size for size in sizes)
"""),
    Wrong("1.5", "FIFO", "That's FIFO", """
def lru_victims(trace, num_frames):
    memory, victims = [], []
    for page in trace:
        if page not in memory:
            if len(memory) == num_frames:
                victims.append(memory.pop(0))
            memory.append(page)
    return victims
"""),
    Wrong("1.5", "the most recently loaded", "loaded last", """
def lru_victims(trace, num_frames):
    memory, victims = [], []
    for page in trace:
        if page not in memory:
            if len(memory) == num_frames:
                victims.append(memory.pop())
            memory.append(page)
    return victims
"""),
    Wrong("1.5", "the least often used", "how often does not matter", """
def lru_victims(trace, num_frames):
    memory, uses, victims = [], {}, []
    for page in trace:
        uses[page] = uses.get(page, 0) + 1
        if page not in memory:
            if len(memory) == num_frames:
                victims.append(min(memory, key=lambda p: (uses[p], memory.index(p))))
                memory.remove(victims[-1])
        else:
            memory.remove(page)
        memory.append(page)
    return victims
"""),
    Wrong("1.5", "a hit counts as a fault", "It is in memory: a hit", """
def lru_victims(trace, num_frames):
    memory, victims = [], []
    for page in trace:
        if len(memory) == num_frames:
            victims.append(memory.pop(0))
        memory.append(page)
    return victims
"""),
    Alternative("1.5", "times of the last use", """
def lru_victims(trace, num_frames):
    last_use, victims = {}, []
    for time, page in enumerate(trace):
        if page not in last_use and len(last_use) == num_frames:
            victims.append(min(last_use, key=last_use.get))
            del last_use[victims[-1]]
        last_use[page] = time
    return victims
"""),
    Wrong("1.6", "copies every frame at the fork", "copy at the write", _WRITE + """
def fork(page_table, ref_counts, frames, free_frames):
    child = []
    for frame in page_table:
        child.append(free_frames.pop(0))
        frames[child[-1]] = bytearray(frames[frame])
        ref_counts[child[-1]] = 1
    return child
"""),
    Wrong("1.6", "both processes have one table", "Make a new list", _WRITE + """
def fork(page_table, ref_counts, frames, free_frames):
    for frame in page_table:
        ref_counts[frame] += 1
    return page_table
"""),
    Wrong("1.6", "writes without a copy", "copy the frame first", _FORK + """
def write(page_table, page, offset, byte, ref_counts, frames, free_frames):
    frames[page_table[page]][offset] = byte
"""),
    Wrong("1.6", "always copies", "a count of 1 needs no copy", _FORK + """
def write(page_table, page, offset, byte, ref_counts, frames, free_frames):
    old, new = page_table[page], free_frames.pop(0)
    frames[new] = bytearray(frames[old])
    frames[new][offset] = byte
    ref_counts[old] -= 1
    ref_counts[new] = 1
    page_table[page] = new
"""),
    Wrong("1.6", "moves the frame instead of copying it", "copy the frame first", _FORK + """
def write(page_table, page, offset, byte, ref_counts, frames, free_frames):
    old = page_table[page]
    if ref_counts[old] > 1:
        new = free_frames.pop(0)
        frames[new] = frames.pop(old)
        ref_counts[old] -= 1
        ref_counts[new] = 1
        page_table[page] = new
    frames[page_table[page]][offset] = byte
"""),
    Wrong("1.6", "the old count stays", "lower its count", _FORK + """
def write(page_table, page, offset, byte, ref_counts, frames, free_frames):
    if ref_counts[page_table[page]] > 1:
        new = free_frames.pop(0)
        frames[new] = bytearray(frames[page_table[page]])
        ref_counts[new] = 1
        page_table[page] = new
    frames[page_table[page]][offset] = byte
"""),
    Wrong("1.6", "the copy is the same object", "copy the frame first", _FORK + """
def write(page_table, page, offset, byte, ref_counts, frames, free_frames):
    old = page_table[page]
    if ref_counts[old] > 1:
        new = free_frames.pop(0)
        frames[new] = frames[old]
        ref_counts[old] -= 1
        ref_counts[new] = 1
        page_table[page] = new
    frames[page_table[page]][offset] = byte
"""),
    Alternative("1.6", "slices", _FORK + _WRITE),
    Wrong("1.7", "nothing leaks", "Who notices the missing page?", _TABLE + "leaky = set()" + _ROWS),
    Wrong("1.7", "the TLB does not leak", "Who caches the block table?",
          _TABLE + 'leaky = {"page fault", "swap to disk"}' + _ROWS),
    Wrong("1.7", "swap does not leak", "Who brings a page back", _TABLE + 'leaky = {"page fault", "TLB"}' + _ROWS),
    Wrong("1.7", "copy-on-write leaks too", "holds on both sides",
          _TABLE + 'leaky = {"page fault", "TLB", "swap to disk", "shared page, copy-on-write"}' + _ROWS),
    Wrong("1.7", "a physical block taken for a page", "a frame and a physical block are places",
          _TABLE + 'virtual_page, frame = frame, virtual_page\nleaky = {"page fault", "TLB", "swap to disk"}' + _ROWS),
    Wrong("1.7", "the block table taken for a TLB", "who acts?",
          _TABLE + 'page_table, tlb = tlb, page_table\nleaky = {"page fault", "TLB", "swap to disk"}' + _ROWS),
    Alternative("1.7", "a list of leaks", _TABLE + 'leaky = ["swap to disk", "TLB", "page fault"]' + _ROWS),
    Wrong("1.8", "evicts a pinned page", "Who still maps it?", """
class MyPolicy:
    def __init__(self):
        self.order = []

    def on_load(self, page):
        self.order.append(page)

    def on_hit(self, page):
        self.order.remove(page)
        self.order.append(page)

    def on_remove(self, page):
        self.order.remove(page)

    def victim(self, pinned):
        return self.order[0]
"""),
    Wrong("1.8", "FIFO", "let a hit protect it", """
class MyPolicy:
    def __init__(self):
        self.order = []

    def on_load(self, page):
        self.order.append(page)

    def on_hit(self, page):
        pass

    def on_remove(self, page):
        self.order.remove(page)

    def victim(self, pinned):
        return next(page for page in self.order if page not in pinned)
"""),
    Wrong("1.8", "does not forget who left", "forget it there", """
class MyPolicy:
    def __init__(self):
        self.time, self.last_use = 0, {}

    def on_load(self, page):
        self.on_hit(page)

    def on_hit(self, page):
        self.time += 1
        self.last_use[page] = self.time

    def on_remove(self, page):
        pass

    def victim(self, pinned):
        return min((page for page in self.last_use if page not in pinned), key=self.last_use.get)
"""),
    Wrong("1.8", "the most recently used leaves", "let a hit protect it", """
class MyPolicy:
    def __init__(self):
        self.order = {}

    def on_load(self, page):
        self.order[page] = None

    def on_hit(self, page):
        del self.order[page]
        self.order[page] = None

    def on_remove(self, page):
        del self.order[page]

    def victim(self, pinned):
        return next(page for page in reversed(self.order) if page not in pinned)
"""),
    Wrong("1.8", "a method has the wrong arguments", "names and arguments", """
class MyPolicy:
    def __init__(self):
        self.order = []

    def on_load(self, page):
        self.order.append(page)

    def on_hit(self, page):
        pass

    def on_remove(self, page):
        self.order.remove(page)

    def victim(self):
        return self.order[0]
"""),
    Alternative("1.8", "clock", """
class MyPolicy:
    def __init__(self):
        self.ring = []

    def on_load(self, page):
        self.ring.append([page, True])

    def on_hit(self, page):
        for entry in self.ring:
            if entry[0] == page:
                entry[1] = True

    def on_remove(self, page):
        self.ring = [entry for entry in self.ring if entry[0] != page]

    def victim(self, pinned):
        while True:
            page, used = self.ring[0]
            if not used and page not in pinned:
                return page
            self.ring[0][1] = False
            self.ring.append(self.ring.pop(0))
"""),
    Alternative("1.8", "counts that fade", """
class MyPolicy:
    def __init__(self):
        self.score, self.weight = {}, 1.0

    def on_load(self, page):
        self.score[page] = 0.0
        self.on_hit(page)

    def on_hit(self, page):
        self.weight *= 1.05
        self.score[page] += self.weight

    def on_remove(self, page):
        del self.score[page]

    def victim(self, pinned):
        return min((p for p in self.score if p not in pinned), key=lambda p: self.score[p])
"""),
]
