"""The hash chain and its keys."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.kv_cache import BlockHasher, CacheRequest, hash_block_tokens
from minipaged.kv_cache.hashing import extra_keys

TOKENS = st.lists(st.integers(0, 3), min_size=2, max_size=2)
KEYS = st.sampled_from([None, (("adapter", "x"),), (("cache_salt", "x"),), (("adapter", "x"), ("cache_salt", "x"))])


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash"])
@given(first=st.tuples(TOKENS, TOKENS, KEYS), second=st.tuples(TOKENS, TOKENS, KEYS))
def test_equal_only_where_everything_is_equal(algorithm, first, second):
    hasher = BlockHasher(algorithm)

    def name(parent, tokens, keys):
        return hasher(hasher(None, parent, keys), tokens)

    assert (name(*first) == name(*second)) == (first == second)


def test_same_name_in_another_process():
    code = "from minipaged.kv_cache import hash_block_tokens; print(hash_block_tokens(None, [1, 2]).hex())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == hash_block_tokens(None, [1, 2]).hex()


def test_the_fast_hash_has_a_secret_seed():
    assert BlockHasher("xxhash")(None, [1]) != BlockHasher("xxhash")(None, [1])
    assert BlockHasher("xxhash", seed="known")(None, [1]) == BlockHasher("xxhash", seed="known")(None, [1])


def test_unknown_algorithm():
    with pytest.raises(ValueError, match=r"'md5' is unknown; choose one of sha256, xxhash"):
        BlockHasher("md5")


def test_missing_xxhash_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ImportError, match="pip install xxhash"):
        BlockHasher("xxhash")


def test_salt_is_in_the_first_block_only():
    request = CacheRequest("r", [1] * 8, cache_salt="s", adapter="a")
    assert extra_keys(request, 0, 4) == (("adapter", "a"), ("cache_salt", "s"))
    assert extra_keys(request, 4, 8) == (("adapter", "a"),)


def test_the_seed_is_text():
    with pytest.raises(TypeError, match=r"the hash seed is b'x'; it must be a str"):
        BlockHasher("sha256", seed=b"x")
