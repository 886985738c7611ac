"""Llama, Mistral, Qwen2 and Qwen3 through the engine's paged cache, against transformers on random weights."""

import pytest
import torch

from minipaged import LLM
from minipaged.cli import main
from minipaged.model import load_model
from tests.model.checkpoints import FAMILIES, assert_same_as_transformers, make_checkpoint, random_prompts, run_engine

RAGGED = [1, 16, 17, 40, 7]
CASES = {
    "llama": ("llama", {}),
    "llama, all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied, wide heads": ("llama", {"tie_word_embeddings": True, "head_dim": 32}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, sliding": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {}),
    "qwen2, sliding from layer 1": (
        "qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3, sliding in layer 1, biases": (
        "qwen3",
        {
            "head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    made = {}

    def get(name: str):
        if name not in made:
            family, changes = CASES[name]
            made[name] = make_checkpoint(tmp_path_factory.mktemp("family") / "checkpoint", family, **changes)
        return made[name]

    return get


@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_equal_transformers(checkpoints, name):
    checkpoint = checkpoints(name)
    assert len(list(checkpoint.folder.glob("model-*.safetensors"))) > 1
    assert_same_as_transformers(checkpoint, random_prompts(RAGGED))


def test_text_is_that_of_transformers_generate(checkpoints):
    checkpoint = checkpoints("qwen3")
    [prompt] = random_prompts([20])
    theirs = checkpoint.model.generate(
        torch.tensor([prompt]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    tokens, _ = run_engine(checkpoint.folder, [prompt], 64)
    assert tokens[0] == theirs[0, 20:].tolist()
    tokenizer = load_model(checkpoint.folder)[1]
    assert tokenizer.decode(tokens[0])


@pytest.mark.parametrize("name", CASES)
def test_dense_equals_transformers(checkpoints, name):
    checkpoint = checkpoints(name)
    token_ids = torch.tensor(random_prompts([50, 50]))
    model, _ = load_model(checkpoint.folder)
    torch.testing.assert_close(model.forward_dense(token_ids), checkpoint.model(token_ids).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("attention", ["reference", "cpu", "triton"])
@pytest.mark.parametrize("name", ["mistral, sliding", "qwen2, sliding from layer 1"])
def test_every_backend_slides(checkpoints, name, attention):
    """Prompts longer than the window, and longer than window plus block; chunks that end inside a window."""
    if attention == "cpu":
        pytest.importorskip("numba")
    if attention == "triton":
        pytest.importorskip("triton")
    prompts = random_prompts([30, 6, 19])
    options = {"attention": attention, "block_size": 4}
    assert_same_as_transformers(checkpoints(name), prompts, max_tokens=3 if attention == "triton" else 24, **options)
    whole, _ = run_engine(checkpoints(name).folder, prompts[:1], 2, **options)
    assert run_engine(checkpoints(name).folder, prompts[:1], 2, max_num_batched_tokens=11, **options)[0] == whole


def test_the_window_matters(checkpoints):
    """Guards the tests above: without the window the logits are far away."""
    checkpoint = checkpoints("mistral, sliding")
    model, _ = load_model(checkpoint.folder)
    token_ids = torch.tensor(random_prompts([30]))
    expected = model.forward_dense(token_ids)
    for layer in model.layers:
        layer.self_attn.window = None
    assert (model.forward_dense(token_ids) - expected)[0, -1].abs().max() > 0.5
    assert torch.equal(model.forward_dense(token_ids)[0, :7], expected[0, :7])


def test_blocks_outside_the_window_are_kept(checkpoints):
    llm = LLM(checkpoints("mistral, sliding").folder, block_size=4)
    llm.engine.add_request(random_prompts([30])[0])
    llm.engine.step()
    assert len(llm.engine.manager.block_ids("r0")) == 8


def test_a_backend_without_a_window_is_refused_before_any_request(checkpoints):
    class Own:
        name = "my own"

        def write(self, *_): ...
        def attend(self, *_): ...
        def copy_blocks(self, *_): ...

    with pytest.raises(TypeError, match="sliding window of 7 tokens, but the attention backend 'my own' has none"):
        LLM(checkpoints("mistral, sliding").folder, attention=Own)
    LLM(checkpoints("mistral").folder, attention=Own)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_16_bits(checkpoints, family, dtype):
    checkpoint = checkpoints({"mistral": "mistral, sliding"}.get(family, family))
    model, _ = load_model(checkpoint.folder, dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    [prompt] = random_prompts([20])
    logits = model.forward_dense(torch.tensor(prompt))
    expected = checkpoint.model(torch.tensor([prompt])).logits[0]
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().mean() < (0.5 if dtype is torch.bfloat16 else 0.05)
    tokens, _ = run_engine(checkpoint.folder, [prompt], 2, dtype=dtype)
    assert len(tokens[0]) == 2


def test_checkpoint_stored_in_bf16(tmp_path):
    checkpoint = make_checkpoint(tmp_path, "qwen3", head_dim=16)
    checkpoint.model.bfloat16().save_pretrained(tmp_path, max_shard_size="100KB")
    checkpoint.model = type(checkpoint.model).from_pretrained(tmp_path, dtype=torch.float32)  # as the loader must
    assert_same_as_transformers(checkpoint, random_prompts([9, 3]), max_tokens=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_on_a_saved_folder(checkpoints, family, capsys):
    """Also when the model has more tokens than the tokenizer: such an id has no text."""
    arguments = ["generate", "--model", str(checkpoints(family).folder), "Four score and seven", "--max-tokens", "12"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert (len(out) > 1, err) == (True, "")
    assert main([*arguments, "--dtype", "bfloat16", "--attention", "reference"]) == 0
