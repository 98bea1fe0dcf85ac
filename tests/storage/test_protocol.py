"""Keys of a storage: relative paths of plain names and nothing else."""

import pytest

from mvc.errors import UsageError
from mvc.storage.protocol import MAX_KEY_CHARS, check_key, check_prefix, is_key
from support.cases import for_each

GOOD = ["a", "packs/ab.pack", "a-b_c/1.2", "x" * 20]
BAD = ["", "/a", "a/", "a//b", "..", "a/../b", ".a", "a/.b", "a b", "a\\b", "ä", "a\0", "a\n"]


@pytest.mark.parametrize("key", GOOD)
def test_good_keys(key):
    check_key(key)
    check_prefix(key + "/")
    with pytest.raises(UsageError, match="is not a storage prefix"):
        check_prefix(key)


@for_each("key", BAD)
def test_bad_keys(key):
    assert not is_key(key)
    with pytest.raises(UsageError, match="is not a storage key"):
        check_key(key)
    with pytest.raises(UsageError):
        check_prefix(key + "//")


def test_a_key_may_not_be_endless():
    whole = "/".join(["a"] * MAX_KEY_CHARS)[:MAX_KEY_CHARS].rstrip("/")
    assert is_key(whole)
    assert not is_key(whole + "/aa")


def test_everything_is_a_prefix():
    check_prefix("")
