"""The pictures of the README: a block table and its growth, drawn from the real manager after real steps of the
bundled model.

`python -m minipaged.course.readme_picture docs/images` writes `block_table.png` and the animation `decode.gif`.
"""

import io
import sys
from pathlib import Path

from minipaged.course.driver import Driver
from minipaged.course.figures import Figure, draw_block_table
from minipaged.kv_cache import CacheRequest, KVCacheManager
from minipaged.model import load_model

PROMPT = "Four score and seven years ago our"
_SECONDS_A_FRAME = 1.2


def frames(num_steps: int) -> list[Figure]:
    """One picture a step: the paper's example (its Figure 6), a prompt of 7 tokens in blocks of 4, then decodes."""
    model, tokenizer = load_model("tiny")
    manager = KVCacheManager(9, 4, free_order=[7, 1, 3])
    request = CacheRequest("request", tokenizer.encode(PROMPT))
    driver = Driver(model, manager)
    title = "One request: its logical blocks, its block table, the pool of physical blocks"
    pictures = []
    for _ in range(num_steps):
        driver.greedy(request)
        new = {"request": [request.num_tokens - 2]}
        pictures.append(draw_block_table(manager, request, tokenizer, title=title, new=new))
    return pictures


def readme_picture() -> Figure:
    """The prompt and 2 decode steps."""
    return frames(3)[-1]


def animation(pictures: list[Figure]) -> bytes:
    """The pictures as one GIF that repeats; smaller ones are put on white ground of the largest's size."""
    from PIL import Image

    images = [Image.open(io.BytesIO(picture.png)).convert("RGB") for picture in pictures]
    size = (max(image.width for image in images), max(image.height for image in images))
    canvases = [Image.new("RGB", size, "white") for _ in images]
    for canvas, image in zip(canvases, images, strict=True):
        canvas.paste(image, (0, 0))
    first, *others = [canvas.quantize(64) for canvas in canvases]
    out = io.BytesIO()
    first.save(out, "GIF", save_all=True, append_images=others, duration=int(1000 * _SECONDS_A_FRAME), loop=0)
    return out.getvalue()


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m minipaged.course.readme_picture FOLDER", file=sys.stderr)
        return 2
    folder, picture = Path(argv[0]), readme_picture()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "block_table.png").write_bytes(picture.png)
    (folder / "decode.gif").write_bytes(animation(frames(12)))
    print(picture.text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
