"""Checks for Month 2, the block table."""

from collections.abc import Callable

from minipaged.course.framework import Expect, exercise


@exercise(
    "2.1",
    title="How many blocks?",
    stars=1,
    minutes=5,
    hints=(
        "How many blocks do 7 tokens need if a block holds 4? And 8 tokens? And 9?",
        "n tokens need n / block_size blocks, rounded up: the last block may be only partly filled.",
        "add block_size - 1 to the number of tokens, then divide with // by block_size",
    ),
    vllm="vllm/v1/core/single_type_kv_cache_manager.py · SingleTypeKVCacheManager.get_num_blocks_to_allocate",
)
def check_num_blocks(answer: Callable[[int, int], int], expect: Expect) -> None:
    """num_blocks(num_tokens, block_size) -> int."""
    rule = "n tokens need n / block_size blocks, rounded up."
    for num_tokens, blocks in ((0, 0), (1, 1), (7, 2), (8, 2), (9, 3)):
        expect.returns(
            blocks,
            answer,
            num_tokens,
            4,
            rule=rule,
            hint="Look at exact multiples: 8 tokens fill 2 blocks of 4, and no token needs a third."
            if num_tokens % 4 == 0
            else "The last block counts even when it holds a single token: round up.",
        )
    for num_tokens in range(1, 70):
        expect.returns(-(-num_tokens // 16), answer, num_tokens, 16, rule=rule, hint="Does it use block_size?")
