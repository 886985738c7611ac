"""The reference against dense attention, the Triton kernels against the reference."""

import pytest
import torch

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported
from minipaged.attention import ReferenceBackend, dense_attention
from tests.attention.helpers import TOLERANCE, make_batch, relative_error


def test_reference_equals_dense_attention():
    batch = make_batch([37], [37], block_size=5)
    key = batch.k_cache[batch.tables[0]].flatten(0, 1)[:37]
    value = batch.v_cache[batch.tables[0]].flatten(0, 1)[:37]
    dense = dense_attention(batch.query, key, value)
    assert relative_error(batch.attend(ReferenceBackend()), dense) < 1e-6


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("query_lens", [[1] * 5, [0, 1, 16, 5, 40]])
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_triton_equals_the_reference(dtype, query_lens, block_size):
    from minipaged.attention.triton import TritonBackend

    batch = make_batch([1, 15, 16, 17, 60], query_lens, block_size=block_size, dtype=dtype, head_dim=48)
    assert relative_error(batch.attend(TritonBackend()), batch.truth()[0]) < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", ["reference", "triton", "cpu"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_write_skips_minus_one_and_copy_moves_blocks(backend, dtype):
    from minipaged.attention.launch import get_backend

    backend = get_backend(backend)
    key, value = torch.randn(2, 3, 2, 24).to(dtype)
    k_cache, v_cache = torch.full((2, 4, 5, 2, 24), float("nan"), dtype=dtype)
    backend.write(key, value, k_cache, v_cache, torch.tensor([7, -1, 19]))
    assert torch.equal(k_cache[1, 2], key[0])
    assert torch.equal(v_cache[3, 4], value[2])
    assert int((~k_cache.isnan()).sum()) == 2 * 2 * 24
    backend.copy_blocks(k_cache, v_cache, [(1, 0), (3, 2)])
    assert torch.equal(k_cache[0, 2], key[0])
    assert torch.equal(v_cache[2, 4], value[2])
