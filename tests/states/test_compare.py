"""Two descriptions of a state: the same exactly where their texts are, and every difference named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, UnsupportedError
from mvc.states.outline import compare_texts
from support.state_strategies import states, torch_states
from support.states import store

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def text_of(state):
    return store(state).files["state.json"]


@given(states | torch_states, states | torch_states)
def test_only_the_same_is_the_same(left, right):
    texts = text_of(left), text_of(right)
    lines = compare_texts(*texts)
    assert bool(lines) == (texts[0] != texts[1])
    assert len(lines) == len(set(lines))
    assert bool(compare_texts(*reversed(texts))) == bool(lines)


@given(states | torch_states, st.data())
def test_a_value_that_is_another_is_named_alone(state, data):
    if not state:
        return
    key = data.draw(st.sampled_from(sorted(state)))
    changed = {**state, key: "something else"}
    for line in compare_texts(text_of(state), text_of(changed)):
        assert json.dumps(key) in line


def test_a_date_that_numpy_cannot_show():
    dates = [np.int64(number).view("M8") for number in (5, 6)]
    texts = [text_of({"a": date}) for date in dates]
    (line,) = compare_texts(*texts)
    assert line == ('state["a"] has the bits 0600000000000000, the commit has 0500000000000000')
    assert compare_texts(texts[0], text_of({"a": 1})) == ['state["a"] is 1, the commit has a numpy']


@given(states | torch_states)
def test_the_spelling_of_the_text_does_not_matter(state):
    text = text_of(state)
    assert compare_texts(text, json.dumps(json.loads(text), indent=3).encode()) == []


@given(st.binary(max_size=60), st.integers(0, 2000), st.booleans())
def test_garbage_gives_one_error(noise, place, is_live):
    text = text_of({"a": {1: [1.5, None], "b": {2, 3}}, "c": (bytes(3), 2**99), "d": float("nan")})
    broken = bytearray(text)
    place %= len(text)
    broken[place : place + len(noise)] = noise
    try:
        lines = compare_texts(*((text, bytes(broken)) if is_live else (bytes(broken), text)))
    except (FormatError, UnsupportedError):
        return
    assert isinstance(lines, list)
