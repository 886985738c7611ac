"""Month 2: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong

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
]
