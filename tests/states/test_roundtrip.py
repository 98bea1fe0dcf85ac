"""Any nested state comes back with its structure, types and bits."""

from __future__ import annotations

import json
import math
import random
import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.state_strategies import arrays, states, tensors, torch_states
from support.states import assert_same, round_trip, store

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


@pytest.mark.parametrize(
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
    ids=lambda value: f"{type(value).__name__}-{repr(value)[:20]}" if not isinstance(value, int) or value < 2**70 else "huge",
)  # fmt: skip
def test_value(value):
    assert_same(round_trip({"x": [value]}), {"x": [value]})


def test_signalling_nan_keeps_its_payload():
    bits = 0x7FF0_0000_0000_0001
    value = struct.unpack("d", struct.pack("Q", bits))[0]
    again = round_trip({"x": value})["x"]
    assert struct.unpack("Q", struct.pack("d", again))[0] == bits


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


def test_json_shows_plain_values_as_themselves():
    state = {"step": 7, "lr": 0.1, "name": "añ", "on": True, "none": None, "list": [1, [2.5]]}
    stored = store(state)
    document = json.loads(stored.files["state.json"])
    assert document["state"] == state
    assert document["format"] == "mvc-state"
    assert '"name": "añ"' in stored.files["state.json"].decode()
    assert list(stored.files) == ["state.json"]


def test_one_changed_value_changes_one_line():
    state = {
        f"key{number}": {"a": number, "b": [1.5, number], "c": "x" * 80} for number in range(50)
    }
    before = store(state).files["state.json"].splitlines()
    state["key7"]["b"][0] = 2.5
    after = store(state).files["state.json"].splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_numpy_loads_torch_objects_without_torch():
    state = {
        "w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
        "c": torch.tensor([1 + 2j]).to(torch.complex32),
        "p": torch.nn.Parameter(torch.ones(2)),
        "f4": torch.tensor([[0x12, 0x34]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "meta": [torch.Size([1, 2]), torch.bfloat16, torch.device("cuda:1"), torch.device("cpu")],
    }
    again = round_trip(state, framework="numpy")
    assert again["w"].dtype == ml_dtypes.bfloat16
    assert again["w"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert again["w"].flags.f_contiguous
    assert again["c"].dtype == ml_dtypes.complex32
    assert again["p"].dtype == np.float32
    assert again["f4"].tolist() == [[0x12, 0x34]]
    assert again["meta"] == [(1, 2), "torch.bfloat16", "cuda:1", "cpu"]
    assert type(again["meta"][0]) is tuple


NO_TORCH = """
import sys
import numpy as np
from collections import Counter
sys.path.insert(0, {tests!r})
from support.states import round_trip, assert_same, store
state = {{"a": np.arange(6.0).reshape(2, 3).T, "b": [Counter("abc"), np.float32(1), 3]}}
assert_same(round_trip(state), state)
assert_same(round_trip(state, framework="numpy"), state)
assert_same(round_trip(state, into={{"a": np.zeros((3, 2), order="F")}}), state)
try:
    store({{"f": print}})
except Exception as error:
    assert "is a function" in str(error), error
assert "torch" not in sys.modules
"""


def test_torch_is_not_imported_for_numpy_states():
    tests = __file__.rsplit("/states/", 1)[0]
    subprocess.run([sys.executable, "-c", NO_TORCH.format(tests=tests)], check=True)


def test_missing_torch_is_said():
    code = """
import sys
sys.modules["torch"] = None
from mvc.states.state import plan_state
from mvc.errors import UnsupportedError
text = b'{"format": "mvc-state", "version": 1, "files": [], "state": {"a": {"$": "torch.Size", "items": [1]}}}'
assert plan_state(text, {}, framework="numpy").build() == {"a": (1,)}
try:
    plan_state(text, {})
except UnsupportedError as error:
    assert "torch is not installed" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_is_not_imported_to_load_torch_states_with_numpy(tmp_path):
    stored = store({"w": torch.ones(2, 3), "s": torch.Size([1]), "d": torch.float16})
    for name, data in stored.files.items():
        (tmp_path / name).write_bytes(data)
    code = """
import sys
from pathlib import Path
from mvc.checkpoints.safetensors import parse_safetensors
from mvc.sources import MemorySource
from mvc.states.state import decode_state, find_files, measure_tensors
folder = Path(sys.argv[1])
text = (folder / "state.json").read_bytes()
data = {name: (folder / name).read_bytes() for name in find_files(text)}
layouts = {name: parse_safetensors(MemorySource(body)) for name, body in data.items()}
def read(file, tensor, buffer):
    for segment in layouts[file].segments:
        if segment.tensors[0].name == tensor:
            buffer[:] = data[file][segment.start : segment.end]
state = decode_state(text, read, sizes=measure_tensors(layouts.items()), framework="numpy")
assert state["w"].tolist() == [[1, 1, 1], [1, 1, 1]] and state["s"] == (1,)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
