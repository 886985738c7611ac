"""Small drawings in plain text, for the cards of checks and for terminals."""

from collections.abc import Sequence


def block_table_text(rows: Sequence[tuple[int, int]], block_size: int) -> str:
    """A block table as text: `rows` holds (physical block, filled slots), one a logical block.

    >>> print(block_table_text([(7, 4), (1, 3)], block_size=4))
    logical 0 -> physical 7  [####]  4 of 4 filled
    logical 1 -> physical 1  [###.]  3 of 4 filled
    """
    return "\n".join(
        f"logical {logical} -> physical {physical}  [{'#' * filled}{'.' * (block_size - filled)}]  "
        f"{filled} of {block_size} filled"
        for logical, (physical, filled) in enumerate(rows)
    )
