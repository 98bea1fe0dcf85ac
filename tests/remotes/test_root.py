"""The root as bytes: what is written is read back, garbage is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError, MvcError, UnsupportedError
from mvc.remotes.root import (
    Channel,
    Listing,
    Root,
    encode_list,
    encode_root,
    parse_list,
    parse_root,
)
from support.cases import for_each

HEX40 = st.text("0123456789abcdef", min_size=40, max_size=40)
HEX64 = st.text("0123456789abcdef", min_size=64, max_size=64)
SIZE = st.integers(1, 2**62 - 1)
LISTINGS = st.builds(Listing, st.dictionaries(HEX64, SIZE), st.dictionaries(HEX40, SIZE))
REFS = st.dictionaries(
    st.sampled_from(["refs/heads/main", "refs/heads/a/b", "refs/tags/v1"]), HEX40
)
NAMES = HEX64.map("packs/{}".format) | HEX64.map("lists/{}".format) | HEX40.map("history/{}".format)
ROOTS = st.builds(
    Root,
    refs=REFS,
    head=st.sampled_from(["refs/heads/main", "refs/heads/trunk"]),
    channels=st.dictionaries(
        st.sampled_from(["prod", "canary/eu", "v1"]),
        st.builds(Channel, HEX40, st.integers(1, 2**40)),
    ),
    listed=LISTINGS,
    lists=st.lists(HEX64).map(tuple),
    nonce=st.text("0123456789abcdef", min_size=32, max_size=32),
    removed=st.dictionaries(NAMES, SIZE),
    deleting=st.dictionaries(NAMES, SIZE),
    sweeps=st.integers(0, 2**40),
)


@given(ROOTS, LISTINGS)
def test_what_is_written_is_read_back(root, listing):
    assert parse_root(encode_root(root)) == root
    assert parse_list(encode_list(listing)) == listing


def test_equal_roots_have_equal_bytes():
    one = Root({"refs/tags/v": "1" * 40, "refs/heads/m": "2" * 40}, nonce="0" * 32)
    other = Root({"refs/heads/m": "2" * 40, "refs/tags/v": "1" * 40}, nonce="0" * 32)
    assert encode_root(one) == encode_root(other)


GOOD = json.loads(encode_root(Root({"refs/heads/main": "1" * 40}, nonce="0" * 32)))


@for_each(
    "change",
    [
        {"refs": {"refs/heads/../x": "1" * 40}},
        {"refs": {"HEAD": "1" * 40}},
        {"removed": {"packs/../root": 1}},
        {"removed": {"root": 1}},
        {"deleting": {"packs/" + "1" * 40: 1}},
        {"deleting": {"history/" + "1" * 40: 0}},
        {"sweeps": -1},
        {"refs": {"refs/heads/main": "1" * 39}},
        {"refs": {"refs/heads/main": "G" * 40}},
        {"refs": None},
        {"head": "main"},
        {"nonce": "x"},
        {"packs": {"../../x": 5}},
        {"packs": {"1" * 64: -1}},
        {"packs": {"1" * 64: 2**70}},
        {"history": {"1" * 64: 5}},
        {"lists": ["1" * 40]},
        {"channels": {"a": {"commit": "1" * 40, "number": 0}}},
        {"channels": {"a": {"commit": "1", "number": 1}}},
        {"channels": {"bad..name": {"commit": "1" * 40, "number": 1}}},
        {"more": 1},
        {"mvc-remote": "1"},
    ],
)
def test_what_is_not_a_root_is_refused(change):
    with pytest.raises(FormatError):
        parse_root(json.dumps(GOOD | change).encode())


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b"null", b"{" * 99])
def test_garbage_is_refused(data):
    for parse in (parse_root, parse_list):
        with pytest.raises(FormatError):
            parse(data)


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damage_never_breaks_the_parser(noise, at):
    data = encode_root(Root({"refs/heads/main": "1" * 40}, nonce="0" * 32))
    try:
        parse_root(data[:at] + noise + data[at + len(noise) :])
    except MvcError as error:
        assert isinstance(error, FormatError | UnsupportedError)


def test_a_later_version_asks_for_a_newer_mvc():
    with pytest.raises(UnsupportedError, match="newer"):
        parse_root(json.dumps(GOOD | {"mvc-remote": 2, "whatever": 1}).encode())
