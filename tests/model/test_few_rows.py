"""The two kernels of a decode step give what the layer's own operations give, and see when the layer is changed."""

import copy
import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from minipaged.attention import AttentionMetadata, get_backend
from minipaged.attention.cpu_vectors import adds, dots, width_for
from minipaged.kv_cache.storage import KVCacheStorage
from minipaged.model import LlamaModel, ModelConfig, decoder, ops
from minipaged.model.cpu_products import product

CONFIG = ModelConfig.from_dict(
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }
)  # fmt: skip


def few_rows(model, rows=1):
    """What a step with so many rows finds."""
    with torch.inference_mode():
        return ops.few_rows(model, torch.zeros(rows, 32, dtype=model.dtype))


def make_model(**changes) -> LlamaModel:
    torch.manual_seed(0)
    model = LlamaModel(replace(CONFIG, **changes))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model.requires_grad_(False)


def inputs(rows: int) -> tuple:
    """(storage, metadata, tokens, positions): each of the rows is the newest token of a sequence with some context."""
    storage = KVCacheStorage(2, 64, 8, 2, 16)
    generator = torch.Generator().manual_seed(rows)
    for cache in (*storage.k_cache, *storage.v_cache):
        cache.normal_(generator=generator)
    lens = [1 + s % 8 for s in range(rows)]
    slots = [8 * s + n - 1 for s, n in enumerate(lens)]
    metadata = AttentionMetadata.build([[s] for s in range(rows)], lens, [1] * rows, slots)
    return storage, metadata, torch.arange(rows) % CONFIG.vocab_size, torch.tensor(lens) - 1


def step(model: LlamaModel, rows: int, backend=None) -> torch.Tensor:
    """Hidden states of such a step."""
    storage, metadata, tokens, positions = inputs(rows)
    with torch.inference_mode():
        return model.forward(tokens, positions, storage, metadata, backend or get_backend("cpu"))


def step_by_step(model: LlamaModel, rows: int, monkeypatch) -> torch.Tensor:
    """The same, one operation after the other."""
    with monkeypatch.context() as patched:
        patched.setattr(ops, "few_rows", lambda model, hidden: None)
        return step(model, rows)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 24, 25, 33, 48])
@pytest.mark.parametrize("bias", [False, True])
def test_a_step_equals_its_operations(rows, bias, monkeypatch):
    model = make_model(qkv_bias=bias)
    expected = step_by_step(model, rows, monkeypatch)
    torch.testing.assert_close(step(model, rows), expected, rtol=1e-4, atol=1e-5)
    assert few_rows(model) is not None


@pytest.mark.parametrize("rows", [1, 2, 7, 48, 49])
@pytest.mark.parametrize("bias", [False, True])
def test_bfloat16(rows, bias, monkeypatch):
    """Few rows are computed as columns, with the stream between the products in float32."""
    model = make_model(qkv_bias=bias).to(torch.bfloat16)
    exact = step_by_step(make_model(qkv_bias=bias).to(torch.bfloat16).float(), rows, monkeypatch)
    one_by_one, fused = step_by_step(model, rows, monkeypatch), step(model, rows)
    assert fused.dtype is torch.bfloat16
    assert (few_rows(model, rows) is not None) == (2 <= rows <= 48)
    errors = [(result.float() - exact).norm() / exact.norm() for result in (fused, one_by_one)]
    assert max(errors) < 0.01  # a number in bfloat16 is exact to 0.002 to 0.004 of itself


def test_a_norm_of_sixteen_bits_is_read_anew(monkeypatch):
    model = make_model().to(torch.bfloat16)
    before = step(model, 4)
    model.layers[0].input_layernorm.weight.mul_(2)
    assert not torch.equal(step(model, 4), before)
    torch.testing.assert_close(step(model, 4), step_by_step(model, 4, monkeypatch), rtol=0.05, atol=0.05)


@settings(deadline=None, max_examples=30)  # the first example compiles
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_product(rows, groups, widths, seed):
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, 16 * widths), torch.randn(4 * groups, 16 * widths)
    out = torch.full((rows, 4 * groups), float("nan"))
    product(x.numpy(), weight.numpy(), out.numpy())
    torch.testing.assert_close(out, (x.double() @ weight.double().t()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [4, 8, 16, 20, 24, 80, 128])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_vectors_of_any_width(rows, size):
    import numpy as np
    from numba import njit

    width = width_for(size)

    @njit
    def both(a, b, at, out, acc):
        dots(rows, width, a, 1, b, at[0], at[1], at[2], at[3], out, 2)
        adds(rows, width, acc, 1, b, at[0], at[1], at[2], at[3], out, 2)

    rng = np.random.default_rng(size)
    a, acc = rng.normal(size=(2, rows + 2, size)).astype(np.float32)
    b, at = rng.normal(size=7 * size + 3).astype(np.float32), np.array([3, 0, 5 * size + 1, 2 * size])
    out = np.full((rows + 2, 7), 9, np.float32)
    before, four = acc.astype(np.float64), np.stack([b[start : start + size] for start in at]).astype(np.float64)
    both(a, b, at, out, acc)
    expected = a[1 : 1 + rows] @ four.T
    np.testing.assert_allclose(out[1 : 1 + rows, 2:6], expected, rtol=1e-4, atol=1e-5)
    out[1 : 1 + rows, 2:6] = 9
    assert (out == 9).all()  # nothing else was written
    np.testing.assert_allclose(acc[1 : 1 + rows], before[1 : 1 + rows] + expected @ four, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(acc[[0, -1]], before[[0, -1]].astype(np.float32))


def test_no_vector_fits_an_odd_size():
    assert [width_for(size) for size in (6, 7, 12, 64)] == [None, None, 4, 16]


def test_a_changed_weight_is_seen(monkeypatch):
    model = make_model()
    step(model, 2)
    model.layers[0].mlp.down_proj.weight.mul_(2)  # in place: the same memory
    torch.testing.assert_close(step(model, 2), step_by_step(model, 2, monkeypatch), rtol=1e-4, atol=1e-5)
    model.layers[1].mlp.down_proj.weight.data = model.layers[1].mlp.down_proj.weight.data * 3  # other memory
    torch.testing.assert_close(step(model, 2), step_by_step(model, 2, monkeypatch), rtol=1e-4, atol=1e-5)
    other = make_model()
    model.layers[0].mlp = other.layers[1].mlp  # another part
    torch.testing.assert_close(step(model, 2), step_by_step(model, 2, monkeypatch), rtol=1e-4, atol=1e-5)


def halve(layer):
    """The same address, fewer rows: and all parts still fit together."""
    gate_up, down = layer.mlp.gate_up_proj.weight, layer.mlp.down_proj.weight
    gate_up.data = gate_up.data[:64]
    down.data = down.data.flatten()[: 32 * 32].view(32, 32)


def another_class(layer):
    class Doubled(type(layer.mlp)):
        def forward(self, x):
            return 2 * super().forward(x)

    layer.mlp.__class__ = Doubled


def patch_project(layer):
    old = layer.self_attn.project
    layer.self_attn.project = lambda *arguments: [2 * heads for heads in old(*arguments)]


def change_eps(layer):
    layer.input_layernorm.eps = 10.0


def change_scale(layer):
    layer.self_attn.scale = 3.0


def patch_forward(layer):
    old = layer.mlp.down_proj.forward
    layer.mlp.down_proj.forward = lambda x: 2 * old(x)


def turn_a_weight(layer):
    layer.mlp.down_proj.weight.data = layer.mlp.down_proj.weight.data.t().contiguous().t()


def other_norm(layer):
    layer.post_attention_layernorm = torch.nn.LayerNorm(32, bias=False)


CHANGES = [
    change_eps, change_scale, patch_forward, patch_project, turn_a_weight, other_norm, halve, another_class,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("rows", [3, 30])
def test_a_changed_layer_is_computed_as_it_is(change, before, rows, monkeypatch):
    model = make_model()
    if before:
        step(model, rows)
    change(model.layers[0])
    torch.testing.assert_close(step(model, rows), step_by_step(model, rows, monkeypatch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["DecoderLayer", "Attention", "MLP", "RMSNorm", "Linear"])
def test_a_patched_class_of_parts_is_seen(name, monkeypatch):
    model, calls = make_model(), []
    step(model, 3)
    owner = getattr(decoder, name)
    old = owner.forward
    with monkeypatch.context() as patched:
        patched.setattr(owner, "forward", lambda *arguments: calls.append(1) or old(*arguments))
        step(model, 3)
        assert len(calls) >= 2
    assert few_rows(model) is not None


@pytest.mark.parametrize("rows", [3, 30])
def test_what_the_embedding_gave_stays_as_it_was(rows):
    model, seen = make_model(), []
    model.embed_tokens.register_forward_hook(lambda module, given, result: seen.append(result))
    step(model, rows)
    assert torch.equal(seen[0], model.embed_tokens.weight[torch.arange(rows) % CONFIG.vocab_size])


def test_a_wrapped_backend_is_called():
    class Wrapped:
        calls = 0

        def __getattr__(self, name):
            return getattr(get_backend("cpu"), name)

        def attend(self, *arguments):
            self.calls += 1
            return get_backend("cpu").attend(*arguments)

    model, backend = make_model(), Wrapped()
    torch.testing.assert_close(step(model, 3, backend), step(model, 3), rtol=1e-4, atol=1e-5)
    assert backend.calls == 2


@pytest.mark.parametrize("rows", [3, 30])
def test_torchs_default_device_does_not_matter(rows):
    model = make_model()
    expected = step(model, rows)
    storage, metadata, tokens, positions = inputs(rows)
    torch.set_default_device("meta")
    try:
        with torch.inference_mode():
            got = model.forward(tokens, positions, storage, metadata, get_backend("cpu"))
    finally:
        torch.set_default_device(None)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("rows", [3, 30, 60])
@pytest.mark.parametrize("attention", ["cpu", "reference"])
def test_too_few_positions_are_refused(rows, attention):
    storage, metadata, tokens, positions = inputs(rows)
    with pytest.raises(ValueError, match=f"{rows} tokens, but 1 positions: give one for each token"):
        make_model().forward(tokens, positions[:1], storage, metadata, get_backend(attention))


@pytest.mark.parametrize("rows", [3, 30])
def test_huge_numbers_stay_numbers(rows, monkeypatch):
    model = make_model()
    model.embed_tokens.weight[1] = 1e20  # its squares are no float32 any more
    result = step(model, rows)
    assert not result.isnan().any()
    torch.testing.assert_close(result, step_by_step(model, rows, monkeypatch), rtol=1e-4, atol=1e-5)


def test_metadata_of_another_kind_is_refused():
    storage, metadata, tokens, positions = inputs(3)
    with torch.inference_mode(), pytest.raises(TypeError, match="AttentionMetadata is needed"):
        make_model().forward(tokens, positions, storage, SimpleNamespace(**vars(metadata)), get_backend("cpu"))


def test_a_copied_model_reads_its_own_layers():
    model = make_model()
    step(model, 3)
    other = copy.deepcopy(model)
    assert other.read_layers is None
    other.layers[0].mlp.down_proj.weight.mul_(2)
    assert not torch.equal(step(other, 3), step(model, 3))


class Counting(type(get_backend("cpu"))):
    """A backend with an `attend` of its own."""

    calls = 0

    def attend(self, *arguments, **named):
        self.calls += 1
        return super().attend(*arguments, **named)


def test_a_backends_own_attention_is_called(monkeypatch):
    model, backend = make_model(), Counting()
    expected = step(model, 3)
    torch.testing.assert_close(step(model, 3, backend), expected, rtol=1e-4, atol=1e-5)
    assert backend.calls == 2  # once a layer
    torch.testing.assert_close(step(model, 3, get_backend("reference")), expected, rtol=1e-4, atol=1e-5)
    patched, calls = get_backend("cpu"), []
    attend = patched.attend
    monkeypatch.setattr(patched, "attend", lambda *arguments: calls.append(1) or attend(*arguments))
    torch.testing.assert_close(step(model, 3, patched), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["write", "attend"])
def test_a_patched_class_is_seen(name, monkeypatch):
    model, calls = make_model(), []
    expected = step(model, 3)
    old = getattr(type(get_backend("cpu")), name)
    monkeypatch.setattr(type(get_backend("cpu")), name, lambda *arguments: calls.append(1) or old(*arguments))
    torch.testing.assert_close(step(model, 3), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2


def test_layers_must_be_alike(monkeypatch):
    model = make_model()
    step(model, 3)
    model.layers[1] = make_model(num_heads=6).layers[1]
    assert few_rows(model) is None
    torch.testing.assert_close(step(model, 3), step_by_step(model, 3, monkeypatch), rtol=1e-4, atol=1e-5)


def test_windows(monkeypatch):
    model = make_model(sliding_window=4, sliding_layers=(0, 1))
    assert all(model.slides)
    torch.testing.assert_close(step(model, 7), step_by_step(model, 7, monkeypatch), rtol=1e-4, atol=1e-5)
    assert not torch.equal(step(model, 7), step(make_model(), 7))
    model.slides[0] = False  # one layer with, one without
    torch.testing.assert_close(step(model, 7), step_by_step(model, 7, monkeypatch), rtol=1e-4, atol=1e-5)


def test_a_layer_that_does_not_fit_is_refused_by_torch():
    model = make_model()
    model.layers[0].mlp.down_proj.weight.data = torch.randn(32, 96)
    with pytest.raises(RuntimeError):
        step(model, 2)


def test_parts_of_ones_own_need_no_attributes():
    for name in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm"):
        model = make_model()
        assert few_rows(model) is not None
        setattr(model.layers[1], name, torch.nn.Identity())
        assert few_rows(model) is None
    model.layers[1] = torch.nn.Identity()
    assert few_rows(model) is None


def test_a_layer_without_the_kernels_is_read_once():
    model = make_model(qk_norm=True)
    with torch.inference_mode():
        assert few_rows(model) is None
        known = model.read_layers
        assert few_rows(model) is None
        assert model.read_layers is known is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_default_type_does_not_matter(dtype):
    model = make_model()
    expected = step(model, 3), step(model, 30), step(model, 50)
    torch.set_default_dtype(dtype)
    try:
        x, weight = torch.ones(1, 32, dtype=torch.float32), torch.ones(4, 32, dtype=torch.float32)
        with torch.inference_mode():
            assert ops.linear(x, weight, None).tolist() == [[32.0] * 4]
            assert ops.silu_mul(x).dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(step(model, 3), expected[0])
    assert torch.equal(step(model, 30), expected[1])
    assert torch.equal(step(model, 50), expected[2])


def test_a_hook_is_called():
    model, seen = make_model(), []
    step(model, 1)
    hook = model.layers[1].mlp.down_proj.register_forward_hook(lambda *call: seen.append(call[2].shape))
    step(model, 1)
    assert seen == [(1, 32)]
    assert few_rows(model) is None
    hook.remove()
    assert few_rows(model) is not None


@pytest.mark.parametrize("case", ["norms", "bias", "size", "own part", "bfloat16", "two threads", "gradients"])
def test_all_else_goes_one_by_one(case):
    changes = {"norms": {"qk_norm": True}, "bias": {"mlp_bias": True}, "size": {"intermediate_size": 40}}
    model = make_model(**changes.get(case, {}))
    hidden = torch.randn(1, 32)
    if case == "own part":
        model.layers[0].mlp = torch.nn.Sequential(model.layers[0].mlp)
    if case == "bfloat16":
        model.to(torch.bfloat16)
    if case == "two threads":
        torch.set_num_threads(2)
    with torch.set_grad_enabled(case == "gradients"):
        assert ops.few_rows(model, hidden) is None


def test_weights_that_went_elsewhere_are_let_go():
    model = make_model()
    step(model, 1)
    assert model.read_layers is not None
    model.to(torch.bfloat16)
    assert model.read_layers is None


def test_a_model_that_is_gone_is_forgotten():
    model = make_model()
    step(model, 1)
    model.layers[0].register_forward_hook(lambda *_, model=model: None)  # a hook that refers to the model
    step(model, 1)
    gone = weakref.ref(model), weakref.ref(model.layers[0].mlp.down_proj.weight)
    del model
    gc.collect()
    assert [one() for one in gone] == [None, None]
