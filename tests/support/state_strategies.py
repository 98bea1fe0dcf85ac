"""Nested states of every kind that mvc stores, for hypothesis."""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

from mvc.states.elements import _ML_ELEMENTS, TORCH_ELEMENTS

ML_NAMES = [name for name in _ML_ELEMENTS if hasattr(ml_dtypes, name)]
WIDE = ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
OTHERS = (
    "b1", "i1", "u1", "q", "Q", "S1", "S7", "V3", "<U3", ">U2", "<M8[s]", ">M8[ns]", "<m8[25us]", "<M8",
)  # fmt: skip
NUMPY_DTYPES = [
    *(np.dtype(order + code) for order in "<>" for code in WIDE),
    *map(np.dtype, OTHERS),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ML_NAMES),
]
any_text = st.text(st.characters(exclude_categories=()), max_size=6)
any_float = st.integers(0, 2**64 - 1).map(
    lambda bits: struct.unpack("d", struct.pack("Q", bits))[0]
)


def make_array(dtype, shape, layout, data):
    size = math.prod(shape) * dtype.itemsize
    raw = (data * (size // max(1, len(data)) + 1))[:size]
    array = np.frombuffer(bytearray(raw), dtype, math.prod(shape)).reshape(shape).copy()
    if dtype.kind == "b":
        array = np.asarray(array.view(np.uint8) % 2 == 1)
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "reversed" and shape:
        return array[tuple(slice(None, None, -1) for _ in shape)]
    if layout == "sliced" and shape:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    return array


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
layouts = st.sampled_from(["C", "F", "reversed", "sliced"])
noise = st.binary(min_size=16, max_size=64)
arrays = st.builds(make_array, st.sampled_from(NUMPY_DTYPES), shapes, layouts, noise)


def make_scalar(dtype, data):
    raw = data[: dtype.itemsize]
    if dtype.kind == "b":
        raw = bytes([raw[0] % 2])
    return np.frombuffer(raw, dtype)[0]


def is_scalar_type(dtype):
    return dtype.isnative and dtype.kind not in "USV"


numpy_scalars = st.one_of(
    st.builds(make_scalar, st.sampled_from([*filter(is_scalar_type, NUMPY_DTYPES)]), noise),
    st.builds(
        make_scalar,
        st.sampled_from([np.dtype(getattr(ml_dtypes, name)) for name in ML_NAMES]),
        noise,
    ),
    any_text.map(np.str_),
    st.binary(max_size=4).map(np.bytes_),
    noise.map(lambda data: np.void(data[:5])),
)
plain_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**130), 2**130),
    any_float,
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324]),
    st.builds(complex, any_float, any_float),
    any_text,
    st.binary(max_size=8),
)
scalars = st.one_of(
    plain_scalars,
    numpy_scalars,
    st.binary(max_size=8).map(bytearray),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
    st.builds(slice, st.none() | st.integers(), plain_scalars, st.none() | st.integers()),
    st.sampled_from(NUMPY_DTYPES),
)
# NaN is not equal to itself, so a key that holds one cannot be looked up again.
keys = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        any_text,
        st.floats(allow_nan=False),
        st.binary(max_size=4),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


def containers(inner):
    mappings = st.dictionaries(keys, inner, max_size=4)
    lists = st.lists(inner, max_size=4)
    return st.one_of(
        mappings,
        st.dictionaries(any_text | st.just("$"), inner, max_size=4),
        lists,
        lists.map(tuple),
        st.builds(deque, lists, st.none() | st.integers(4, 9)),
        mappings.map(OrderedDict),
        mappings.map(Counter),
        st.builds(defaultdict, st.sampled_from([None, list, int, dict, deque]), mappings),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
    )


values = st.recursive(scalars | arrays, containers, max_leaves=12)
states = st.dictionaries(any_text, values, max_size=4)


def make_tensor(name, shape, layout, data, flags):
    dtype = getattr(torch, name)
    size = math.prod(shape) * TORCH_ELEMENTS[name].size_bytes
    raw = bytearray((data * (size // len(data) + 1))[:size])
    if name == "bool":
        raw = bytearray(byte % 2 for byte in raw)
    flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    tensor = torch.empty(0, dtype=dtype).set_(flat.clone().untyped_storage(), 0, shape)
    if layout == "F" and shape:
        tensor = tensor.permute(*reversed(range(len(shape))))
    elif layout == "sliced" and shape:
        tensor = tensor[..., ::2]
    elif layout == "expanded":
        tensor = tensor.unsqueeze(0).expand(3, *shape)
    if dtype.is_floating_point or dtype.is_complex:
        if flags & 1:
            tensor = tensor.detach().requires_grad_()
        if flags & 2:
            tensor = torch.nn.Parameter(tensor.detach(), requires_grad=bool(flags & 1))
    return tensor


tensors = st.builds(
    make_tensor,
    st.sampled_from([*TORCH_ELEMENTS]),
    shapes,
    st.sampled_from(["C", "F", "sliced", "expanded"]),
    noise,
    st.integers(0, 3),
)


torch_states = st.dictionaries(
    any_text, st.recursive(tensors, containers, max_leaves=6), max_size=3
)
