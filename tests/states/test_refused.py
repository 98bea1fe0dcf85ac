"""What a state may not hold, and what nobody may make mvc believe one holds."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import json
import math
import tracemalloc
import typing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError, MvcError, UnsupportedError, UsageError
from mvc.states import document as state_json
from mvc.states import encode as state_encode
from mvc.states.state import decode_state, encode_state, find_files, plan_state
from support.states import StoredState, assert_same, store


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Subdict(dict):
    pass


class Subtensor(torch.Tensor):
    pass


@dataclasses.dataclass
class Config:
    size: int = 1


class Point(typing.NamedTuple):
    x: int
    y: int


ordered = collections.OrderedDict()
ordered.extra = 1


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: print, "a function"),
        (lambda: lambda: 1, "a function"),
        (lambda: "".join, "a function"),
        (lambda: functools.partial(int, 1), "a function"),
        (lambda: json, "the module json"),
        (lambda: int, "the class int"),
        (lambda: Colour.RED, "an enum member"),
        (lambda: Number.ONE, "an enum member"),
        (lambda: Text("a"), "a subclass of str"),
        (Subdict, "a subclass of dict"),
        (Config, "a dataclass"),
        (lambda: Point(1, 2), "a named tuple"),
        (lambda: iter([]), "an iterator"),
        (object, "an object of type object"),
        (lambda: ..., "ellipsis"),
        (lambda: memoryview(b""), "memoryview"),
        (np.random.default_rng, "an object of type numpy.random"),
        (lambda: np.array([None]), "an array of dtype object"),
        (lambda: np.zeros(2, "i4,f4"), "a structured array"),
        (lambda: np.zeros(2, "i4,f4")[0], "a structured array"),
        (lambda: np.longdouble(1), "an array of dtype"),
        (lambda: np.array(["x"], np.dtypes.StringDType()), "an array of dtype StringDType"),
        (lambda: np.ma.array([1]), "an array of the subclass numpy.ma.MaskedArray"),
        (lambda: np.zeros((1, 1)).view(np.matrix), "an array of the subclass numpy.matrix"),
        (lambda: np.dtype("O"), "ObjectDType"),
        (lambda: collections.defaultdict(lambda: 1), "a function"),
        (lambda: ordered, "an object of type int"),
        (lambda: torch.nn.Linear(1, 1), "an object of type torch.nn.modules.linear.Linear"),
        (torch.Generator, "an object of type torch._C.Generator"),
        (lambda: torch.zeros(1, device="meta"), "without data"),
        (lambda: torch.zeros(1).as_subclass(Subtensor), "a tensor of the subclass"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quantised"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
        (torch.nn.UninitializedParameter, "a tensor of the subclass"),
        (lambda: torch.zeros(3).to_mkldnn(), "layout torch._mkldnn"),
        (lambda: torch.strided, "an object of type torch.layout"),
    ],
)  # fmt: skip
def test_what_is_no_data_is_refused_with_its_path(make, what):
    state = {"optimizer": {"param_groups": [{"lr_fn": make()}]}}
    if what == "an object of type int" or isinstance(make(), collections.defaultdict):
        path = 'state["optimizer"]["param_groups"][0]["lr_fn"].'
    else:
        path = 'state["optimizer"]["param_groups"][0]["lr_fn"] is '
    with pytest.raises(UnsupportedError) as caught:
        encode_state(state)
    assert str(caught.value).startswith(path)
    assert what.lower() in str(caught.value).lower()
    assert caught.value.hint


def test_message_reads_well():
    with pytest.raises(UnsupportedError) as caught:
        encode_state({"optimizer": {"param_groups": [{"lr_fn": print}]}})
    assert str(caught.value) == (
        'state["optimizer"]["param_groups"][0]["lr_fn"] is a function; mvc stores only data'
    )
    assert caught.value.hint == "leave it out and set it again after loading"
    with pytest.raises(UnsupportedError) as caught:
        encode_state({"model": torch.nn.Linear(1, 1)})
    assert caught.value.hint == "pass its state_dict()"


def test_fake_and_transformed_tensors_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2)
    with pytest.raises(UnsupportedError, match=r'state\["x"\] is a tensor of the subclass'):
        encode_state({"x": fake})

    def look(tensor):
        with pytest.raises(UnsupportedError, match=r'state\["x"\] is'):
            encode_state({"x": tensor})
        return tensor

    torch.func.vmap(look)(torch.ones(2, 3))


def test_distributed_tensors_are_refused(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
        with pytest.raises(UnsupportedError, match="DTensor") as caught:
            encode_state({"x": tensor})
    finally:
        dist.destroy_process_group()
    assert "to_local" in caught.value.hint


@pytest.mark.parametrize(
    "key", [print, np.longdouble(1), (1, print), Text("a"), Number.ONE, torch.ones(1)]
)
def test_odd_keys_are_refused(key):
    with pytest.raises(UnsupportedError, match=r'^state\["x"\]\[.* is '):
        encode_state({"x": {key: 1}})
    with pytest.raises(UnsupportedError, match=r'^state\["x"\]\[.* is '):
        encode_state({"x": {key}})


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


def test_a_dict_subclass_is_no_state():
    with pytest.raises(UnsupportedError, match=r"^state is an object of type"):
        encode_state(Subdict(a=1))
    assert_same(store(collections.OrderedDict(a=1)).load(), collections.OrderedDict(a=1))


# What follows reads text that no encoder wrote.

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
        find_files(text)


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


@pytest.mark.parametrize(
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
    base = {**TENSOR}
    with pytest.raises(FormatError):
        load(wrap(TENSOR | {"shared": 0} | view, [base]))


def test_memory_is_not_allocated_for_what_a_file_does_not_hold():
    node = {
        "$": "ndarray",
        "in": "model.safetensors",
        "name": "w",
        "dtype": "<f8",
        "shape": [2**50],
    }
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="holds 24 bytes"):
            plan_state(json.dumps(wrap(node)).encode(), SEED.sizes)
        node = {"$": "ndarray", "in": "a", "name": "w", "dtype": "<f8", "shape": [2**50]}
        with pytest.raises(FormatError, match="no tensor"):
            plan_state(json.dumps(wrap(node)).encode(), {})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**20


def test_integers_cannot_want_gradients():
    node = {
        "$": "tensor",
        "in": "model.safetensors",
        "name": "w",
        "dtype": "int32",
        "shape": [6],
        "grad": True,
    }
    with pytest.raises(FormatError, match="gradient"):
        load(wrap(node))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null", b"[]", b"{}", b'{"format": "mvc-state"}', b"\xff", b"NaN", b'{"a": 1, "a": 2}',
        b"[" * 100_000, b'{"x":' * 50_000, b"1" * 5000,
        b'{"format": "mvc-state", "version": 0, "files": [], "state": {}}',
        b'{"format": "mvc-state", "version": true, "files": [], "state": {}}',
        b'{"format": "mvc-state", "version": 1, "files": [1], "state": {}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": []}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {"$": "int", "hex": "0x1"}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {}, "more": 1}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {}, "shared": [1]}',
    ],
    ids=range(18),
)  # fmt: skip
def test_hostile_text(text):
    with pytest.raises(FormatError):
        decode_state(text, None, sizes={})


def test_deep_nodes_are_refused():
    node = 1
    for _ in range(250):
        node = [node]
    text = json.dumps(wrap(node)).encode()
    with pytest.raises(FormatError, match="nested"):
        load(text)


def test_limits_are_checked_before_parsing(monkeypatch):
    monkeypatch.setattr(state_json, "MAX_VALUES", 100)
    with pytest.raises(FormatError, match="values, the limit is 100"):
        load(b"[" + b"1," * 200 + b"1]")
    with pytest.raises(UnsupportedError, match="values, the limit is 100"):
        encode_state({"x": list(range(200))})
    monkeypatch.setattr(state_json, "MAX_TEXT_BYTES", 1000)
    with pytest.raises(FormatError, match="limit is 1,000"):
        load(b" " * 2000)


def test_a_newer_version_says_so():
    with pytest.raises(UnsupportedError, match="version 2"):
        load(b'{"format": "mvc-state", "version": 2, "anything": 1}')
