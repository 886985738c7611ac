"""Make the bundled checkpoint: `python -m minipaged.model.train_tiny [--out DIR] [--steps N]`.

Corpus, tokenizer, initial weights and batches all come from fixed seeds, and the number of threads is fixed, so the
same machine writes the same file each time. Another machine may round differently; its model passes the same tests.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as CoreTokenizer
from torch import Tensor

from minipaged.model import corpus
from minipaged.model.config import ModelConfig
from minipaged.model.decoder import LlamaModel
from minipaged.model.loader import TINY_FOLDER, save_checkpoint

SEED = 1863  # the year of the Gettysburg Address
THREADS = 2
STEPS = 2600
TOKENS_PER_STEP = 2048
SHORT, LONG = 256, 2048  # sequence lengths: most steps short and fast, the last ones long
LONG_SHARE = 0.15
PEAK_LEARNING_RATE, WARMUP_STEPS = 3e-3, 100

TOKENIZER_DOCUMENTS = 5000
VOCAB_SIZE = 1024
# A word keeps the space before it and a question mark after it; digits stand alone.
WORDS = r" ?\p{L}+\??| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the bundled checkpoint `tiny`.")
    parser.add_argument("--out", type=Path, default=TINY_FOLDER, help="folder to write (default: the package's own)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps (default: {STEPS})")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; at least 1 is needed")
    train(options.out, options.steps)


def train(folder: Path, steps: int = STEPS) -> None:
    """Train for `steps` steps and write the checkpoint's files into `folder`."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(THREADS)  # the number of threads decides the order of sums, and so the last bits
    try:
        core = train_tokenizer()
        config = tiny_config(core)
        model = initial_model(config)
        optimise(model, core, steps)
    finally:
        torch.set_num_threads(threads_before)
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", config.to_dict())
    write_json(folder / "generation_config.json", {"eos_token_id": config.eos_token_id, "do_sample": False})
    write_json(folder / "tokenizer_config.json", tokenizer_config(config))
    save_checkpoint(model, folder)


def train_tokenizer() -> CoreTokenizer:
    """Byte-level BPE on the corpus. All 256 bytes are in the vocabulary, so any UTF-8 text can be encoded."""
    core = CoreTokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=corpus.SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = corpus.sample(SEED, TOKENIZER_DOCUMENTS)
    # " mothers" is rare in the corpus, but lessons need it as one token, as " fathers" is.
    texts += [corpus.GETTYSBURG.format(parents="mothers")] * 500
    for special in corpus.SPECIAL_TOKENS:  # special tokens are no text to learn from
        texts = [text.replace(special, "\n") for text in texts]
    core.train_from_iterator((line for text in texts for line in text.split("\n")), trainer)
    return core


def tiny_config(core: CoreTokenizer) -> ModelConfig:
    return ModelConfig(
        vocab_size=core.get_vocab_size(),
        hidden_size=128,
        intermediate_size=384,
        num_layers=4,
        num_heads=8,
        num_kv_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=core.token_to_id(corpus.END),
    )


def tokenizer_config(config: ModelConfig) -> dict[str, object]:
    """What transformers and vLLM want to know about tokenizer.json: no BOS, the end token, the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": corpus.END,
        "pad_token": corpus.END,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_position_embeddings,
        "chat_template": corpus.CHAT_TEMPLATE,
    }


def initial_model(config: ModelConfig) -> LlamaModel:
    """Normal weights of deviation 0.02·…; matrices that write to the stream are smaller, as in GPT-2."""
    torch.manual_seed(SEED)
    model = LlamaModel(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            to_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(weight, std=0.04 / (math.sqrt(2 * config.num_layers) if to_stream else 1))
    return model


def optimise(model: LlamaModel, core: CoreTokenizer, steps: int) -> None:
    """AdamW with warm-up and a cosine to zero; every token of every text is learned."""
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    vectors = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    tokens = token_stream(core)
    start = time.perf_counter()
    for step in range(steps):
        length = SHORT if step < steps * (1 - LONG_SHARE) else LONG
        batch = next_batch(tokens, length)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, steps)
        logits = model.forward_dense(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            seconds = time.perf_counter() - start
            print(f"step {step:5d} of {steps}   loss {loss.item():.3f}   {seconds:5.0f} s", flush=True)


def learning_rate(step: int, steps: int) -> float:
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return PEAK_LEARNING_RATE * warmup * 0.5 * (1 + math.cos(math.pi * step / steps))


def token_stream(core: CoreTokenizer) -> Iterator[list[int]]:
    """The encoded documents of the training seed, one by one."""
    for text in corpus.documents(SEED):
        yield core.encode(text).ids


def next_batch(tokens: Iterator[list[int]], length: int) -> Tensor:
    """[rows, length + 1] token ids. Each row begins with a new document and is filled up with the next ones."""
    rows = []
    for _ in range(TOKENS_PER_STEP // length):
        row: list[int] = []
        while len(row) <= length:
            row += next(tokens)
        rows.append(row[: length + 1])
    return torch.tensor(rows)


def write_json(file: Path, values: dict[str, object]) -> None:
    file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
