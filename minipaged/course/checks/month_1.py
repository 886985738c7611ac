"""Month 1: what must hold for the exercises on OS paging."""

from collections.abc import Callable
from typing import Any

from minipaged.course.framework import Expect, exercise
from minipaged.os_paging import (
    OPT,
    TRACES,
    OperatingSystem,
    PageFault,
    Pin,
    PolicyError,
    ReplacementPolicy,
    count_faults,
    simulate,
)

SHIFT_AND_MASK = "page = address // page size, offset = address % page size (4096 bytes: a shift by 12, and a mask)."


@exercise(
    "1.1",
    title="Page and offset",
    stars=1,
    minutes=5,
    hints=(
        "How many bytes does a page hold, and how many bits of the address are needed to count them?",
        "The low bits are the offset, the bits above are the page number. 4096 is 2**12, so the offset has 12 bits.",
        "page = address // page_size (the same as address >> 12); offset = address % page_size (address & 0xFFF).",
    ),
    vllm="vllm/v1/worker/block_table.py · BlockTable.compute_slot_mapping (the same division, with blocks of tokens)",
    reference=("minipaged.os_paging.addresses.AddressFormat", "minipaged.os_paging.addresses.AddressFormat.split"),
)
def check_split(answer: Callable[[int, int], tuple[int, int]], expect: Expect) -> None:
    expect.returns(
        (3, 0xA7C), answer, 0x3A7C, 4096,
        rule=SHIFT_AND_MASK,
        mistakes={
            (14, 972): "A page of 4 KiB holds 4096 bytes, not 1000: shift by 12.",
            (0xA7C, 3): "First the page, then the offset.",
            (3, 0xA7C0): "The offset is what is left below the page number: mask it.",
        },
        hint="One hexadecimal digit is 4 bits. Which digits of 0x3A7C are the low 12 bits?",
    )  # fmt: skip
    hint = "The page size is an argument: pages of 16 bytes have an offset of 4 bits."
    for address, size in ((0, 4096), (4095, 4096), (4096, 4096), (0x57, 16), (21, 16), (0xFFFF, 256)):
        meant = "Byte 4095 is the last one of page 0, and 4096 the first one of page 1." if size == 4096 else hint
        expect.returns(divmod(address, size), answer, address, size, rule=SHIFT_AND_MASK, hint=meant)


@exercise(
    "1.2",
    title="Translate, or fault",
    stars=1,
    minutes=8,
    hints=(
        "The page table answers with a frame number. Which byte of that frame does the program want?",
        "physical = frame * page size + offset. An entry without a frame is a page fault.",
        "page, offset = divmod(address, page_size); if page_table[page] is None: raise PageFault(page); "
        "return page_table[page] * page_size + offset",
    ),
    vllm="vllm/v1/worker/block_table.py · BlockTable.compute_slot_mapping (block * block size + offset; no faults)",
    reference=("minipaged.os_paging.mmu.MMU", "minipaged.os_paging.mmu.MMU.translate"),
)
def check_translate(answer: Callable[[list[int | None], int, int], int], expect: Expect) -> None:
    rule = "physical address = frame * page size + offset."
    table = [3, 7, 5, 2]
    expect.returns(
        117, answer, table, 21, 16,
        rule=rule,
        mistakes={
            7: "That is the frame only: the address of its first byte is 7 * 16; then add the offset.",
            112: "That is the first byte of the frame: add the offset.",
            12: "The frame has to be multiplied by the page size before you add the offset.",
            21: "That is the virtual address: look the page up in the table.",
        },
        hint="Address 21 is page 1, offset 5; page 1 lies in frame 7.",
    )  # fmt: skip
    expect.returns(3 * 16, answer, table, 0, 16, rule=rule, hint="Page 0, offset 0: the first byte of frame 3.")
    zero = "Frame 0 is a frame like any other; only None means: not here."
    try:
        got = answer([0, None], 4, 16)
    except PageFault:
        expect.fail(rule=rule, case="page table [0, None], address 4, pages of 16 bytes: PageFault", hint=zero)
    expect.equal(got, 4, rule=rule, case="page table [0, None], address 4, pages of 16 bytes", hint=zero)
    absent = "An entry that is None has no frame: a page fault, which names the page."
    hint = "Nobody may read a page that is not in memory: raise PageFault(page)."
    expect.raises(PageFault, answer, [3, None, 5], 21, 16, rule=absent, hint=hint, names=(1,))
    expect.raises(PageFault, answer, [None, 4], 15, 16, rule=absent, hint=hint, names=(0,))
    expect.returns(
        9 * 4096 + 0xA7C, answer, [None, None, None, 9], 0x3A7C, 4096, rule=rule, hint="The page size is an argument."
    )


@exercise(
    "1.3",
    title="First fit, until it fails",
    stars=2,
    minutes=20,
    hints=(
        "Two holes of 4 are free. A request for 6 comes. Who would have to move, and who may?",
        "Take the first hole that is large enough, from its front. Never move what is allocated. When memory comes "
        "back, join it with a hole that ends where it begins, and with one that begins where it ends.",
        "allocate: for each hole in order: if hole size >= size: shrink it from the front (drop it at 0), return its "
        "address; at the end return None. free: append the hole, sort, and merge neighbours that touch.",
    ),
    vllm="nothing: vLLM's blocks are all of one size, so any free block fits (vllm/v1/core/block_pool.py · BlockPool)",
    reference=("minipaged.os_paging.contiguous.FirstFit", "minipaged.os_paging.allocators.allocator"),
)
def check_first_fit(answer: tuple[Callable, Callable], expect: Expect) -> None:
    allocate, free = answer
    holes = [(0, 12)]
    rule = "First fit takes the front of the first hole that is large enough."
    for want, size in ((0, 4), (4, 4), (8, 4)):
        expect.returns(want, allocate, holes, size, rule=rule, hint="The hole shrinks: change the list `holes`.")
    expect.equal(holes, [], rule="A hole that is used up is gone.", case="12 units, 4 + 4 + 4 taken",
                 hint="A hole of size 0 is no hole: remove it from the list.")  # fmt: skip
    expect.returns(None, allocate, holes, 1, rule="When no hole fits, the answer is None.", hint="No hole is left.")
    expect.call(free, holes, 0, 4)
    expect.call(free, holes, 8, 4)
    expect.equal(
        sorted(holes), [(0, 4), (8, 4)], rule="Freed memory becomes a hole where it was.",
        case="0-3 and 8-11 are freed, 4-7 is still in use",
        mistakes={((0, 8),): "Nothing moves: 4-7 is in use, so the two holes cannot be one."},
    )  # fmt: skip
    expect.returns(
        None, allocate, holes, 6, rule="A request is refused when no hole fits, even if the free total suffices.",
        mistakes={0: "8 units are free, but not side by side: nothing moves, so no place for 6.",
                  8: "8 units are free, but not side by side: nothing moves, so no place for 6."},
        hint="8 units are free, but not side by side: nothing moves. Answer None.",
        picture="|....|used|....|   two holes of 4, a request for 6",
    )  # fmt: skip
    expect.equal(sorted(holes), [(0, 4), (8, 4)], rule="A refused request changes nothing.", case="after the refusal",
                 hint="Look for a hole first; change the list only when you found one.")  # fmt: skip
    expect.call(free, holes, 4, 4)
    expect.equal(
        sorted(holes), [(0, 12)], rule="A freed range joins the holes that touch it, on both sides.",
        case="0-3 and 8-11 are free, 4-7 is freed",
        hint="Join the freed range with its neighbours: one hole of 12, else 6 will never fit.",
    )  # fmt: skip
    holes = [(0, 3), (10, 8), (30, 5)]
    expect.returns(
        10, allocate, holes, 5, rule=rule,
        mistakes={30: "That is best fit: the hole at 30 fits exactly. First fit stops at the first one that is large "
                  "enough."},
        hint="Go through the holes by address and stop at the first that is large enough.",
    )  # fmt: skip
    expect.equal(sorted(holes), [(0, 3), (15, 3), (30, 5)], rule="What is left of the hole stays a hole.",
                 case="5 of the 8 units at 10 are taken",
                 hint="Take from the front: the rest begins at 10 + 5 and is 5 smaller.")  # fmt: skip


@exercise(
    "1.4",
    title="Internal waste",
    stars=2,
    minutes=8,
    hints=(
        "A process of 5000 bytes gets pages of 4096. How many pages, and how much of the last one is unused?",
        "Each process gets whole pages: round its size up to pages. Waste is what it gets minus what it uses.",
        "sum(-size % page_size for size in sizes), or pages = ceil(size / page_size), waste = pages * page_size - size",
    ),
    vllm="vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager.get_num_blocks_to_allocate (cdiv)",
)
def check_internal_waste(answer: Callable[[list[int], int], int], expect: Expect) -> None:
    rule = "Each size is rounded up to whole pages; waste = pages * page size - size, summed."
    expect.returns(
        3192, answer, [5000], 4096, rule=rule,
        mistakes={904: "904 is the remainder: the remainder is the used part of the last page; the rest is wasted.",
                  4096 * 5000 - 5000: "Round up to pages, not to one page a byte."},
        hint="5000 bytes need 2 pages: 8192 bytes.",
    )  # fmt: skip
    expect.returns(0, answer, [4096, 8192], 4096, rule=rule,
                   mistakes={8192: "An exact multiple fills its last page and wastes nothing."},
                   hint="An exact multiple fills its last page and wastes nothing.")  # fmt: skip
    expect.returns(
        6, answer, [1, 5], 4, rule=rule,
        mistakes={2: "Processes do not share pages: round each size up, then add. (Here you rounded the sum, or summed "
                  "the used parts.)"},
        hint="1 byte wastes 3, 5 bytes waste 3.",
    )  # fmt: skip
    expect.returns(0, answer, [], 4096, rule=rule, hint="Without processes there is no waste.")
    sizes = [1, 15, 16, 17, 100, 4095]
    expect.returns(sum(-s % 16 for s in sizes), answer, sizes, 16, rule=rule, hint="The page size is an argument.")


@exercise(
    "1.5",
    title="Who leaves under LRU?",
    stars=2,
    minutes=15,
    hints=(
        "Pages 1, 2, 3 are in memory, and 1 has just been used again. Whose last use is the longest ago?",
        "Keep the pages ordered by their last use. A hit changes the order too. Only a fault with all frames full "
        "sends somebody away: the page whose last use is oldest.",
        "for page in trace: if page in memory: memory.remove(page) (a hit) elif memory is full: victims += "
        "[memory.pop(0)]; memory.append(page)   (the oldest use stands in front)",
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · FreeKVCacheBlockQueue (least recently used first; a hit takes a block out)",
    reference=("minipaged.os_paging.simulate.simulate", "minipaged.os_paging.replacement.LRU"),
)
def check_lru(answer: Callable[[list[int], int], list[int]], expect: Expect) -> None:
    rule = "LRU sends away the page whose last use is the longest ago."
    expect.returns([], answer, [1, 2, 3], 3, rule="Nobody leaves while a frame is free.",
                   hint="Three pages, three frames: every page finds a free frame, so nobody leaves.")  # fmt: skip
    expect.returns(
        [2], answer, [1, 2, 3, 1, 4], 3, rule=rule,
        mistakes={(1,): "That's FIFO: 1 came first, but it has just been used again.",
                  (3,): "That is the page loaded last. Whose last use is the longest ago?",
                  (1, 2): "Who leaves when 1 comes again? It is in memory: a hit."},
        hint="The last uses, oldest first: 2, 3, 1.",
    )  # fmt: skip
    expect.returns(
        [2], answer, [2, 2, 2, 1, 3, 4], 3, rule=rule,
        mistakes={(1,): "2 was used most often, but how often does not matter: its last use is the longest ago."},
        hint="Only the last use counts, not how often.",
    )  # fmt: skip
    for trace, frames in (([1, 2, 1, 2, 3], 1), ([0, 1, 2, 0, 1, 3, 0, 3, 1, 2, 1], 3), (TRACES["80-20"](20, 200), 7)):
        want = simulate(trace, frames, "lru").evicted
        expect.returns(want, answer, trace, frames, rule=rule, hint="Who came back after leaving is new again.")


@exercise(
    "1.6",
    title="fork and the first write",
    stars=2,
    minutes=20,
    hints=(
        "After fork, parent and child read the same frame. What may a write do to a frame that two tables name?",
        "fork copies the table and raises the counts, no frame. A write to a frame with a count above 1 copies it "
        "first; with a count of 1 it writes in place.",
        "write: frame = table[page]; if ref_counts[frame] > 1: new = free_frames.pop(0); copy the bytes; lower the "
        "old count; ref_counts[new] = 1; table[page] = new. Then store the byte.",
    ),
    vllm="in vLLM V1 only for partial-block hits of hybrid models; sharing counts: "
    "vllm/v1/core/block_pool.py · BlockPool.touch",
    reference=("minipaged.os_paging.operating_system.OperatingSystem",),
)
def check_fork(answer: tuple[Callable, Callable], expect: Expect) -> None:
    fork, write = answer
    frames = {0: bytearray(b"It was"), 1: bytearray(b" the b"), 2: bytearray(b"est of")}
    ref_counts, free_frames, parent = {0: 1, 1: 1, 2: 1}, [5, 6, 7], [0, 1, 2]
    child = expect.call(fork, parent, ref_counts, frames, free_frames)
    expect.equal(
        (len(frames), free_frames), (3, [5, 6, 7]), rule="fork copies the page table and no frame.",
        case="fork of a process with 3 pages: (frames in use, free frames)",
        hint="n pages, n copies, and most will never be written: copy at the write, not at the fork.",
    )  # fmt: skip
    expect.equal(child, [0, 1, 2], rule="Parent and child name the same frames.", case="the child's table after fork",
                 hint="Return a copy of the parent's table.")  # fmt: skip
    expect.that(child is not parent, rule="Each process has a page table of its own.", case="child is parent",
                hint="With one list for both, the child's copy changes the parent too. Make a new list.")  # fmt: skip
    expect.equal(ref_counts, {0: 2, 1: 2, 2: 2}, rule="The count says how many tables name the frame.",
                 case="the counts after fork", hint="Every frame is named once more.")  # fmt: skip
    expect.call(write, child, 1, 1, ord("T"), ref_counts, frames, free_frames)
    told = "the child writes 'T' at offset 1 of its page 1"
    unseen = "A process never sees another one's write."
    expect.equal(_bytes_in(frames, 1), b" the b", rule=unseen, case=told + "; frame 1",
                 hint="Two tables name frame 1: copy the frame first, then write to the copy.")  # fmt: skip
    expect.equal(parent, [0, 1, 2], rule="The parent is unchanged.", case="the parent's table after the child's write",
                 hint="Change the writer's table only.")  # fmt: skip
    expect.equal(child, [0, 5, 2], rule="The writer's entry points to the copy.", case="the child's table",
                 hint="Take the first free frame, and only for the page that is written.")  # fmt: skip
    expect.equal(_bytes_in(frames, 5), b" The b", rule="The copy holds the old bytes and the new one.",
                 case="frame 5", hint="Copy all bytes of the old frame, then store the new one.")  # fmt: skip
    expect.equal(
        {n: ref_counts.get(n) for n in (0, 1, 2, 5)}, {0: 2, 1: 1, 2: 2, 5: 1},
        rule="After the copy each of the two frames is named once.", case="the counts after the child's write",
        hint="The writer has left the old frame: lower its count; the copy begins with 1.",
    )  # fmt: skip
    expect.call(write, parent, 1, 0, ord("_"), ref_counts, frames, free_frames)
    expect.equal(
        (parent, free_frames), ([0, 1, 2], [6, 7]), rule="With a count of 1 the write goes in place: one copy in all.",
        case="now the parent writes to its page 1: (its table, free frames)",
        hint="The second writer is alone with the frame: a count of 1 needs no copy.",
    )  # fmt: skip
    expect.equal(
        (_bytes_in(frames, 1), _bytes_in(frames, 5)), (b"_the b", b" The b"), rule=unseen,
        case="frames 1 and 5 after both writes", hint="The copy must not be the same object: copy the bytes.",
    )  # fmt: skip


def _bytes_in(frames: dict[int, bytearray], frame: int) -> object:
    """The bytes of a frame; None when the answer has thrown it away, and whatever it put there instead of bytes."""
    held = frames.get(frame)
    return bytes(held) if isinstance(held, bytes | bytearray) else held


KV_SIDE = {
    "address space": "token sequence",
    "virtual page": "logical block",
    "frame": "physical block",
    "page table": "block table",
    "page fault": "a block allocated when a token needs it",
    "shared page, copy-on-write": "shared block, copy-on-write",
    "page replacement": "prefix-cache eviction",
    "swap to disk": "swap to host memory",
    "TLB": "nothing in software",
}
LEAKS = {
    "page fault": "Who notices the missing page? In an OS the hardware, in the middle of an instruction. On the GPU "
    "nothing faults: the scheduler allocates before the launch.",
    "TLB": "Who caches the block table? Nobody in software: the kernel reads the table itself each time. (The GPU's "
    "hardware has TLBs of its own, beneath all this.)",
    "swap to disk": "Who brings a page back from swap? In an OS a page fault, one page at a time. A sequence comes "
    "back whole or not at all, before it runs; and vLLM V1 recomputes instead.",
}


@exercise(
    "1.7",
    title="From the OS to the KV cache",
    stars=3,
    minutes=20,
    hints=(
        "What does a program name, what does memory hold, and what stands between the two? And the same for tokens?",
        "A page is the program's view, a frame is a piece of memory; a logical block is the sequence's view, a "
        "physical block is a piece of memory. A row leaks when hardware acts by itself on one side only.",
        "address space: the whole thing one owner sees. Three rows leak: the one where hardware notices something "
        "missing, the one that caches translations, and the one that needs the first to bring things back.",
    ),
    vllm="vllm/v1/core/kv_cache_manager.py · KVCacheManager (Month 2 opens it row by row)",
)
def check_dictionary(answer: tuple[dict[str, str], set[str]], expect: Expect) -> None:
    rows, leaky = answer
    for term, want in KV_SIDE.items():
        hint = "A page and a logical block are names; a frame and a physical block are places."
        if term == "TLB":
            hint = "Which part of the software would remember translations? The kernel reads the block table itself."
        elif term not in ("virtual page", "frame"):
            hint = "Ask for each side: who owns it, what does it name, and who acts?"
        expect.equal(rows.get(term), want, rule=f"The KV cache's counterpart of: {term}.", case=term, hint=hint)
    expect.that(
        isinstance(leaky, set | frozenset | list | tuple),
        rule="`leaky` is a set of terms from the left column.", got=leaky, hint='Write {"…", "…"}, or set() for none.',
    )  # fmt: skip
    rule = "A row leaks where the comparison with an operating system breaks."
    for term, hint in LEAKS.items():
        expect.that(term in leaky, rule=rule, case=f"{term!r} is missing from `leaky`", hint=hint)
    extra = sorted(str(term) for term in leaky if term not in list(LEAKS))
    expect.that(
        not extra, rule=rule, case=f"{', '.join(extra)} in `leaky`",
        hint="This row holds on both sides: what does the one do that the other cannot? Three rows leak.",
    )  # fmt: skip


GIVEN_TRACES = {
    "80-20": (TRACES["80-20"](100, 5_000, seed=1), 25),
    "hot and scan": (TRACES["hot and scan"](100, 5_000, seed=1), 25),
}
STORY = b"It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness"


def _run(expect: Expect, policy: ReplacementPolicy, trace: list[int], frames: int, pins: list[Pin], case: str) -> int:
    """Faults of the learner's policy; what it must not do is said in the words of the lesson."""
    hint = "Compare the names and arguments of your four methods with the stub's."
    with expect.no_error(rule="The policy answers each call of the memory.", case=case, hint=hint):
        try:
            return simulate(trace, frames, policy, pins).faults
        except PolicyError as error:
            refused = str(error)
    if "pinned" in refused:
        expect.fail(rule="A pinned page may not leave.", case=f"{case}: {refused}",
                    hint="Who still maps it? Somebody relies on its frame: pass over `pinned` pages.")  # fmt: skip
    expect.fail(rule="The victim is a page that is in memory.", case=f"{case}: {refused}",
                hint="A page that has left is reported through on_remove: forget it there.")  # fmt: skip


@exercise(
    "1.8",
    title="A replacement policy of your own",
    stars=3,
    minutes=60,
    hints=(
        "FIFO sends a page away that has just been used. What would your policy have to remember to avoid that?",
        "Keep an order, or a bit or a number a page. A use changes it in on_hit; victim() takes the first page by that "
        "order which is not in `pinned`; on_remove forgets the page.",
        "on_load and on_hit: self.last_use[page] = self.time; self.time += 1. on_remove: del self.last_use[page]. "
        "victim: min over the pages not in pinned, by last_use. (LRU; can you beat it on the 80-20 trace?)",
    ),
    vllm="vllm/v1/core/kv_cache_utils.py · FreeKVCacheBlockQueue (who is evicted from the prefix cache)",
    plug_in=True,
    reference=tuple(f"minipaged.os_paging.replacement.{n}" for n in ("FIFO", "LRU", "Clock", "OPT", "make_policy")),
)
def check_policy(answer: Callable[[], ReplacementPolicy], expect: Expect) -> None:
    def fresh() -> Any:
        return expect.call(answer)

    _run(expect, fresh(), [1, 2, 3, 1, 4, 2], 3, [], "3 frames, pages 1 2 3 1 4 2")
    for page in (1, 2, 3):
        pins = [Pin(page, 0, 9)]
        _run(expect, fresh(), [1, 2, 3, 4, 5, 4, 6], 3, pins, f"3 frames, pages 1 2 3 4 5 4 6, page {page} pinned")
    both = [Pin(1, 0, 50), Pin(2, 10, 30), Pin(3, 20, 60)]
    _run(expect, fresh(), TRACES["80-20"](12, 100, seed=2), 5, both, "5 frames, 100 references, up to 3 pages pinned")
    for name, (trace, frames) in GIVEN_TRACES.items():
        faults = _run(expect, fresh(), trace, frames, [], f"trace {name}, {frames} frames")
        fifo, best = count_faults(trace, frames, "fifo"), count_faults(trace, frames, OPT(trace))
        expect.that(
            faults < fifo, rule="Fewer faults than FIFO on each given trace.", case=f"trace {name}, {frames} frames",
            want=f"fewer than {fifo} faults (the optimum is {best})", got=f"{faults} faults",
            hint="A page that was used a moment ago will probably be used again: let a hit protect it.",
        )  # fmt: skip
    _run_the_system(fresh(), expect)


def _run_the_system(policy: ReplacementPolicy, expect: Expect) -> None:
    """Two processes copy a text through 4 frames and swap; the text that comes out is the proof."""
    system = OperatingSystem(num_frames=4, page_size=8, address_bits=9, policy=policy, swap_slots=64)
    rule = "The operating system runs with your policy, and no byte is lost."
    hint = "Here the numbers are frames, which come back with new content: forget a frame in on_remove."
    with expect.no_error(rule=rule, case="two processes copy a text through 4 frames", hint=hint):
        parent = system.spawn()
        system.map(parent, 0, 16, content=STORY)
        system.map(parent, 16, 16)
        child = system.fork(parent)
        for start in range(0, len(STORY), 4):
            system.write(parent, 128 + start, system.read(parent, start, len(STORY[start : start + 4])))
            system.write(child, 128 + start, system.read(child, start, len(STORY[start : start + 4])).upper())
        system.check_integrity()
        copies = [system.read(pid, 128, len(STORY)) for pid in (parent, child)]
    expect.equal(copies, [STORY, STORY.upper()], rule=rule, case="the copied texts", hint=hint)
