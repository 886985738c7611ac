"""Month 4: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong

ANSWERS = [
    Wrong("4.1", "the peak", "Average over live requests", """
def utilisation(lengths, max_len):
    return max(lengths) / max_len
"""),
    Wrong("4.1", "one reservation for all", "divide by the slots of all", """
def utilisation(lengths, max_len):
    return sum(lengths) / max_len
"""),
    Wrong("4.1", "percent", "not percent", """
def utilisation(lengths, max_len):
    return 100 * sum(lengths) / (len(lengths) * max_len)
"""),
    Wrong("4.1", "whole numbers", "needs /", """
def utilisation(lengths, max_len):
    return sum(lengths) // (len(lengths) * max_len)
"""),
    Wrong("4.1", "the empty share", "the share that is empty", """
def utilisation(lengths, max_len):
    return 1 - sum(lengths) / (len(lengths) * max_len) if lengths else 0.0
"""),
    Wrong("4.1", "a text", "do not format", """
def utilisation(lengths, max_len):
    return str(sum(lengths) / (len(lengths) * max_len))
"""),
    Wrong("4.1", "rounded", "do not round", """
def utilisation(lengths, max_len):
    return round(sum(lengths) / (len(lengths) * max_len), 2) if lengths else 0.0
"""),
    Wrong("4.1", "nothing for nobody", "return 0.0 instead of dividing", """
def utilisation(lengths, max_len):
    return sum(lengths) / (len(lengths) * max_len) if lengths else 1.0
"""),
    Alternative("4.1", "the mean of the requests' own shares", """
def utilisation(lengths, max_len):
    shares = [length / max_len for length in lengths]
    return sum(shares) / max(1, len(shares))
"""),
    Wrong("4.2", "one power too far", "at most 2×", """
def pow2_slots(output_tokens):
    return 2 << output_tokens.bit_length()
"""),
    Wrong("4.2", "a power of two is doubled", "it is not doubled", """
def pow2_slots(output_tokens):
    return 1 << output_tokens.bit_length()
"""),
    Wrong("4.2", "rounded down", "round up", """
def pow2_slots(output_tokens):
    return 1 << (output_tokens.bit_length() - 1)
"""),
    Wrong("4.2", "twice the length", "Not the doubled length", """
def pow2_slots(output_tokens):
    return 2 * output_tokens
"""),
    Wrong("4.2", "the exponent", "5 is the exponent", """
def pow2_slots(output_tokens):
    return (output_tokens - 1).bit_length()
"""),
    Wrong("4.2", "at least two", "1 is a power of two, too", """
def pow2_slots(output_tokens):
    return max(2, 1 << (output_tokens - 1).bit_length())
"""),
    Wrong("4.2", "whole blocks", "not whole blocks", """
def pow2_slots(output_tokens):
    return -(-output_tokens // 16) * 16
"""),
    Alternative("4.2", "a loop", """
def pow2_slots(output_tokens):
    size = 1
    while size < output_tokens:
        size *= 2
    return size
"""),
    Wrong("4.3", "half a block", "A full block wastes 0", """
def mean_waste(block_size):
    return block_size / 2
"""),
    Wrong("4.3", "filled slots instead of empty ones", "The empty ones are asked for", """
def mean_waste(block_size):
    return (block_size + 1) / 2
"""),
    Wrong("4.3", "rounded down", "a mean need not be whole", """
def mean_waste(block_size):
    return (block_size - 1) // 2
"""),
    Wrong("4.3", "always 7.5", "The block size is an argument", """
def mean_waste(block_size):
    return 7.5
"""),
    Alternative("4.3", "counted", """
def mean_waste(block_size):
    return sum(block_size - filled for filled in range(1, block_size + 1)) / block_size
"""),
    Wrong("4.4", "only the waste", "What does B=1 cost?", """
def sweep(lengths, block_sizes):
    return [(size, sum(-n % size for n in lengths)) for size in block_sizes]
"""),
    Wrong("4.4", "the last block has no entry", "round up", """
def sweep(lengths, block_sizes):
    return [(size, sum(n // size for n in lengths), sum(-n % size for n in lengths)) for size in block_sizes]
"""),
    Wrong("4.4", "all sequences in one row of blocks", "for each sequence by itself", """
def sweep(lengths, block_sizes):
    return [(size, -(-sum(lengths) // size), -sum(lengths) % size) for size in block_sizes]
"""),
    Wrong("4.4", "a full last block wastes a whole one", "wastes nothing", """
def sweep(lengths, block_sizes):
    return [(B, sum(-(-n // B) for n in lengths), sum(B - n % B for n in lengths)) for B in block_sizes]
"""),
    Wrong("4.4", "one entry too many", "n // B + 1 is one too many", """
def sweep(lengths, block_sizes):
    return [(B, sum(n // B + 1 for n in lengths), sum(-n % B for n in lengths)) for B in block_sizes]
"""),
    Wrong("4.4", "waste before entries", "The order in a tuple", """
def sweep(lengths, block_sizes):
    return [(B, sum(-n % B for n in lengths), sum(-(-n // B) for n in lengths)) for B in block_sizes]
"""),
    Wrong("4.4", "a row for each sequence", "One tuple for each block size", """
def sweep(lengths, block_sizes):
    return [(B, -(-n // B), -n % B) for B in block_sizes for n in lengths]
"""),
    Wrong("4.4", "the mean waste", "no mean, no share", """
def sweep(lengths, block_sizes):
    return [(B, sum(-(-n // B) for n in lengths), sum(-n % B for n in lengths) / len(lengths)) for B in block_sizes]
"""),
    Alternative("4.4", "with loops", """
def sweep(lengths, block_sizes):
    rows = []
    for size in block_sizes:
        entries = waste = 0
        for length in lengths:
            while length > 0:
                entries += 1
                waste += max(0, size - length)
                length -= size
        rows.append((size, entries, waste))
    return rows
"""),
    Wrong("4.5", "each system gets what it would like", "the same bytes for all", """
def three_systems(requests, pool_slots):
    return {
        "max": simulate(requests, make_system("max", 2 * pool_slots, "first fit")),
        "buddy": simulate(requests, make_system("pow2", pool_slots, "buddy")),
        "paged": simulate(requests, make_system("paged", pool_slots)),
    }
"""),
    Wrong("4.5", "the paged one is a reserving one", "any free block fits any request", """
def three_systems(requests, pool_slots):
    return {
        "max": simulate(requests, make_system("max", pool_slots, "first fit")),
        "buddy": simulate(requests, make_system("pow2", pool_slots, "buddy")),
        "paged": simulate(requests, make_system("oracle", pool_slots, "first fit")),
    }
"""),
    Wrong("4.5", "another trace for one of them", "gets the whole list", """
def three_systems(requests, pool_slots):
    return {
        "max": simulate(requests[:50], make_system("max", pool_slots, "first fit")),
        "buddy": simulate(requests, make_system("pow2", pool_slots, "buddy")),
        "paged": simulate(requests, make_system("paged", pool_slots)),
    }
"""),
    Wrong("4.5", "an oracle instead of powers of two", 'make_system("pow2"', """
def three_systems(requests, pool_slots):
    return {
        "max": simulate(requests, make_system("max", pool_slots, "first fit")),
        "buddy": simulate(requests, make_system("oracle", pool_slots, "buddy")),
        "paged": simulate(requests, make_system("paged", pool_slots)),
    }
"""),
    Wrong("4.5", "only one number kept", "keep it whole", """
def three_systems(requests, pool_slots):
    names = {"max": "max", "buddy": "pow2", "paged": "paged"}
    return {key: simulate(requests, make_system(name, pool_slots)).mean_running for key, name in names.items()}
"""),
    Alternative("4.5", "one after the other", """
def three_systems(requests, pool_slots):
    results = {}
    results["paged"] = simulate(requests, Paged(pool_slots, 16))
    results["buddy"] = simulate(list(requests), make_system("pow2", pool_slots))
    results["max"] = simulate(requests, make_system("max", pool_slots, "best fit"))
    return results
"""),
    Wrong("4.6", "B rounded once for all", "Round per request", "blocks_a, blocks_b = 400, 12813"),
    Wrong("4.6", "A rounded once for all", "Round per request", "blocks_a, blocks_b = 375, 12813"),
    Wrong("4.6", "without the prompts", "The prompt takes slots", "blocks_a, blocks_b = 100, 12500"),
    Wrong("4.6", "rounded down", "2 are left over", "blocks_a, blocks_b = 400, 12800"),
    Wrong("4.6", "prompt and output in blocks of their own", "round up their sum", "blocks_a, blocks_b = 500, 12900"),
    Wrong("4.6", "the wrong way round", "workload B's number", "blocks_a, blocks_b = 12900, 400"),
    Alternative("4.6", "counted", """
blocks_a = sum(len(range(0, request.total_tokens, 16)) for request in workload_a())
blocks_b = sum(len(range(0, request.total_tokens, 16)) for request in workload_b())
"""),
    Wrong("4.7", "the popular claim", "which throughput?", """
def a_against_b(num_blocks):
    return {"requests_per_step": 4, "tokens_to_compute": 4, "output_per_token": 4, "preemptions": 1}
"""),
    Wrong("4.7", "one number for all", "which throughput?", """
def a_against_b(num_blocks):
    return {"throughput": 4.0}
"""),
    Wrong("4.7", "upside down", "upside down", """
def a_against_b(num_blocks):
    a, b = (simulate(work(), Paged(num_blocks * 16)) for work in (workload_a, workload_b))
    return {"requests_per_step": a.steps / b.steps, "tokens_to_compute": 1, "output_per_token": 1, "preemptions": 0}
"""),
    Wrong("4.7", "counts the last token of each answer", "The last token of each answer never runs", """
def a_against_b(num_blocks):
    a, b = (simulate(work(), Paged(num_blocks * 16)) for work in (workload_a, workload_b))
    return {
        "requests_per_step": a.requests_per_step / b.requests_per_step,
        "tokens_to_compute": b.computed_tokens / a.computed_tokens,
        "output_per_token": (200_000 / b.computed_tokens) / (1_000 / a.computed_tokens),
        "preemptions": b.preemptions,
    }
"""),
    Wrong("4.7", "from the lengths: no token is computed twice", "compute their tokens again", """
def a_against_b(num_blocks):
    a, b = (simulate(work(), Paged(num_blocks * 16)) for work in (workload_a, workload_b))
    return {
        "requests_per_step": a.requests_per_step / b.requests_per_step,
        "tokens_to_compute": 204_900 / 5_900,
        "output_per_token": (200_000 / 204_900) / (1_000 / 5_900),
        "preemptions": b.preemptions,
    }
"""),
    Wrong("4.7", "blocks taken for slots", "Paged takes slots", """
def a_against_b(num_blocks):
    a, b = (simulate(work(), Paged(num_blocks)) for work in (workload_a, workload_b))
    names = ("requests_per_step", "tokens_to_compute", "output_per_token", "preemptions")
    return dict(zip(names, (a.requests_per_step / b.requests_per_step, 1, 1, b.preemptions)))
"""),
    Wrong("4.7", "a text among the numbers", "Divide two numbers", """
def a_against_b(num_blocks):
    a, b = (simulate(work(), Paged(num_blocks * 16)) for work in (workload_a, workload_b))
    names = ("requests_per_step", "tokens_to_compute", "output_per_token", "preemptions")
    return dict(zip(names, (a.requests_per_step / b.requests_per_step, "34.7", 5.76, b.preemptions)))
"""),
    Wrong("4.7", "always an ample pool", "as large as num_blocks says", """
def a_against_b(num_blocks):
    a, b = (simulate(work(), Paged(13_000 * 16)) for work in (workload_a, workload_b))
    ratio = (b.computed_tokens - 100) / (a.computed_tokens - 100)
    names = ("requests_per_step", "tokens_to_compute", "output_per_token", "preemptions")
    return dict(zip(names, (a.requests_per_step / b.requests_per_step, ratio, 200 / ratio, b.preemptions)))
"""),
    Wrong("4.7", "output tokens left out", "A has 1,000 output tokens, B 200,000", """
def a_against_b(num_blocks):
    a, b = (simulate(work(), Paged(num_blocks * 16)) for work in (workload_a, workload_b))
    ratio = (b.computed_tokens - 100) / (a.computed_tokens - 100)
    names = ("requests_per_step", "tokens_to_compute", "output_per_token", "preemptions")
    return dict(zip(names, (a.requests_per_step / b.requests_per_step, ratio, 1 / ratio, b.preemptions)))
"""),
    Alternative("4.7", "written out", """
def a_against_b(num_blocks):
    a = simulate(workload_a(), make_system("paged", 16 * num_blocks))
    b = simulate(workload_b(), make_system("paged", 16 * num_blocks))
    ratio = (b.computed_tokens - 100) / (a.computed_tokens - 100)
    speed = b.steps / a.steps
    names = ("requests_per_step", "tokens_to_compute", "output_per_token", "preemptions")
    return dict(zip(names, (speed, ratio, 200 / ratio, b.preemptions)))
"""),
    Wrong("4.8", "holes are never joined", "4 and 6 free slots side by side", """
class MyAllocator:
    def __init__(self, total):
        self.free_total, self.holes, self.owned = total, [(0, total)], {}

    def allocate(self, size):
        for i, (start, length) in enumerate(self.holes):
            if length >= size:
                self.holes[i : i + 1] = [(start + size, length - size)] if length > size else []
                self.owned[start] = size
                self.free_total -= size
                return start
        return None

    def free(self, address):
        if address not in self.owned:
            raise ValueError(f"nothing at {address}")
        size = self.owned.pop(address)
        self.free_total += size
        self.holes = sorted([*self.holes, (address, size)])
"""),
    Wrong("4.8", "a hole of the right size is refused", ">= and not >", """
class MyAllocator:
    def __init__(self, total):
        self.free_total, self.owners, self.owned = total, [0] * total, {}

    def allocate(self, size):
        for start in range(len(self.owners) - size):
            if not any(self.owners[start : start + size]):
                self.owners[start : start + size] = [1] * size
                self.owned[start] = size
                self.free_total -= size
                return start
        return None

    def free(self, address):
        size = self.owned.pop(address)
        self.owners[address : address + size] = [0] * size
        self.free_total += size
"""),
    Wrong("4.8", "a double free is silent", "frees twice", """
class MyAllocator:
    def __init__(self, total):
        self.free_total, self.owners, self.owned = total, [0] * total, {}

    def allocate(self, size):
        for start in range(len(self.owners) - size + 1):
            if not any(self.owners[start : start + size]):
                self.owners[start : start + size] = [1] * size
                self.owned[start] = size
                self.free_total -= size
                return start
        return None

    def free(self, address):
        size = self.owned.pop(address, 0)
        self.owners[address : address + size] = [0] * size
        self.free_total += size
"""),
    Wrong("4.8", "hands out what is taken", "Take the slots out of the hole", """
class MyAllocator:
    def __init__(self, total):
        self.total, self.owned = total, {}

    @property
    def free_total(self):
        return self.total - sum(self.owned.values())

    def allocate(self, size):
        start = sum(self.owned.values())
        while start in self.owned:
            start += 1
        if start + size > self.total:
            return None
        self.owned[start] = size
        return start

    def free(self, address):
        if address not in self.owned:
            raise ValueError(f"nothing at {address}")
        del self.owned[address]
"""),
    Wrong("4.8", "memory is never given back", "they are free again", """
class MyAllocator:
    def __init__(self, total):
        self.total, self.top, self.free_total = total, 0, total

    def allocate(self, size):
        if self.top + size > self.total:
            return None
        self.top += size
        self.free_total -= size
        return self.top - size

    def free(self, address):
        pass
"""),
    Wrong("4.8", "rounded up to even sizes", "exactly the slots that were asked for", """
class MyAllocator:
    def __init__(self, total):
        self.owners, self.owned = [0] * total, {}

    @property
    def free_total(self):
        return self.owners.count(0)

    def allocate(self, size):
        size += size % 2
        for start in range(len(self.owners) - size + 1):
            if not any(self.owners[start : start + size]):
                self.owners[start : start + size] = [1] * size
                self.owned[start] = size
                return start
        return None

    def free(self, address):
        if address not in self.owned:
            raise ValueError(f"nothing at {address}")
        size = self.owned.pop(address)
        self.owners[address : address + size] = [0] * size
"""),
    Alternative("4.8", "best fit over a plain list of owners", """
class MyAllocator:
    def __init__(self, total):
        self.owners = [None] * total

    @property
    def free_total(self):
        return self.owners.count(None)

    def allocate(self, size):
        best, start = None, 0
        while start < len(self.owners):
            stop = start
            while stop < len(self.owners) and self.owners[stop] is None:
                stop += 1
            if stop - start >= size and (best is None or stop - start < best[1]):
                best = (start, stop - start)
            start = stop + 1
        if best is None:
            return None
        self.owners[best[0] : best[0] + size] = [best[0]] * size
        return best[0]

    def free(self, address):
        if address not in self.owners:
            raise ValueError(f"no piece begins at {address}")
        self.owners = [None if owner == address else owner for owner in self.owners]
"""),
]
