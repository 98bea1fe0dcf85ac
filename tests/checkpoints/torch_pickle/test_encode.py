import collections
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.torch_pickle.encode import MAX_DEPTH, Instance, PickledCall, encode_pickle
from mvc.checkpoints.torch_pickle.values import Global, Pairs
from mvc.errors import UnsupportedError
from support.bounds import on_disk

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(SCALARS.filter(lambda one: one is not None), inner)
    ),
)


def types(value):
    """Return a value with the type of everything in it."""
    if isinstance(value, dict):
        return dict, [(types(key), types(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types(one) for one in value]
    return type(value), value


@on_disk
@given(VALUES)
def test_what_python_reads_is_what_was_written(value):
    assert types(pickle.loads(encode_pickle(value))) == types(value)


def test_floats_of_every_kind():
    found = pickle.loads(encode_pickle([math.inf, -0.0, math.nan]))
    assert found[0] == math.inf
    assert math.copysign(1, found[1]) == -1
    assert math.isnan(found[2])


class Held:
    def __init__(self, needed):
        raise AssertionError(needed)


def test_calls_instances_and_names():
    name = f"{Held.__module__}.Held"
    value = [
        PickledCall("collections.OrderedDict", ([("a", 1)],)),
        PickledCall("collections.OrderedDict"),
        Instance(name, {"x": Global(name)}),
        Pairs([PickledCall("builtins.frozenset", ([1],)), 2]),
    ]
    ordered, empty, held, keyed = pickle.loads(encode_pickle(value))
    assert ordered == collections.OrderedDict(a=1)
    assert empty == {}
    assert type(held) is Held
    assert held.x is Held
    assert keyed == {frozenset([1]): 2}


@pytest.mark.parametrize(
    "value", [{1}, object(), bytearray(), collections.OrderedDict(), [collections.Counter()]]
)
def test_what_is_no_plain_data(value):
    with pytest.raises(UnsupportedError, match="is not plain data"):
        encode_pickle(value)


def test_too_deep_and_too_long():
    value: list = []
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(UnsupportedError, match="deeper"):
        encode_pickle(value)
    with pytest.raises(UnsupportedError, match="bits"):
        encode_pickle(1 << 3000)
