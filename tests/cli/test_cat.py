"""mvc cat: values as people and as programs read them."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file


def test_cat_in_its_three_spellings(shell):
    expected = shell.ok("cat", "v1:model.safetensors", "embed").lines
    assert shell.ok("cat", "v1", "model.safetensors", "embed").lines == expected
    assert expected[0] == "embed  F32[64, 32]  8 KiB  model.safetensors"
    assert expected[1].startswith("min -")
    assert expected[2].startswith("[[")
    head = shell.ok("cat", "model.safetensors", "head").lines
    assert head[:2] == ["head  F16[4, 32]  256 B  model.safetensors", "min 1  max 1  mean 1"]


def test_cat_json_equals_the_file(shell):
    values = load_file(shell.folder / "model.safetensors")["layers.0.v"]
    fields = shell.json("cat", "model.safetensors", "layers.0.v")
    assert fields["values"] == values.reshape(-1)[:20].tolist()
    assert fields["truncated"] is True
    assert fields["min"] == values.min()
    assert fields["max"] == values.max()
    assert fields["mean"] == pytest.approx(values.astype(np.float64).mean())
    assert (fields["dtype"], fields["shape"], fields["tensor"]) == ("F32", [32, 32], "layers.0.v")
    fields = shell.json("cat", "--all", "model.safetensors", "layers.0.v")
    assert fields["values"] == values.reshape(-1).tolist()
    assert fields["truncated"] is False


def test_cat_of_values_that_are_no_numbers(empty):
    values = {"a": np.array([1, np.nan, -np.inf, 0], np.float32)}
    save_file(values, empty.folder / "t.safetensors")
    empty.ok("commit", "-q", "-m", "x", "t.safetensors")
    assert empty.ok("cat", "t.safetensors").lines[1:] == [
        "min -inf  max 1  mean 0.5  1 zero  1 nan  1 inf",
        "[1, nan, -inf, 0]",
    ]
    fields = empty.json("cat", "t.safetensors", "a")
    assert fields["values"] == [1.0, "nan", "-inf", 0.0]
    assert (fields["nan"], fields["inf"], fields["zero"]) == (1, 1, 1)
