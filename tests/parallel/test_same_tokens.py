"""Two and four ranks give the tokens of one, whatever the scheduler does; each rank holds its heads of every block.

All cases of a number of ranks run in the same processes: `many_runs` serves them one after the other.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minipaged import LLM, SamplingParams
from minipaged.model import TINY_FOLDER, LlamaModel, ModelConfig
from minipaged.model.hub import checkpoint_folder
from minipaged.model.loader import save_checkpoint
from minipaged.model.rope import RotaryEmbedding
from minipaged.model.train_tiny import write_json
from minipaged.parallel import ParallelLayout, run_ranks
from minipaged.parallel.run import generate_on_rank
from minipaged.serving import BeamSearchParams

SIZES = {
    "vocab_size": 1100, "hidden_size": 48, "intermediate_size": 80, "num_layers": 2, "num_heads": 8, "num_kv_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "eos_token_id": 0,
}  # fmt: skip
MODELS = {
    "qwen3": ModelConfig(**SIZES, architecture="Qwen3ForCausalLM", qk_norm=True),
    "llama with biases": ModelConfig(**SIZES, qkv_bias=True, o_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "mistral with a window": ModelConfig(
        **SIZES, architecture="MistralForCausalLM", sliding_window=5, sliding_layers=(0, 1)
    ),
}
PROMPTS = ["Four score and seven years ago our", "A block table maps", "Four score and seven years ago we", "The"]


def look(runner) -> tuple:
    storage = runner.storage
    return list(storage.k_cache[0].shape), [cache.clone() for cache in (*storage.k_cache, *storage.v_cache)]


@dataclass
class Case:
    name: str
    model: str = "tiny"
    params: object = field(default_factory=lambda: SamplingParams(max_tokens=10, ignore_eos=True))
    options: dict = field(default_factory=dict)
    prompts: list = field(default_factory=lambda: list(PROMPTS))
    own: type | None = None
    expects: str = ""  # a count of EngineStats that must not be 0: it says that the case is what it claims to be


class PluggedIn:
    """A tensor-parallel attention as a learner writes it: no biases, no norms."""

    def __init__(self, attention, rank, num_ranks, all_reduce):
        self.head_dim, self.scale, self.all_reduce = attention.head_dim, attention.scale, all_reduce
        layout = ParallelLayout(ModelConfig(**SIZES | {"num_heads": attention.num_heads}), num_ranks)
        kinds = (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)
        heads = attention.qkv_proj.weight.unflatten(0, (-1, self.head_dim)).split(kinds)
        mine = (layout.heads(rank), layout.kv_heads(rank), layout.kv_heads(rank))
        self.parts = [len(span) for span in mine]
        self.qkv = torch.cat([kind[list(span)] for kind, span in zip(heads, mine, strict=True)]).flatten(0, 1)
        self.columns = attention.o_proj.weight.chunk(num_ranks, dim=1)[rank].clone()

    def forward(self, hidden: Tensor, cos, sin, k_cache, v_cache, metadata, backend) -> Tensor:
        heads = F.linear(hidden, self.qkv).unflatten(-1, (-1, self.head_dim))
        query, key, value = heads.split(self.parts, dim=-2)
        query, key = (RotaryEmbedding.rotate(part, cos, sin) for part in (query, key))
        backend.write(key, value, k_cache, v_cache, metadata.slot_mapping)
        attended = backend.attend(query, k_cache, v_cache, metadata, self.scale)
        return self.all_reduce(F.linear(attended.flatten(-2), self.columns))


def seeded(**changes) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "temperature": 0.9, "seed": 5, "ignore_eos": True} | changes)


CASES = [
    Case("tiny", options={"num_blocks": 20}),
    Case("blocks in disorder", options={"block_size": 4, "num_blocks": 40, "free_order": [7, 1, 3]}),
    Case("preemption", options={"block_size": 4, "num_blocks": 9, "watermark": 0.0}, expects="num_preemptions"),
    Case(
        "swap",
        options={"block_size": 4, "num_blocks": 9, "watermark": 0.0, "preemption": "swap", "num_cpu_blocks": 6,
                 "num_disk_blocks": 20},
        expects="num_swapped_out_blocks",
    ),
    Case("chunked prefill", options={"num_blocks": 20, "max_num_batched_tokens": 5, "max_num_seqs": 4}),
    Case("prefix caching", options={"block_size": 4, "num_blocks": 60, "max_num_seqs": 1}, expects="prefix_hit_tokens"),
    Case("two continuations each", params=seeded(n=2), options={"block_size": 4, "num_blocks": 80},
         expects="num_copied_blocks"),
    Case("beam search", params=BeamSearchParams(beam_width=2, max_tokens=6),
         options={"block_size": 4, "num_blocks": 60}),
    Case("a learner's attention", own=PluggedIn, options={"num_blocks": 20}),
    *(Case(name, model=name, options={"block_size": 4, "num_blocks": 60}) for name in MODELS),
]  # fmt: skip

ON_FOUR_RANKS = ("tiny", "swap", "two continuations each", "a learner's attention", "qwen3", "llama with biases")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A random checkpoint of each model, with weights so large that no choice hangs on rounding."""
    found = {"tiny": checkpoint_folder("tiny")}
    for name, config in MODELS.items():
        folder = found[name] = tmp_path_factory.mktemp("model")
        with torch.random.fork_rng():
            torch.manual_seed(len(name))
            model = LlamaModel(config)
            for weight in model.parameters():
                torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
        save_checkpoint(model.requires_grad_(False), folder, dtype=torch.float32)
        write_json(folder / "config.json", config.to_dict() | {"attention_bias": config.o_bias})
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_bytes((TINY_FOLDER / file).read_bytes())
    return found


def many_runs(group, cases: list[Case], folders: dict[str, Path]) -> list:
    answers = []
    for case in cases:
        load = {"attention": "reference", "dtype": torch.float32, "own_attention": case.own}
        answers.append(
            generate_on_rank(group, str(folders[case.model]), case.prompts, case.params, load, case.options, {}, look)
        )
    return answers


@functools.cache
def one_rank(folder: Path, name: str):
    """The same on one rank: all completions' tokens, and every layer's cache."""
    case = next(case for case in CASES if case.name == name)
    llm = LLM(folder, attention="reference", **case.options)
    outputs = llm.generate(case.prompts, case.params)
    if case.expects:
        assert getattr(llm.stats, case.expects) > 0
    return tokens(outputs), look(llm.engine.runner)[1]


def tokens(outputs) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_tokens_of_one_rank(num_ranks: int, folders: dict[str, Path]) -> None:
    cases = CASES if num_ranks == 2 else [case for case in CASES if case.name in ON_FOUR_RANKS]
    answers = run_ranks(many_runs, num_ranks, cases, folders, start="fork", timeout=120)
    for number, case in enumerate(cases):
        expected, caches = one_rank(folders[case.model], case.name)
        outputs, stats = answers[0][number][0]
        assert tokens(outputs) == expected, case.name
        layout = ParallelLayout(ModelConfig.from_folder(folders[case.model]), num_ranks)
        for rank in range(num_ranks):
            result, report = answers[rank][number]
            assert (result is None) == (rank > 0)
            assert (report.heads, report.kv_heads) == (layout.heads(rank), layout.kv_heads(rank))
            shape, mine = report.look
            assert shape[2] == len(layout.kv_heads(rank))
            assert report.num_steps == stats.num_steps
            for whole, part in zip(caches, mine, strict=True):  # the same block ids, this rank's heads
                wanted = whole[:, :, list(layout.kv_heads(rank))]
                torch.testing.assert_close(part, wanted, atol=2e-4, rtol=1e-3, msg=f"{case.name}, rank {rank}")
