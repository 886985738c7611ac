"""Every wrong input gets an error that names the value, the limit and the way out, before anything has changed."""

import math

import pytest
import torch

import minipaged  # noqa: F401  decides on Triton's mode before triton is imported
from minipaged.attention import AttentionMetadata, AttentionOptions, dense_attention, get_backend, launch
from tests.attention.helpers import make_batch, relative_error

BACKENDS = ["reference", "triton", "cpu"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return get_backend(request.param)


def bad(change, **shape):
    batch = make_batch([9, 4], [1, 1], block_size=4, **shape)
    change(batch)
    return batch


def set_table(value):
    return lambda batch: batch.metadata.block_tables.__setitem__((0, 1), value)


ATTEND = {
    "id outside the pool": (
        set_table(99),
        ValueError,
        r"block_tables\[0\]\[1\] is 99, but the pool has the blocks 0 … 5",
    ),
    "negative id": (set_table(-5), ValueError, r"block_tables\[0\]\[1\] is -5"),
    "length beyond the table": (
        lambda b: b.metadata.seq_lens.__setitem__(1, 5),
        ValueError,
        "sequence 1: seq_len 5 needs 2 blocks of 4 tokens, but its block table has 1.*at most 4",
    ),
    "negative length": (lambda b: b.metadata.seq_lens.__setitem__(1, -1), ValueError, "seq_len -1"),
    "too few lengths": (
        lambda b: setattr(b.metadata, "seq_lens", b.metadata.seq_lens[:1]),
        ValueError,
        "block_tables has 2 rows, seq_lens 1",
    ),
    "float table": (
        lambda b: setattr(b.metadata, "block_tables", b.metadata.block_tables.float()),
        TypeError,
        r"block_tables is torch.float32, but one of torch.int32 is needed: convert it with .to",
    ),
    "query rows": (lambda b: setattr(b, "query", b.query[:1]), ValueError, "query has 1 rows, but .* 2 query tokens"),
    "query dtype": (lambda b: setattr(b, "query", b.query.long()), TypeError, "query is torch.int64"),
    "query shape": (lambda b: setattr(b, "query", b.query[0]), ValueError, "3 dimensions"),
    "head size": (lambda b: setattr(b, "query", b.query[..., :16]), ValueError, "head size 16, but the cache has 32"),
    "heads": (lambda b: setattr(b, "query", b.query[:, :3]), ValueError, "3 query heads cannot share 2 KV heads"),
    "caches differ": (lambda b: setattr(b, "v_cache", b.v_cache[:-1]), ValueError, "they must agree"),
    "not a tensor": (lambda b: setattr(b, "k_cache", [1]), TypeError, "k_cache is a list"),
    "no heads": (lambda b: setattr(b, "query", b.query[:, :0]), ValueError, "0 query heads"),
    "empty cache": (
        lambda b: (setattr(b, "k_cache", b.k_cache[:, :, :0]), setattr(b, "v_cache", b.v_cache[:, :, :0])),
        ValueError,
        r"has the shape \[6, 4, 0, 32\]: num_blocks, .* must all be at least 1",
    ),
    "no metadata": (lambda b: setattr(b, "metadata", None), TypeError, "metadata is a NoneType"),
    "lists as metadata": (
        lambda b: setattr(b.metadata, "seq_lens", b.metadata.seq_lens.tolist()),
        TypeError,
        "seq_lens is a list",
    ),
    "rows that begin behind the start": (
        lambda b: b.metadata.query_start_loc.__setitem__(0, 1),
        ValueError,
        "query_start_loc begins at 1",
    ),
    "device": (lambda b: setattr(b, "query", b.query.to("meta")), ValueError, r"query is on meta.*\.to\('cpu'\)"),
}


@pytest.mark.parametrize("name", ATTEND)
def test_attend_refuses(backend, name):
    change, error, message = ATTEND[name]
    batch = bad(change)
    with pytest.raises(error, match=message):
        batch.attend(backend)


@pytest.mark.parametrize("scale", [math.nan, math.inf, None, "1", torch.tensor(1.0)])
def test_attend_refuses_a_scale_that_is_no_finite_number(backend, scale):
    batch = make_batch([9, 4], [1, 1], block_size=4)
    with pytest.raises(ValueError, match=r"scale is .*, but a finite number is needed"):
        backend.attend(batch.query, batch.k_cache, batch.v_cache, batch.metadata, scale)


def test_triton_says_that_it_does_not_compute_in_float64():
    batch = make_batch([9, 4], [1, 1], block_size=4)
    batch.query = batch.query.double()
    with pytest.raises(TypeError, match=r"query is torch.float64: convert it with \.float\(\)"):
        batch.attend(get_backend("triton"))


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a view whose elements do not lie side by side: what lies between them is wrong."""
    gaps = torch.full((*tensor.shape, 2), -7 if not tensor.is_floating_point() else math.nan, dtype=tensor.dtype)
    gaps[..., 0] = tensor
    return gaps[..., 0]


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [9, 0, 2]])
@pytest.mark.parametrize("name", ["block_tables", "seq_lens", "query_start_loc", "query", "k_cache", "sinks"])
def test_views_with_gaps_are_read_as_what_they_show(backend, name, query_lens):
    batch = make_batch([9, 4, 6], query_lens, block_size=4)
    sinks = torch.tensor([0.5, 1.0, -1.0, 2.0])
    options = AttentionOptions(sinks=sinks) if name == "sinks" else AttentionOptions()
    truth, _ = batch.truth(options)
    if name == "sinks":
        backend.options = AttentionOptions(sinks=with_gaps(sinks))
    else:
        owner = batch.metadata if hasattr(batch.metadata, name) else batch
        setattr(owner, name, with_gaps(getattr(owner, name)))
    assert relative_error(batch.attend(backend), truth) < 1e-6


def test_writes_from_views_with_gaps(backend):
    k_cache, v_cache = torch.zeros(2, 6, 4, 2, 8)
    key, value = torch.randn(2, 2, 2, 8)
    backend.write(with_gaps(key), with_gaps(value), k_cache, v_cache, with_gaps(torch.tensor([5, 21])))
    assert torch.equal(k_cache.view(24, 2, 8)[[5, 21]], key)
    assert torch.equal(v_cache.view(24, 2, 8)[[5, 21]], value)
    assert k_cache.count_nonzero() == key.numel()


def test_a_cache_whose_blocks_are_the_same_memory_is_not_written(backend):
    cache = torch.zeros(1, 4, 2, 8).expand(6, 4, 2, 8)
    for refused in (
        lambda: backend.write(*torch.ones(2, 1, 2, 8), cache, cache, torch.tensor([1])),
        lambda: backend.copy_blocks(cache, cache, [(0, 1)]),
    ):
        with pytest.raises(ValueError, match=r"all 6 blocks of k_cache are the same memory.*\.clone\(\)"):
            refused()
    assert cache.count_nonzero() == 0


def test_tensors_made_under_inference_mode(backend):
    with torch.inference_mode():
        batch = make_batch([9, 4], [3, 1], block_size=4)
        assert relative_error(batch.attend(backend), batch.truth()[0]) < 1e-6
        batch.metadata.seq_lens[0] = 7  # changes are not counted here, and must be seen all the same
        assert relative_error(batch.attend(backend), batch.truth()[0]) < 1e-6
        batch.metadata.block_tables[0, 0] = 77
        with pytest.raises(ValueError, match="is 77"):
            batch.attend(backend)
        slots = torch.tensor([3])
        k_cache, v_cache = torch.zeros(2, 6, 4, 2, 8)
        backend.write(*torch.ones(2, 1, 2, 8), k_cache, v_cache, slots)
        slots[0] = 50
        with pytest.raises(ValueError, match="is 50"):
            backend.write(*torch.ones(2, 1, 2, 8), k_cache, v_cache, slots)


def test_metadata_changed_in_place_or_replaced_is_seen(backend):
    batch = make_batch([9, 4], [3, 1], block_size=4)
    batch.attend(backend)
    batch.metadata.seq_lens[0] = 7
    assert relative_error(batch.attend(backend), batch.truth()[0]) < 1e-6
    for starts in ([0, 2, 4], [0, 3, 4], [0, 1, 4]):  # a freed tensor's id is soon another one's
        batch.metadata.query_start_loc = torch.tensor(starts, dtype=torch.int32)
        assert relative_error(batch.attend(backend), batch.truth()[0]) < 1e-6


WRITE = {
    "slot behind the cache": ([0, 24], ValueError, r"slot_mapping\[1\] is 24, but the cache has the slots 0 … 23"),
    "slot below −1": ([-2, 0], ValueError, r"slot_mapping\[0\] is -2"),
    "one slot twice": ([5, 5], ValueError, r"slot 5 is given to the tokens \[0, 1\]"),
    "too few slots": ([5], ValueError, r"key has the shape \[2, 2, 8\], but \[1, 2, 8\] is needed"),
}


@pytest.mark.parametrize("name", WRITE)
def test_write_refuses_and_writes_nothing(backend, name):
    slots, error, message = WRITE[name]
    k_cache, v_cache = torch.zeros(2, 6, 4, 2, 8)
    key = torch.ones(2, 2, 8)
    with pytest.raises(error, match=message):
        backend.write(key, key, k_cache, v_cache, torch.tensor(slots))
    assert k_cache.eq(0).all()
    assert v_cache.eq(0).all()


def test_write_refuses_int32_slots(backend):
    k_cache, v_cache = torch.zeros(2, 6, 4, 2, 8)
    with pytest.raises(TypeError, match=r"slot_mapping is torch\.int32"):
        backend.write(*torch.ones(2, 1, 2, 8), k_cache, v_cache, torch.tensor([1], dtype=torch.int32))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 6)], r"the copy \(0, 6\) names block 6, but the pool has the blocks 0 … 5"),
        ([(-1, 2)], "names block -1"),
        ([(0, 2), (1, 2)], "block 2 is the destination of two copies"),
        ([(0, 1), (1, 2)], "block 1 is source and destination"),
    ],
)
def test_copy_refuses_blocks_and_copies_nothing(backend, pairs, message):
    k_cache = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 4, 2, 8).contiguous()
    before = k_cache.clone()
    with pytest.raises(ValueError, match=message):
        backend.copy_blocks(k_cache, k_cache.clone(), pairs)
    assert torch.equal(k_cache, before)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 1, 2)], r"\(0, 1, 2\) is no pair"),
        ([(0, 1.5)], "names block 1.5, but a block id is a whole number"),
        ([(0, True)], "names block True"),
        (None, "pairs is a NoneType"),
        (iter([(0, 1)]), "pairs is a list_iterator"),
        (torch.tensor([[0, 1]]), "pairs is a Tensor"),
    ],
)
def test_copy_refuses_what_is_no_list_of_pairs(backend, pairs, message):
    k_cache = torch.randn(6, 4, 2, 8)
    before = k_cache.clone()
    with pytest.raises(TypeError, match=message):
        backend.copy_blocks(k_cache, k_cache.clone(), pairs)
    assert torch.equal(k_cache, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0]], [1, 2], [1], [0]), "1 block tables, 2 seq_lens and 1 query_lens"),
        (([[0]], [2], [2], [0]), "slot_mapping has 1 entries, but the query_lens add up to 2"),
        (([[0]], [1], [2], [0, 1]), "query_len 2 must lie between 0 and its seq_len 1"),
    ],
)
def test_metadata_refuses_lists_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionMetadata.build(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1.5]], [1], [1], [0]), TypeError, "block_tables holds 1.5, but whole numbers are needed"),
        (([[0]], [1.0], [1], [0]), TypeError, "seq_lens holds 1.0"),
        (([[0]], [1], [1.0], [0]), TypeError, "query_lens holds 1.0"),
        (([[0]], [1], [1], [0.5]), TypeError, "slot_mapping holds 0.5"),
        (([[True]], [1], [1], [0]), TypeError, "block_tables holds True"),
        ((["a"], [1], [1], [0]), TypeError, "block_tables holds 'a'"),
        ((None, [1], [1], [0]), TypeError, "block_tables is a NoneType, but a list is needed"),
        (([[2**31]], [1], [1], [0]), ValueError, "block_tables holds 2147483648, which does not fit into torch.int32"),
        (([[0]], [2**31], [1], [0]), ValueError, "seq_lens holds 2147483648"),
    ],
)
def test_metadata_refuses_what_is_no_whole_number(arguments, error, message):
    with pytest.raises(error, match=message):
        AttentionMetadata.build(*arguments)


def test_validation_notices_a_change_made_after_the_first_layer(backend):
    batch = make_batch([9, 4], [1, 1], block_size=4)
    batch.attend(backend)
    batch.metadata.block_tables[0, 0] = 77
    with pytest.raises(ValueError, match="is 77"):
        batch.attend(backend)
    slots = torch.tensor([3])
    k_cache, v_cache = torch.zeros(2, 6, 4, 2, 8)
    backend.write(*torch.ones(2, 1, 2, 8), k_cache, v_cache, slots)
    slots[0] = 50
    with pytest.raises(ValueError, match="is 50"):
        backend.write(*torch.ones(2, 1, 2, 8), k_cache, v_cache, slots)


def test_validation_can_be_switched_off(monkeypatch):
    batch = make_batch([3], [1])
    truth = batch.truth()[0]

    def forbidden(*_):
        raise AssertionError("validated although switched off")

    for module in ("reference", "cpu", "triton"):
        for name in ("validate_attend", "validate_write"):
            monkeypatch.setattr(f"minipaged.attention.{module}.{name}", forbidden)
    for name in BACKENDS:
        out = batch.attend(get_backend(name, validate=False))
        assert relative_error(out, truth) < 1e-6


@pytest.mark.parametrize(
    "options",
    [{"k_scale": 0}, {"v_scale": math.inf}, {"soft_cap": -1.0}, {"soft_cap": math.nan}, {"sliding_window": 0}],
)
def test_options_refuse_what_is_not_positive(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} is .* must be finite and greater than 0"):
        AttentionOptions(**options)


@pytest.mark.parametrize("options", [{"k_scale": None}, {"v_scale": "1"}, {"sliding_window": 2.5}, {"soft_cap": True}])
def test_options_refuse_another_type(options):
    ((name, value),) = options.items()
    with pytest.raises(TypeError, match=f"{name} is {value!r}, but a .*number is needed"):
        AttentionOptions(**options)


def test_options_are_checked_where_they_are_used(backend):
    backend.options = AttentionOptions(alibi_slopes=[1.0] * 4)
    with pytest.raises(TypeError, match="alibi_slopes is a list"):
        make_batch([3], [1]).attend(backend)
    with pytest.raises(TypeError, match="options is a NoneType"):
        get_backend(backend.name, options=None)


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
def test_options_by_head_need_one_value_a_head(backend, name):
    backend.options = AttentionOptions(**{name: torch.zeros(3)})
    with pytest.raises(ValueError, match=f"{name} is .*4 query heads"):
        make_batch([3], [1]).attend(backend)


def test_unknown_backend_and_foreign_objects():
    with pytest.raises(ValueError, match="'flash' is unknown: choose one of auto, reference, triton, cpu"):
        get_backend("flash")
    with pytest.raises(TypeError, match="object is no attention backend: it lacks name, write, attend, copy_blocks"):
        get_backend(object())

    class Own:
        name = "own"

        def write(self, *_): ...
        def attend(self, *_): ...
        def copy_blocks(self, *_): ...

    own = Own()
    assert get_backend(own) is own
    assert isinstance(get_backend(Own), Own)


def test_auto_takes_what_is_there(monkeypatch):
    assert get_backend("auto").name == "cpu"
    assert get_backend("auto", device="cuda").name == "triton"
    monkeypatch.setattr(launch, "available", lambda module: False)
    assert get_backend("auto").name == "reference"
    with pytest.raises(ImportError, match=r"needs triton, which is not installed.*attention='reference'"):
        get_backend("triton")
    with pytest.raises(ImportError, match=r"needs numba, which is not installed: pip install"):
        get_backend("cpu")


def test_an_unknown_device_is_named():
    with pytest.raises(ValueError, match="device 'gpu' is unknown to torch"):
        get_backend("auto", device="gpu")


def test_functions_without_a_backend_check_too():
    batch = make_batch([9, 4], [1, 1], block_size=4)
    batch.metadata.block_tables[0, 0] = 99
    with pytest.raises(ValueError, match="is 99"):
        batch.truth()
    query, key = torch.zeros(3, 4, 8), torch.zeros(5, 2, 8)
    with pytest.raises(ValueError, match=r"key \[5, 2, 8\].*the same N and D"):
        dense_attention(query, key, key)
    with pytest.raises(ValueError, match="4 query heads cannot share 3 KV heads"):
        dense_attention(query, torch.zeros(3, 3, 8), torch.zeros(3, 3, 8))


def test_cpu_backend_refuses_another_device():
    with pytest.raises(ValueError, match="cannot read a KV cache on cuda"):
        get_backend("cpu", device="cuda")
