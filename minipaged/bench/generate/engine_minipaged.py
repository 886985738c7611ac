"""minipaged behind the wire of work.py. Run in a process of its own, like every peer."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from work import EQUAL_OUTPUT, PROMPT_TOKENS, peak_bytes, serve, settings


def main() -> None:
    """Without prefix cache: each round sends the same prompts again."""
    given = settings()  # threads, before torch is imported
    import torch

    import minipaged
    from minipaged.serving import LLM, SamplingParams

    imported = peak_bytes()
    blocks = -(-(PROMPT_TOKENS + EQUAL_OUTPUT) // given["block_size"])  # of the longest sequence
    llm = LLM(
        given["folder"],
        dtype=getattr(torch, given["dtype"]),
        block_size=given["block_size"],
        num_blocks=given["sequences"] * blocks,
        max_num_seqs=given["sequences"],
        enable_prefix_caching=False,
    )

    def generate(prompts, lengths):
        params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]

    model, storage = llm.model, llm.engine.runner.storage
    memory = {
        "weight_bytes": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        "pool_bytes": storage.num_bytes,
        "imported_bytes": imported,
    }
    serve(f"minipaged {minipaged.__version__}", generate, memory)


if __name__ == "__main__":
    main()
