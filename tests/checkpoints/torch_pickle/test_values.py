"""Values of a pickle come out as they went in, or are left out where they are too long."""

import collections
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.torch_pickle import unpickler
from mvc.checkpoints.torch_pickle.objects import reduce_torch
from mvc.checkpoints.torch_pickle.values import MAX_KEPT_BYTES, OMITTED, Pairs


def run(data: bytes):
    return unpickler.unpickle(data, reduce_torch, lambda pid: None)


def plain(value):
    """Turn a real value into what the machine makes of it."""
    if isinstance(value, dict):
        return Pairs(item for pair in value.items() for item in map(plain, pair))
    if isinstance(value, (list, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value


INTEGERS = st.integers(-(2**100), 2**100)  # longer ones name nothing and are left out


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    st.floats(allow_nan=False),
    st.text(max_size=20),
)


VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.tuples(inner, inner, inner, inner),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.dictionaries(INTEGERS, inner, max_size=4).map(collections.OrderedDict),
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("protocol", range(2, 6))
@given(value=VALUES)
def test_plain_values_come_out_as_the_pickler_put_them_in(protocol, value):
    assert run(pickle.dumps(value, protocol)) == plain(value)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_types_agree_not_only_values(protocol):
    value = [True, 1, 1.0, "1", None, (), [], {}, ((),), -(2**31), 2**31, 255, 65535, 2**70]
    result = run(pickle.dumps(value, protocol))
    assert [type(item) for item in result] == [type(plain(item)) for item in value]
    assert result == plain(value)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_bytes_and_sets(protocol):
    value = [b"raw", frozenset([1]), {2}, b"x" * 300]
    assert run(pickle.dumps(value, protocol)) == [b"raw", [1], [2], b"x" * 300]


def test_bytearrays_of_protocol_5():
    assert run(pickle.dumps(bytearray(b"abc"), 5)) == b"abc"


def test_long_strings_bytes_and_numbers_are_left_out():
    for value in ("x" * (MAX_KEPT_BYTES + 1), b"x" * 100_000, 2**200):
        assert run(pickle.dumps([value, 7], 5)) == [OMITTED, 7]
    assert run(pickle.dumps(["y" * MAX_KEPT_BYTES], 4)) == ["y" * MAX_KEPT_BYTES]
