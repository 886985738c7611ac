"""The page cache: the same bytes as the disk, keyed by file and page, never stale."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.os_paging import AddressError, Disk, PageCache

actions = st.tuples(
    st.sampled_from(["read", "write", "delete"]), st.integers(1, 3), st.integers(0, 30), st.integers(1, 12)
)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(actions, max_size=60), capacity=st.integers(1, 5), policy=st.sampled_from(["lru", "fifo", "clock"])
)
def test_it_never_serves_old_bytes(steps, capacity, policy):
    truth = {inode: bytearray((inode * 50 + i) % 256 for i in range(30)) for inode in (1, 2, 3)}
    cache = PageCache(Disk({inode: bytearray(data) for inode, data in truth.items()}, page_size=8), capacity, policy)
    for count, (action, inode, offset, length) in enumerate(steps):
        if inode not in truth:
            if action == "write":  # a new file with the old number
                cache.disk.files[inode] = bytearray([count % 256]) * 30
                truth[inode] = bytearray(cache.disk.files[inode])
            continue
        if action == "delete":
            cache.delete(inode)
            del truth[inode]
        elif offset + length > 30:
            with pytest.raises(AddressError):
                cache.read(inode, offset, length)
        elif action == "read":
            assert cache.read(inode, offset, length) == truth[inode][offset : offset + length]
        else:
            data = bytes([count % 256]) * length
            cache.write(inode, offset, data)
            truth[inode][offset : offset + length] = data
        assert len(cache.keys) <= capacity


def test_key_hit_and_time():
    disk = Disk({7: bytearray(b"x" * 10_000)})
    cache = PageCache(disk, capacity=4)
    cache.read(7, 4090, 10)
    assert cache.keys == [(7, 0), (7, 1)]
    assert (cache.hits, cache.misses, disk.reads) == (0, 2, 2)
    cache.read(7, 100, 1)
    assert (cache.hits, disk.reads) == (1, 2)
    assert cache.time_ns == 3 * 100 + 2 * 100_000
    assert cache.read(7, 9_999, 1) == b"x", "the last page of a file may be short"


def test_a_deleted_inode_may_be_used_again():
    cache = PageCache(Disk({7: bytearray(b"old")}), 4)
    cache.read(7, 0, 3)
    cache.delete(7)
    cache.disk.files[7] = bytearray(b"new")
    assert cache.read(7, 0, 3) == b"new"


def test_the_least_recently_used_page_leaves():
    cache = PageCache(Disk({1: bytearray(40)}, page_size=8), capacity=2)
    for offset in (0, 8, 0, 16):
        cache.read(1, offset, 1)
    assert cache.keys == [(1, 0), (1, 2)]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda c: c.read(9, 0, 1), "there is no file with inode 9: the disk has 1"),
        (lambda c: c.read(1, 40, 1), "offset is 40, but must be from 0 to 39: file 1 has 40 bytes"),
        (lambda c: c.read(1, 38, 3), "length is 3, but must be from 1 to 2"),
        (lambda c: c.write(1, 0, b""), "length is 0"),
        (lambda c: c.delete(2), "there is no file with inode 2"),
    ],
)
def test_bad_input(act, message):
    cache = PageCache(Disk({1: bytearray(40)}, page_size=8), 2)
    with pytest.raises(AddressError, match=message):
        act(cache)
    assert (cache.hits, cache.misses, cache.disk.writes) == (0, 0, 0)


def test_bad_caches():
    with pytest.raises(ValueError, match="capacity is 0"):
        PageCache(Disk({}), 0)
    with pytest.raises(ValueError, match="page_size is 12, which is no power of two"):
        PageCache(Disk({}, page_size=12), 1)


def test_only_bytes_are_written():
    cache = PageCache(Disk({7: bytearray(b"abcd")}), capacity=2)
    with pytest.raises(TypeError, match=r"data must be bytes, got 'x' \(str\)"):
        cache.write(7, 0, "x")
    assert cache.disk.files[7] == b"abcd"
