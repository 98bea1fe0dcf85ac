"""Nodes that no encoder wrote: refused with one error, or a harmless state."""

import collections
import contextlib
import copy
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError, MvcError, UnsupportedError
from mvc.states.document import parse_document
from mvc.states.state import plan_state
from support.cases import for_each
from support.machine import peak_below
from support.states import StoredState, assert_same, store

FLAT = torch.arange(8.0)
SEED_STATE = {
    "model": collections.OrderedDict(w=torch.ones(2, 3), v=torch.ones(3, 2).t()),
    "tied": [FLAT, FLAT[2:5], FLAT.view(2, 4).t()],
    "np": {1: np.arange(4, dtype=">i2"), (2, "x"): np.array(["ab"])},
    "misc": [
        collections.Counter("ab"),
        {1, 2},
        collections.deque([1], 3),
        2**70,
        1 + 2j,
        b"x" * 2000,
    ],
    "odd": [
        math.inf,
        "\ud800",
        range(3),
        slice(1, 2),
        np.float32(1),
        np.dtype("f4"),
        bytearray(b"a"),
    ],
    "torch": [torch.Size([1]), torch.float16, torch.device("cpu"), torch.ones(3).to_sparse()],
    "dd": collections.defaultdict(list, a=[1]),
}
SEED = store(SEED_STATE)


def load(document, **options):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    stored = StoredState({**SEED.files, "state.json": text}, SEED.layouts)
    return stored.load(**options)


def document():
    return json.loads(SEED.files["state.json"])


def test_seed_is_sound():
    assert_same(load(document()), SEED_STATE)


def nodes(value, found):
    if isinstance(value, dict):
        found.append(value)
        for item in value.values():
            nodes(item, found)
    elif isinstance(value, list):
        found.append(value)
        for item in value:
            nodes(item, found)
    return found


COUNT = len(nodes(document(), []))
junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 20), st.floats(), st.text(max_size=3),
    st.sampled_from([2**63, 10**30, [], {}, [[]], [0, 0], {"$": "tensor"}, {"$": "tuple", "items": [[]]}, "float64", "<f8", "|O", "model.safetensors"]),
    st.sampled_from(["int", "float", "tensor", "ndarray", "set", "dict", "slice", "numpy", "bytes", "sparse_csr", "torch.dtype", "nope"]),
)  # fmt: skip


@st.composite
def damaged(draw):
    value = document()
    for _ in range(draw(st.integers(1, 3))):
        target = nodes(value, [])[draw(st.integers(0, COUNT - 1)) % len(nodes(value, []))]
        if not target:
            continue
        key = draw(
            st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target)))
        )
        kind = draw(st.sampled_from(["set", "set", "drop", "add", "copy"]))
        if kind == "set":
            target[key] = draw(junk)
        elif kind == "drop":
            del target[key]
        elif kind == "copy":
            target[key] = copy.deepcopy(draw(st.sampled_from(nodes(value, []))))
        elif isinstance(target, dict):
            target[
                draw(
                    st.sampled_from(
                        ["$", "items", "shared", "offset", "skew", "strides", "in", "zz"]
                    )
                )
            ] = draw(junk)
        else:
            target.append(draw(junk))
    return value


@given(damaged(), st.sampled_from(["torch", "numpy"]))
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:ComplexHalf")
def test_damaged_text_is_refused_or_harmless(value, framework):
    with contextlib.suppress(FormatError, UnsupportedError):
        load(value, framework=framework)


@given(st.binary(max_size=60) | st.text().map(str.encode))
def test_any_bytes_are_refused(text):
    with pytest.raises(FormatError):
        load(text)
    with pytest.raises(FormatError):
        parse_document(text)


@given(st.integers(0, len(SEED.files["state.json"]) - 1), st.integers(0, 255))
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:ComplexHalf")
def test_any_changed_byte_is_refused_or_harmless(position, byte):
    text = bytearray(SEED.files["state.json"])
    text[position] = byte
    with contextlib.suppress(FormatError, UnsupportedError):
        load(bytes(text))


TENSOR = {
    "$": "tensor",
    "in": "model.safetensors",
    "name": "w",
    "dtype": "float32",
    "shape": [2, 3],
}


def wrap(node, shared=()):
    return {
        "format": "mvc-state",
        "version": 1,
        "files": [],
        "shared": list(shared),
        "state": {"x": node},
    }


def test_wrapped_tensor_is_sound():
    assert torch.equal(load(wrap(TENSOR))["x"], torch.ones(2, 3))


@for_each(
    "node",
    [
        TENSOR | {"shape": [2, 2]},
        TENSOR | {"shape": [2**40, 2**40]},
        TENSOR | {"shape": [-2, -3]},
        TENSOR | {"shape": [2, 3.0]},
        TENSOR | {"shape": [True, 6]},
        TENSOR | {"shape": [1] * 70 + [6]},
        TENSOR | {"shape": [0, 2**62]},
        TENSOR | {"dtype": "float64"},
        TENSOR | {"dtype": "Tensor"},
        TENSOR | {"in": "../model.safetensors"},
        TENSOR | {"name": "nope"},
        TENSOR | {"strides": [3]},
        TENSOR | {"strides": [2**70, 1]},
        TENSOR | {"strides": [1, 1]},
        TENSOR | {"strides": [-3, 1]},
        TENSOR | {"shared": 0},
        TENSOR | {"shared": -1},
        TENSOR | {"extra": 1},
        TENSOR | {"$": "ndarray", "dtype": "|O"},
        TENSOR | {"$": "ndarray", "dtype": "O"},
        TENSOR | {"$": "ndarray", "dtype": "<f4,<f4", "shape": [3]},
        TENSOR | {"$": "ndarray", "dtype": "<U99999999"},
        TENSOR | {"$": "ndarray", "dtype": "<M8[banana]", "shape": [3]},
        TENSOR | {"$": "ndarray", "parameter": True},
        [TENSOR, TENSOR],
        {"$": "bytes", "in": "model.safetensors", "name": "w", "size_bytes": 23},
        {"$": "bytes", "in": "model.safetensors", "name": "w", "size_bytes": -1},
        {"$": "bytes", "base64": "?"},
        {"$": "set", "items": [[1]]},
        {"$": "set", "items": [1, 1]},
        {"$": "set", "items": [TENSOR]},
        {"$": "set", "items": [{"$": "slice", "start": 1, "stop": 2, "step": 3}]},
        {"$": "dict", "items": [[1, 2], [1, 3]]},
        {"$": "dict", "items": [[1]]},
        {"$": "dict", "items": [[{"$": "tuple", "items": [[]]}, 1]]},
        {"$": "defaultdict", "factory": "system", "items": []},
        {"$": "defaultdict", "factory": "__import__", "items": []},
        {"$": "deque", "maxlen": 0, "items": [1]},
        {"$": "deque", "maxlen": -1, "items": []},
        {"$": "deque", "maxlen": 2**80, "items": []},
        {"$": "range", "start": 0, "stop": 1, "step": 0},
        {"$": "range", "start": 0.5, "stop": 1, "step": 1},
        {"$": "complex", "real": 1, "imag": 2},
        {"$": "float", "bits": "00"},
        {"$": "int", "hex": "0x"},
        {"$": "numpy", "dtype": "<f4", "bits": "00"},
        {"$": "numpy", "dtype": "<U99999999", "value": 1},
        {"$": "numpy", "dtype": "|u1", "value": 10**9},
        {"$": "numpy.dtype", "name": "object"},
        {"$": "torch.device", "type": "c:/", "index": None},
        {"$": "torch.device", "type": "cpu", "index": 2**70},
        {"$": "torch.Size", "items": ["a"]},
        {"$": "os.system", "items": ["true"]},
        {"$": ["tensor"]},
        {"$": None},
        {"$": "sparse_coo", "shape": [3], "coalesced": True, "indices": TENSOR, "values": 1},
    ],
)  # fmt: skip
def test_hostile_node(node):
    with pytest.raises(FormatError):
        load(wrap(node))
    if node.get("$") != "torch.device" if isinstance(node, dict) else True:
        with pytest.raises(MvcError):
            load(wrap(node), framework="numpy")


@pytest.mark.parametrize(
    "view",
    [
        {"offset": 4, "byte_strides": [12, 4]},
        {"offset": -4, "byte_strides": [12, 4]},
        {"offset": 2, "byte_strides": [4, 4]},
        {"offset": 0, "byte_strides": [12]},
        {"offset": 0, "byte_strides": [2**62, 2**62]},
        {"offset": 0, "byte_strides": [10, 4]},
        {"offset": 20, "byte_strides": [-12, -4]},
        {"offset": 0},
        {"shape": [3, 2]},
        {"dtype": "int32"},
    ],
)
def test_hostile_view(view):
    with pytest.raises(FormatError):
        load(wrap(TENSOR | {"shared": 0} | view, [TENSOR]))


def test_memory_is_not_allocated_for_what_a_file_does_not_hold():
    node = TENSOR | {"$": "ndarray", "dtype": "<f8", "shape": [2**50]}
    with peak_below(2**20):
        with pytest.raises(FormatError, match="holds 24 bytes"):
            plan_state(json.dumps(wrap(node)).encode(), SEED.sizes)
        node |= {"in": "a"}
        with pytest.raises(FormatError, match="no tensor"):
            plan_state(json.dumps(wrap(node)).encode(), {})


def test_integers_cannot_want_gradients():
    with pytest.raises(FormatError, match="gradient"):
        load(wrap(TENSOR | {"dtype": "int32", "shape": [6], "grad": True}))


def test_deep_nodes_are_refused():
    node = 1
    for _ in range(250):
        node = [node]
    text = json.dumps(wrap(node)).encode()
    with pytest.raises(FormatError, match="nested"):
        load(text)
