"""The kernels of one pass give what torch gives, and are taken for an engine step's rows alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.model import ops

ROWS, HALVES = st.integers(1, 5), st.integers(1, 70)


@pytest.fixture(autouse=True)
def needs_numba():
    pytest.importorskip("numba")


def both_ways(operation, *arguments):
    """The result of the kernel, and of torch in float64."""
    with torch.inference_mode():
        fast = operation(*arguments)
    wide = [x.double() if isinstance(x, torch.Tensor) else x for x in arguments]
    return fast, operation(*wide).float()


@settings(deadline=None)  # the first example compiles
@given(ROWS, HALVES, st.integers(0, 1000))
def test_rms_norm(rows, size, seed):
    torch.manual_seed(seed)
    x, weight = 3 * torch.randn(rows, size), torch.randn(size)
    torch.testing.assert_close(*both_ways(ops.rms_norm, x, weight, 1e-5), rtol=1e-5, atol=1e-6)


@settings(deadline=None)  # the first example compiles
@given(ROWS, HALVES, st.integers(0, 1000), st.sampled_from([0.1, 3.0, 100.0, 1e4]))
def test_silu_mul(rows, size, seed, spread):
    torch.manual_seed(seed)
    gate_up = torch.cat((spread * torch.randn(rows, size), torch.randn(rows, size)), dim=1)
    torch.testing.assert_close(*both_ways(ops.silu_mul, gate_up), rtol=1e-5, atol=1e-6)


@settings(deadline=None)  # the first example compiles
@given(ROWS, st.integers(1, 3), HALVES, st.integers(0, 1000))
def test_rotate_reads_a_view_of_packed_heads(rows, heads, half, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, heads + 2, 2 * half)[:, :heads]
    cos, sin = torch.randn(2, rows, 1, 2 * half)
    torch.testing.assert_close(*both_ways(ops.rotate, x, cos, sin), rtol=1e-5, atol=1e-6)


@settings(deadline=None)  # the first example compiles
@given(st.sampled_from([1, 3, 24, 25, 48, 49]), st.sampled_from([(4, 16), (12, 32), (6, 16), (8, 20)]), st.booleans())
def test_linear_with_any_number_of_rows(rows, shape, has_bias):
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, shape[1]), torch.randn(shape)
    bias = torch.randn(shape[0]) if has_bias else None
    torch.testing.assert_close(*both_ways(ops.linear, x, weight, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 48, 49])
def test_linear_in_sixteen_bits(rows):
    x, weight, bias = (torch.randn(shape).bfloat16() for shape in ((rows, 32), (12, 32), (12,)))
    with torch.inference_mode():
        got = ops.linear(x, weight, bias)
    assert got.dtype is torch.bfloat16
    assert got.is_contiguous()
    torch.testing.assert_close(got, torch.nn.functional.linear(x, weight, bias), rtol=2e-2, atol=2e-2)


def test_sizes_that_do_not_fit_are_left_to_torch():
    x = torch.ones(1, 32)
    with torch.inference_mode():
        with pytest.raises(RuntimeError):
            ops.linear(x, torch.ones(4, 16), None)
        with pytest.raises(RuntimeError):
            ops.rms_norm(x, torch.ones(16), 1e-5)
        heads, cos, sin = torch.ones(3, 2, 4), torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
        assert torch.equal(ops.rotate(heads, cos, sin), heads)  # torch broadcasts


def test_nan_stays_nan():
    x = torch.tensor([[1.0, float("nan"), 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    with torch.inference_mode():
        assert ops.rms_norm(x, torch.ones(4), 1e-5).isnan().all(dim=1).tolist() == [True, False]
        assert ops.silu_mul(x).isnan().tolist() == [[False, True], [False, False]]


def test_a_row_does_not_depend_on_the_others():
    x, weight = torch.randn(7, 512), torch.randn(512)
    with torch.inference_mode():
        alone = torch.cat([ops.rms_norm(row[None], weight, 1e-6) for row in x])
        assert torch.equal(ops.rms_norm(x, weight, 1e-6), alone)


@pytest.mark.parametrize("case", ["gradients", "bfloat16", "dense", "no numba"])
def test_all_else_is_torchs(case, monkeypatch):
    def refuse():
        raise AssertionError("torch's way was expected")

    monkeypatch.setattr(ops, "_kernels", (lambda: None) if case == "no numba" else refuse)
    x = torch.randn(3, 8, dtype=torch.bfloat16 if case == "bfloat16" else torch.float32)
    x = x[None] if case == "dense" else x
    cos, sin = torch.randn(2, 3, 1, 8)
    with torch.set_grad_enabled(case == "gradients"):
        assert ops.rms_norm(x, torch.ones(8, dtype=x.dtype), 1e-5).shape == x.shape
        assert ops.silu_mul(x).shape == (*x.shape[:-1], 4)
        assert ops.rotate(x[..., None, :], cos, sin).shape == (*x.shape[:-1], 1, 8)
