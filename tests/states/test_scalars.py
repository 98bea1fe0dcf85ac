"""Values without elements come back with their type and bits."""

import json
import math
import struct
from collections import deque

import ml_dtypes
import numpy as np
import torch

from support.cases import for_each
from support.states import assert_same, round_trip, store


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
