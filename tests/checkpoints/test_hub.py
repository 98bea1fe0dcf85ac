import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.safetensors import find_shards
from mvc.errors import FormatError


def test_shards_are_named_once_and_sorted():
    index = {
        "metadata": {"total_size": 123},
        "weight_map": {
            "a": "model-2.safetensors",
            "b": "model-1.safetensors",
            "c": "model-2.safetensors",
        },
    }
    assert find_shards(json.dumps(index).encode()) == ("model-1.safetensors", "model-2.safetensors")
    assert find_shards(b'{"weight_map": {}}') == ()


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "x\0", "x\n", "\x1b[2J", "a" * 256,
        "..\\x", "\u202eexe.bin",
    ],
)  # fmt: skip
def test_hostile_names_are_refused(name):
    with pytest.raises(FormatError):
        find_shards(json.dumps({"weight_map": {"a": name}}).encode())


@pytest.mark.parametrize(
    "index",
    [
        b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b"\xff",
        b'{"weight_map": {"a": "\\ud800"}}', b"[" * 100_000, b'{"x":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_index_is_refused(index):
    with pytest.raises(FormatError):
        find_shards(index)


@given(st.binary(max_size=100))
def test_any_bytes_are_an_index_or_refused(data):
    with contextlib.suppress(FormatError):
        find_shards(data)
