"""Health against float64 arithmetic over every element, of all types."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.dtypes import DTYPES, get_dtype, numpy_dtype
from mvc.numbers.health import Health, measure
from support.cases import for_each

PACKED = {"F4": (4, 2, 1), "F6_E2M3": (6, 2, 3), "F6_E3M2": (6, 3, 2)}
"""Bits, exponent bits and mantissa bits."""
SMALL_FLOATS = [name for name in DTYPES if name.startswith(("F8_", "F6_", "F4"))]
UNKNOWN = [
    name for name, one in DTYPES.items() if not one.numpy_name and name not in (*PACKED, "C32")
]


def decode(raw, name):
    """Return the elements as float64 or complex128, by other means than the code under test."""
    if name in PACKED:
        bits, exponent_bits, mantissa_bits = PACKED[name]
        whole = "".join(f"{byte:08b}" for byte in reversed(raw.tolist()))
        codes = [int(whole[at : at + bits], 2) for at in range(0, len(whole), bits)][::-1]
        return np.array([decode_small(code, exponent_bits, mantissa_bits) for code in codes], float)
    if name == "C32":
        return raw.view(np.float16).astype(np.float64).view(np.complex128)
    values = raw.view(numpy_dtype(get_dtype(name)))
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def decode_small(code, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    mantissa = code % 2**mantissa_bits / 2**mantissa_bits
    exponent = code >> mantissa_bits & 2**exponent_bits - 1
    value = (1 + mantissa) * 2.0 ** (exponent - bias) if exponent else mantissa * 2.0 ** (1 - bias)
    return -value if code >> (exponent_bits + mantissa_bits) else value


@np.errstate(all="ignore")
def expect(raw, name):
    values = decode(raw, name)
    finite = np.abs(values[np.isfinite(values)])
    limit = largest_of(name) if name in SMALL_FLOATS else math.inf
    sum_sq = float((finite**2).sum())
    return Health(
        elements=values.size,
        nan=int(np.isnan(values).sum()),
        inf=int((np.isinf(values) & ~np.isnan(values)).sum()),
        zeros=int((values == 0).sum()),
        saturated=int((finite == limit).sum()),
        largest=float(finite.max(initial=0.0)),
        sum_sq=sum_sq,
    )


def largest_of(name):
    alias = {"F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn"}
    kind = getattr(ml_dtypes, alias.get(name) or DTYPES[name].numpy_name)
    return float(ml_dtypes.finfo(kind).max)


def check(raw, name):
    found, expected = measure(raw, get_dtype(name)), expect(raw, name)
    for field in ("elements", "nan", "inf", "zeros", "saturated"):
        assert getattr(found, field) == getattr(expected, field), field
    assert found.largest == pytest.approx(expected.largest, rel=1e-15)
    assert found.sum_sq == pytest.approx(expected.sum_sq, rel=1e-5)
    assert found.norm == pytest.approx(math.sqrt(expected.sum_sq), rel=1e-5)


@pytest.mark.parametrize("name", sorted(set(DTYPES) - set(UNKNOWN)))
@given(data=st.data())
def test_any_bytes_of_any_type(name, data):
    """Random bytes are full of NaN, infinities, subnormals and numbers at either end."""
    block = DTYPES[name].block_bytes
    seed, blocks = data.draw(st.integers(0, 2**32)), data.draw(st.sampled_from([0, 1, 2, 3, 700]))
    raw = np.random.default_rng(seed).integers(0, 256, blocks * block).astype(np.uint8)
    if data.draw(st.booleans()):
        raw[: raw.size // 2 // block * block] = 0
    check(raw, name)


@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "F64"])
@given(scale=st.integers(-150, 127), bad=st.lists(st.integers(0, 299_999), max_size=3))
def test_weights_of_any_size_in_several_blocks(name, scale, bad):
    values = np.random.default_rng(scale % 100).standard_normal(300_001) * 2.0**scale
    values[::7], values[1::7] = 0.0, -0.0
    with np.errstate(over="ignore", under="ignore"):
        cast = values.astype(numpy_dtype(get_dtype(name)))
    cast[bad] = [math.nan, math.inf, -math.inf][: len(bad)]
    check(cast.view(np.uint8), name)


@pytest.mark.parametrize("name", ["F16", "BF16", "F8_E5M2"])
def test_every_word_of_a_short_type_by_itself(name):
    size = DTYPES[name].block_bytes
    words = np.arange(256**size, dtype=f"u{size}")
    for word in words[:: max(1, words.size // 997)]:
        check(np.array([word]).view(np.uint8), name)
    check(words.view(np.uint8), name)


@pytest.mark.parametrize("name", ["BF16", "F32", "F8_E4M3", "C64", "I16"])
def test_parts_join(name):
    raw = np.random.default_rng(1).integers(0, 256, 4096).astype(np.uint8)
    whole, dtype = measure(raw, get_dtype(name)), get_dtype(name)
    joined = measure(raw[:1024], dtype) + measure(raw[1024:], dtype)
    assert joined.sum_sq == pytest.approx(whole.sum_sq)
    assert joined == Health(**{**fields_of(whole), "sum_sq": joined.sum_sq})


def fields_of(health):
    return {name: getattr(health, name) for name in Health.__slots__}


def test_bytes_that_are_not_aligned_are_the_same_numbers():
    values = np.linspace(-3, 3, 5001, dtype=np.float32)
    shifted = np.empty(values.nbytes + 1, np.uint8)[1:]
    shifted[:] = values.view(np.uint8)
    assert measure(shifted, get_dtype("F32")) == measure(values.view(np.uint8), get_dtype("F32"))


@for_each("name", UNKNOWN)
def test_types_without_known_values_are_not_measured(name):
    raw = np.zeros(DTYPES[name].block_bytes, np.uint8)
    assert measure(raw, get_dtype(name)) == Health()
