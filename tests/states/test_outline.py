"""Outlines: what a state holds, without its numbers."""

import json
import subprocess
import sys
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, UnsupportedError
from mvc.states.outline import check_sizes, compare_texts, outline_state
from mvc.training import ArrayOutline, outline_image
from support.images import make_image
from support.state_strategies import states, torch_states
from support.states import store

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def outline(state):
    return outline_state(store(state).files["state.json"])


def test_arrays_become_outlines_and_all_else_stays():
    tied = torch.ones(2, 3)
    found = outline(
        {
            "m": OrderedDict(w=tied, again=tied, p=torch.nn.Parameter(torch.ones(()))),
            "a": [np.zeros((0, 4), ">i2"), (1, None)],
            "b": bytes(2000),
            "short": b"x",
            "s": torch.eye(3).to_sparse(),
            "size": torch.Size([1, 2]),
            "dtype": torch.float16,
        }
    )
    assert found == {
        "m": OrderedDict(
            w=ArrayOutline("tensor", "float32", (2, 3)),
            again=ArrayOutline("tensor", "float32", (2, 3)),
            p=ArrayOutline("tensor", "float32", ()),
        ),
        "a": [ArrayOutline("array", ">i2", (0, 4)), (1, None)],
        "b": ArrayOutline("bytes", "uint8", (2000,)),
        "short": b"x",
        "s": ArrayOutline("sparse", "float32", (3, 3)),
        "size": torch.Size([1, 2]),
        "dtype": torch.float16,
    }
    assert type(found["m"]) is OrderedDict
    assert str(found["m"]["w"]) == "float32 [2, 3]"


def _is_alike(value, live):
    if isinstance(value, ArrayOutline):
        return isinstance(live, (torch.Tensor, np.ndarray, bytes, bytearray))
    if isinstance(value, dict):
        return list(map(type, value)) == list(map(type, live)) and all(
            map(_is_alike, value.values(), live.values())
        )
    if isinstance(value, (list, tuple, deque)):
        return len(value) == len(live) and all(map(_is_alike, value, live))
    return True


@given(states | torch_states)
def test_every_state_has_an_outline_of_its_structure(state):
    found = outline(state)
    assert list(found) == list(state)
    assert _is_alike(found, state)
    assert list(outline_image(make_image(state))) == list(state)


@given(states | torch_states)
def test_the_files_of_a_state_fit_it(state):
    stored = store(state)
    check_sizes(stored.files["state.json"], stored.sizes)


def test_what_does_not_fit_is_named():
    base = torch.zeros(8)
    stored = store({"m": {"w": torch.ones(2), "v": base[1:5], "u": base[3:]}, "b": bytes(2000)})
    text, sizes = stored.files["state.json"], stored.sizes
    for file, tensors in sizes.items():
        for name in tensors:
            others = {key: size for key, size in tensors.items() if key != name}
            with pytest.raises(FormatError, match="there is no tensor"):
                check_sizes(text, {**sizes, file: others})
            with pytest.raises(FormatError, match=r"state\.json wants"):
                check_sizes(text, {**sizes, file: {**tensors, name: tensors[name] + 1}})
    with pytest.raises(FormatError, match="there is no tensor"):
        check_sizes(text, {})


def test_hostile_text():
    for text in [
        b"",
        b"[]",
        b'{"format": "mvc-state"}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": []}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {"$": "tuple", "items": []}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {"a": {"$": "tensor"}}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {"a": {"$": "sparse_coo"}}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {"a": {"$": "what"}}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": '
        + b'{"a": ' * 500 + b"1" + b"}" * 500 + b"}",
    ]:  # fmt: skip
        with pytest.raises(FormatError):
            outline_state(text)
        with pytest.raises(FormatError):
            check_sizes(text, {})


def test_a_newer_state():
    with pytest.raises(UnsupportedError, match="version 9"):
        outline_state(b'{"format": "mvc-state", "version": 9}')


def test_torch_is_not_needed():
    state = {
        "w": torch.ones(2, 3),
        "s": torch.eye(2).to_sparse(),
        "size": torch.Size([4]),
        "t": torch.float16,
        "d": torch.device("cuda", 1),
    }
    code = """
import sys
sys.modules["torch"] = None
from mvc.states.outline import ArrayOutline, outline_state
found = outline_state(sys.stdin.buffer.read())
assert found["w"] == ArrayOutline("tensor", "float32", (2, 3)), found
assert found["s"] == ArrayOutline("sparse", "float32", (2, 2)), found
assert (found["size"], found["t"], found["d"]) == ((4,), "torch.float16", "cuda:1"), found
"""
    subprocess.run([sys.executable, "-c", code], input=store(state).files["state.json"], check=True)


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
