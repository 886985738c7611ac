"""Counts in words, as a person writes them."""


def counted(number: int, word: str) -> str:
    """`1 token`, `7 tokens`, `2,048 slots`: a count with its noun (one that takes an s)."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
