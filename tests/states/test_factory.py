"""Who makes the arrays: NumPy alone needs no torch, and says so where torch is needed."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

from support.states import round_trip, store


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
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


TESTS = __file__.rsplit("/states/", 1)[0]
NO_TORCH = """
import sys
import numpy as np
import pytest
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
    subprocess.run([sys.executable, "-c", NO_TORCH.format(tests=TESTS)], check=True)


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


LOAD_WITHOUT_TORCH = """
import sys
sys.path.insert(0, {tests!r})
from mvc.checkpoints.safetensors import parse_safetensors
from mvc.sources import MemorySource
from support.states import StoredState
files = {files!r}
layouts = {{name: parse_safetensors(MemorySource(files[name])) for name in files if name[-1] == "s"}}
state = StoredState(files, layouts).load(framework="numpy")
assert state["w"].tolist() == [[1, 1, 1], [1, 1, 1]] and state["s"] == (1,)
assert "torch" not in sys.modules
"""


def test_torch_is_not_imported_to_load_torch_states_with_numpy():
    files = store({"w": torch.ones(2, 3), "s": torch.Size([1]), "d": torch.float16}).files
    code = LOAD_WITHOUT_TORCH.format(tests=TESTS, files=files)
    subprocess.run([sys.executable, "-c", code], check=True)
