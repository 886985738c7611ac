"""Run by the interpreter where transformers is installed: `generate` on a dense batch, up to its longest output."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from work import serve, settings


def main() -> None:
    given = settings()  # threads, before torch is imported
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, given["dtype"])
    model = AutoModelForCausalLM.from_pretrained(given["folder"], dtype=dtype).eval()

    @torch.inference_mode()
    def generate(prompts, lengths):
        # The prompts are equally long, so there is no padding before them; all rows run to the longest output.
        input_ids, longest = torch.tensor(prompts), max(lengths)
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            min_new_tokens=longest,
            max_new_tokens=longest,
            do_sample=False,
            pad_token_id=0,
        )
        new = output[:, input_ids.shape[1] :].tolist()
        return [tokens[:length] for tokens, length in zip(new, lengths, strict=True)]

    serve(f"transformers {transformers.__version__}", generate)


if __name__ == "__main__":
    main()
