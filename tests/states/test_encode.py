"""A live state taken apart: a state is a dict, cycles are refused, depth and number are capped."""

import numpy as np
import pytest

from mvc.errors import UnsupportedError, UsageError
from mvc.states import encode as state_encode
from mvc.states.state import encode_state
from support.states import assert_same, store


def test_cycles_are_refused():
    loop = {"a": []}
    loop["a"].append((1, loop))
    with pytest.raises(UnsupportedError, match=r'^state\["x"\]\["a"\]\[0\]\[1\] contains itself$'):
        encode_state({"x": loop})


def test_a_container_in_two_places_is_no_cycle():
    shared = [1, {"a": 2}]
    state = {"x": shared, "y": [shared, shared]}
    assert_same(store(state).load(), state)


def test_depth_is_capped():
    deep = []
    for _ in range(60):
        deep = [deep]
    state = {"x": deep}
    assert_same(store(state).load(), state)
    tagged = ()
    for _ in range(60):
        tagged = {1: tagged}
    assert_same(store({"x": tagged}).load(), {"x": tagged})
    with pytest.raises(UnsupportedError, match="nested more than 64 levels"):
        encode_state({"x": [[[[[[deep]]]]]]})
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(UnsupportedError, match="nested more than"):
        encode_state({"x": deep})
    key = ()
    for _ in range(300):
        key = (key,)
    with pytest.raises(UnsupportedError, match="nested"):
        encode_state({"x": {key: 1}})


def test_doubling_containers_end(monkeypatch):
    monkeypatch.setattr(state_encode, "MAX_VALUES", 10_000)
    value = [1]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(UnsupportedError, match="more than"):
        encode_state({"x": value})


def test_too_many_dimensions():
    assert store({"x": np.zeros((1,) * 63)}).load()["x"].ndim == 63
    with pytest.raises(UnsupportedError, match=r'state\["x"\] has too many dimensions'):
        encode_state({"x": np.zeros((1,) * 64)})


@pytest.mark.parametrize("state", [None, [1], "x", 3])
def test_a_state_is_a_dict(state):
    with pytest.raises(UsageError):
        encode_state(state)
