"""Run by the interpreter where vLLM is installed: its `LLM` on the CPU, greedy, without prefix cache.

Written against vLLM 0.32. Its attention on the CPU wants a block size that is a multiple of 32.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine in this process: no wire inside the clock
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from work import serve, settings


def main() -> None:
    given = settings()  # threads, before torch is imported
    import vllm

    llm = vllm.LLM(
        given["folder"],
        dtype=given["dtype"],
        block_size=given["block_size"],
        max_model_len=1024,
        max_num_seqs=given["sequences"],
        enable_prefix_caching=False,
    )

    def generate(prompts, lengths):
        params = [
            vllm.SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
            for length in lengths
        ]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    serve(f"vLLM {vllm.__version__}", generate)


if __name__ == "__main__":
    main()
