"""The kernels of Month 6's lesson, one step a module, in the order in which the lesson builds them.

    first_steps.py      double_kernel, gather_kernel     Triton in one page; read through a block table
    online_softmax.py   online_softmax_kernel            softmax block by block
    one_head.py         one_head_kernel                  paged decode, one program per query head, block by block
    decode.py           decode_kernel                    a group's query heads in one program, tiles of any size
    split.py            split_kernel, merge_kernel       one context shared out over several programs
    cache.py            write_kernel, copy_blocks_kernel what fills the cache, and what copy-on-write needs
    prefill.py          prefill_kernel                   any mix of prompts, chunks and decodes
    backend.py          LessonBackend                    all of it as the engine's attention

They have the names and shapes of ``minipaged.attention.triton``, whose kernels add speed, types and options. Here a
KV cache is float32 (or a GPU's own types), its heads and elements lie side by side, and K and V have equal strides.
"""

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ImportError(
        "the kernels of Month 6 need triton, which is not installed. It has wheels for Linux only: on macOS and "
        "Windows open the course in WSL, a devcontainer or a hosted notebook. All other months work without it."
    ) from error
