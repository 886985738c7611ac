"""Random-weight checkpoints made by transformers, and the two ways to their logits: transformers' and the engine's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import minipaged  # noqa: F401  (first, so that transformers does not import triton before it)
from minipaged import LLM, SamplingParams
from minipaged.model import TINY_FOLDER

SIZES = {
    "vocab_size": 1100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
    # Large weights: logits are far apart, so that no greedy choice hangs on rounding.
    "initializer_range": 0.2,
}  # fmt: skip
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


@dataclass
class Checkpoint:
    folder: Path
    model: object = field(repr=False)  # transformers'


def make_checkpoint(folder: Path, family: str, *, max_shard_size: str = "150KB", **changes) -> Checkpoint:
    """A random model of a family, saved by save_pretrained in several shards, with the bundled tokenizer."""
    import transformers

    name = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**SIZES | changes)
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, family)))
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval().requires_grad_(False)
        for parameter_name, parameter in model.named_parameters():  # else biases are 0 and norms are 1
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=float("norm" in parameter_name), std=0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY_FOLDER / file, folder / file)
    return Checkpoint(folder, model)


def random_prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 1100, (length,), generator=generator).tolist() for length in lengths]


def run_engine(
    folder: Path, prompts: list[list[int]], max_tokens: int, **options
) -> tuple[list[list[int]], list[Tensor]]:
    """Greedy tokens of each prompt, and the logits [max_tokens, vocab_size] that they were chosen from.

    The requests stay together, in the prompts' order: so row i of a step is the next token of prompt i.
    """
    llm = LLM(folder, **options)
    steps, execute = [], llm.engine.runner.execute

    def recording(token_ids, positions, metadata, rows):
        logits = execute(token_ids, positions, metadata, rows)
        if len(rows) == len(prompts):
            steps.append(logits.clone())
        return logits

    llm.engine.runner.execute = recording
    outputs = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    llm.engine.check_integrity()
    assert len(steps) == max_tokens
    return [output.outputs[0].token_ids for output in outputs], list(torch.stack(steps, dim=1))


def assert_same_as_transformers(checkpoint: Checkpoint, prompts: list[list[int]], max_tokens: int = 64, **options):
    """Logits to 10⁻⁴ at every generated position, and the same greedy tokens.

    transformers gets prompt and answer in one call. If its best token is ours at each position, then its own greedy
    text is ours, too: both began with the same prompt.
    """
    tokens, logits = run_engine(checkpoint.folder, prompts, max_tokens, **options)
    for prompt, answer, row in zip(prompts, tokens, logits, strict=True):
        whole = torch.tensor([prompt + answer[:-1]])
        expected = checkpoint.model(whole).logits[0, len(prompt) - 1 :]
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=0)
        assert answer == expected.argmax(-1).tolist()
