"""The picture of the README: a block table, drawn from the real manager after a real step of the bundled model.

`python -m minipaged.course.readme_picture docs/images/block_table.png` writes it.
"""

import sys
from pathlib import Path

from minipaged.course.driver import Driver
from minipaged.course.figures import Figure, draw_block_table
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.model import load_model

PROMPT = "Four score and seven years ago our"


def readme_picture() -> Figure:
    """The paper's example (its Figure 6): 7 tokens of prompt and 2 decode steps in blocks of 4."""
    model, tokenizer = load_model("tiny")
    manager = KVCacheManager(9, 4, free_order=[7, 1, 3])
    request = CacheRequest("request", tokenizer.encode(PROMPT))
    driver = Driver(model, manager)
    for _ in range(3):
        driver.greedy(request)
    title = "One request: its logical blocks, its block table, the pool of physical blocks"
    return draw_block_table(manager, request, tokenizer, title=title, new={"request": [request.num_tokens - 2]})


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m minipaged.course.readme_picture FILE.png", file=sys.stderr)
        return 2
    path, figure = Path(argv[0]), readme_picture()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(figure.png)
    print(figure.text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
