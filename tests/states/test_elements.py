"""Element types: each is one that safetensors files hold."""

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from mvc.states.elements import TORCH_ELEMENTS
from support.states import make_counting, store


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
