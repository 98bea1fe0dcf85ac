"""Any nested state comes back with its structure, types and bits."""

import json
import math
import random
import struct
from collections import OrderedDict, defaultdict, deque

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.states.elements import TORCH_ELEMENTS
from support.cases import for_each
from support.state_strategies import arrays, states, tensors, torch_states
from support.states import assert_same, make_counting, round_trip, store

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


@given(states, st.integers(1, 50))
def test_every_state_comes_back(state, step):
    stored = store(state, step)
    assert_same(stored.load(), state)
    assert_same(stored.load(framework="numpy"), state)
    assert store(state).files == stored.files


@given(torch_states, st.integers(1, 50))
def test_every_tensor_comes_back(state, step):
    stored = store(state, step)
    assert_same(stored.load(), state)


@given(tensors)
def test_dense_strides_come_back(tensor):
    again = round_trip({"x": tensor})["x"]
    source = tensor.detach()
    is_dense = source.numel() > 0 and source.untyped_storage().nbytes() == (
        source.numel() * source.element_size()
    )
    if is_dense:
        assert again.stride() == source.stride()
    elif source.numel() > 0:
        assert again.is_contiguous()
    assert again.untyped_storage().nbytes() == again.numel() * again.element_size()


@given(arrays)
def test_array_order_comes_back(array):
    again = round_trip({"x": array})["x"]
    assert again.flags.c_contiguous or again.flags.f_contiguous or array.ndim > 2
    if array.flags.f_contiguous:
        assert again.flags.f_contiguous
    assert again.flags.writeable


def test_one_changed_value_changes_one_line():
    state = {
        f"key{number}": {"a": number, "b": [1.5, number], "c": "x" * 80} for number in range(50)
    }
    before = store(state).files["state.json"].splitlines()
    state["key7"]["b"][0] = 2.5
    after = store(state).files["state.json"].splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_order_of_keys_comes_back():
    state = {"b": 1, "a": {"z": 1, 3: 2, "y": 3}, "c": OrderedDict([("q", 1), ("p", 2)])}
    again = round_trip(state)
    assert list(again) == ["b", "a", "c"]
    assert list(again["a"]) == ["z", 3, "y"]
    assert list(again["c"]) == ["q", "p"]


def test_sets_are_written_the_same_in_every_order():
    words = [f"word{number}" for number in range(50)]
    shuffled = words[:]
    random.Random(0).shuffle(shuffled)
    assert store({"x": set(words)}).files == store({"x": set(shuffled)}).files


def test_default_factory_works_again():
    again = round_trip({"x": defaultdict(list, {1: [2]})})["x"]
    assert again[5] == []


@for_each(
    "value",
    [
        2**63 - 1, 2**64, -(2**63), -(2**63) - 1, 10**5000, True, 1.0, -0.0, 5e-324,
        "\ud83d\ude00", "\ud800", "", "a\nb\0", b"", bytes(1024), bytes(1025), bytearray(5000),
        range(10**30), slice(None), slice("a", 1.5, None), (), [], {}, set(), deque(maxlen=0),
        np.longlong(5), np.intp(5), np.float16(0.1), np.datetime64("NaT"), np.timedelta64(3, "D"),
        np.str_("a\0"), np.bytes_(b"a\0"), ml_dtypes.bfloat16(1.5), np.bool_(True),
        np.dtype("longlong"), np.dtype(">f4"), np.dtype(ml_dtypes.bfloat16), np.dtype("<M8[25s]"),
        torch.Size([2, 3]), torch.float8_e5m2, torch.qint8, torch.device("cuda", 3), torch.device("meta"),
        {"$": 1}, {"$": "tensor"}, {1: 2, "1": 3, None: 4, (1, "a"): 5, 1.5: 6, b"x": 7},
        {torch.float32: 1, np.int64(4): 2, np.dtype("f4"): 3, torch.Size([1]): 4},
        [1] * 1000, [0.5] * 1000, [1, 2**70], [1.0, math.inf], [True, 1, 1.0],
    ],
)  # fmt: skip
def test_value(value):
    assert_same(round_trip({"x": [value]}), {"x": [value]})


def test_signalling_nan_keeps_its_payload():
    bits = 0x7FF0_0000_0000_0001
    value = struct.unpack("d", struct.pack("Q", bits))[0]
    again = round_trip({"x": value})["x"]
    assert struct.unpack("Q", struct.pack("d", again))[0] == bits


def test_json_shows_plain_values_as_themselves():
    state = {"step": 7, "lr": 0.1, "name": "añ", "on": True, "none": None, "list": [1, [2.5]]}
    stored = store(state)
    document = json.loads(stored.files["state.json"])
    assert document["state"] == state
    assert document["format"] == "mvc-state"
    assert '"name": "añ"' in stored.files["state.json"].decode()
    assert list(stored.files) == ["state.json"]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_loads_in_safetensors(tmp_path):
    arrays = {
        "text": np.array(["añ", "b"]),
        "bytes": np.array([b"abc", b"d"]),
        "time": np.array(["2020-01-01", "NaT"], "M8[s]"),
        "span": np.array([1, 2], "m8[ns]"),
        "big": np.array([1.0, -2.5], ">f4"),
        "c128": np.array([[1 + 2j]]),
        "bool": np.array([True, False]),
    }
    tensors = {name: make_counting(name, 2, 4) for name in TORCH_ELEMENTS}
    stored = store({"arrays": arrays, "tensors": tensors})
    for name in ("arrays", "tensors"):
        (tmp_path / name).write_bytes(stored.files[f"{name}.safetensors"])
    loaded = safetensors.numpy.load_file(tmp_path / "arrays")
    assert loaded["text"].view("<U2").ravel().tolist() == ["añ", "b"]
    assert loaded["bytes"].view("S3").ravel().tolist() == [b"abc", b"d"]
    assert np.array_equal(loaded["time"].view("M8[s]"), arrays["time"], equal_nan=True)
    assert loaded["big"].tolist() == [1.0, -2.5]
    assert loaded["c128"].tolist() == [[[1.0, 2.0]]]
    loaded = safetensors.torch.load_file(tmp_path / "tensors")
    for name, tensor in tensors.items():
        same = tensor.dtype == loaded[name].dtype
        assert same == (name not in ("complex32", "complex128"))
        assert bytes(loaded[name].view(torch.uint8).numpy().data) == bytes(
            tensor.view(torch.uint8).numpy().data
        )
