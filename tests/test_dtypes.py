from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError
from mvc.dtypes import (
    DTYPES,
    MAX_DIMS,
    MAX_TENSOR_BYTES,
    count_elements,
    get_dtype,
    numpy_dtype,
    size_in_bytes,
)
from support.cases import for_each

SAFETENSORS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits per element, from the documentation of the format."""


@for_each("name", sorted(SAFETENSORS))
def test_all_of_safetensors(name):
    dtype = get_dtype(name)
    assert dtype.block_bytes * 8 == SAFETENSORS[name] * dtype.block_elements


def test_all_of_gguf():
    """Block sizes as the reader that the project of GGUF publishes knows them."""
    gguf = pytest.importorskip("gguf")
    known = 0
    for kind, (elements, size_bytes) in gguf.GGML_QUANT_SIZES.items():
        dtype = DTYPES.get(kind.name)
        if dtype is not None:
            known += 1
            assert (dtype.block_elements, dtype.block_bytes) == (elements, size_bytes), kind.name
    assert known > 20


@for_each("dtype", DTYPES.values())
def test_a_row_of_the_table_fits_together(dtype):
    assert DTYPES[dtype.name] is dtype
    assert dtype.word_bytes in (1, 2, 4, 8)
    assert dtype.block_bytes % dtype.word_bytes == 0
    assert dtype.block_elements >= 1
    scalar = numpy_dtype(dtype)
    if scalar is None:
        return
    assert (dtype.block_elements, scalar.itemsize) == (1, dtype.block_bytes)
    is_number = scalar.kind in "fc" or hasattr(ml_dtypes, dtype.numpy_name)
    # One-byte floats have no exponent plane of their own to gain from.
    assert dtype.is_float == (is_number and dtype.word_bytes > 1)
    assert scalar.isnative


def test_values_that_numpy_has_not_come_from_ml_dtypes():
    assert numpy_dtype(get_dtype("BF16")) == ml_dtypes.bfloat16
    assert numpy_dtype(get_dtype("F8_E4M3")) == ml_dtypes.float8_e4m3fn
    assert numpy_dtype(get_dtype("C64")) == np.complex64
    for name in ("F4", "Q4_K", "C32", "QI8"):
        assert numpy_dtype(get_dtype(name)) is None


@pytest.mark.parametrize("name", ["", "f32", "float32", "F33", "F32 ", "BF16\0"])
def test_unknown(name):
    with pytest.raises(FormatError, match="unknown dtype"):
        get_dtype(name)


class TestSizes:
    @given(st.lists(st.integers(0, 2**10), max_size=6))
    def test_elements(self, shape):
        expected = 1
        for dim in shape:
            expected *= dim
        assert count_elements(shape) == count_elements(tuple(shape)) == expected

    @pytest.mark.parametrize(
        ("shape", "count"), [((), 1), ((0,), 0), ((3, 0, 2), 0), ((2,) * 61, 2**61)]
    )
    def test_edges(self, shape, count):
        assert count_elements(shape) == count

    @pytest.mark.parametrize(
        "shape",
        [
            (-1,), (2, -3), (-2, -3), (0, -1), (2**63,), (2**32, 2**32), (0, 2**40, 2**40),
            (MAX_TENSOR_BYTES + 1,), (1,) * (MAX_DIMS + 1), (10**400,),
        ],
    )  # fmt: skip
    def test_impossible_shapes(self, shape):
        with pytest.raises(FormatError):
            count_elements(shape)
        with pytest.raises(FormatError):
            size_in_bytes(get_dtype("U8"), shape)

    @pytest.mark.parametrize(
        ("name", "shape", "size_bytes"),
        [
            ("F32", (3, 5), 60),
            ("F32", (), 4),
            ("C128", (2,), 32),
            ("F4", (3, 2), 3),
            ("F6_E2M3", (8,), 6),
            ("Q4_K", (2, 256), 288),
            ("Q8_0", (64, 32), 64 * 34),
            ("Q4_K", (0, 7), 0),
        ],
    )
    def test_bytes(self, name, shape, size_bytes):
        assert size_in_bytes(get_dtype(name), shape) == size_bytes

    @pytest.mark.parametrize(("name", "shape"), [("F4", (3,)), ("F4", ()), ("Q4_K", (255,))])
    def test_blocks_are_whole(self, name, shape):
        with pytest.raises(FormatError, match="whole blocks"):
            size_in_bytes(get_dtype(name), shape)

    def test_elements_fit_but_their_bytes_do_not(self):
        with pytest.raises(FormatError, match="too large"):
            size_in_bytes(get_dtype("F64"), (2**60,))
        assert size_in_bytes(get_dtype("U8"), (2**62,)) == 2**62
