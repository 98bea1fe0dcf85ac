import ml_dtypes
import numpy as np
import pytest

from mvc.dtypes import DTYPES, get_dtype
from mvc.numbers.elements import (
    count_top_codes,
    is_readable,
    largest_finite,
    read_order,
    read_values,
    widen,
)
from mvc.numbers.pieces import compare_pieces
from support.cases import for_each

GGUF_ONLY = {"Q8_1", "Q8_K", "Q1_0"}
"""Block types that no reader in Python takes apart."""


def noise(name, blocks=40):
    raw = np.random.default_rng(7).integers(0, 256, get_dtype(name).block_bytes * blocks, np.uint8)
    return raw, get_dtype(name)


@for_each("name", sorted(DTYPES))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_type_gives_one_number_an_element(name):
    raw, dtype = noise(name)
    values = read_values(raw, dtype)
    if values is None:
        assert name in GGUF_ONLY or name.startswith(("Q", "IQ", "TQ"))
        assert not is_readable(dtype)
        return
    assert values.shape == (40 * dtype.block_elements,)
    assert is_readable(dtype)
    assert widen(values).dtype in (np.float64, np.complex128)


@for_each("name", sorted(n for n, d in DTYPES.items() if d.block_elements > 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_blocks_as_the_gguf_package_reads_them(name):
    gguf = pytest.importorskip("gguf")
    raw, dtype = noise(name)
    values = read_values(raw, dtype)
    kind = getattr(gguf.GGMLQuantizationType, name, None)
    if values is None or kind is None:
        return
    expected = gguf.quants.dequantize(raw.reshape(-1, dtype.block_bytes), kind).reshape(-1)
    if name == "MXFP4":  # the package loses the largest scale to an overflow, ggml itself does not
        good = np.repeat(raw.reshape(-1, 17)[:, 0] < 255, 32)
        values, expected = values[good], expected[good]
    np.testing.assert_array_equal(values, expected)


def test_packed_elements_by_hand():
    f4 = read_values(np.array([0x21, 0xF7], np.uint8), get_dtype("F4"))
    assert widen(f4).tolist() == [0.5, 1.0, 6.0, -6.0]
    bits = 0b111111_000001_100000_001000  # the last element first
    raw = np.frombuffer(bits.to_bytes(3, "little"), np.uint8)
    assert widen(read_values(raw, get_dtype("F6_E2M3"))).tolist() == [1.0, -0.0, 0.125, -7.5]


@pytest.mark.parametrize("name", ["F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E8M0"])
def test_places_are_those_of_all_values_in_order(name):
    dtype = get_dtype(name)
    bits = np.arange(256**dtype.block_bytes, dtype=f"<u{dtype.block_bytes}")
    values = widen(read_values(bits.view(np.uint8), dtype))
    order = read_order(bits.view(np.uint8), dtype).astype(int)
    known = ~np.isnan(values)
    distinct = np.unique(values[known])  # -0 and +0 are one value
    place = np.searchsorted(distinct, values[known])
    zero = np.searchsorted(distinct, values[0]) - order[0]
    np.testing.assert_array_equal(order[known] + zero, place)


@pytest.mark.parametrize("name", ["F32", "F64"])
def test_places_of_wide_types_are_those_of_nextafter(name):
    values = np.array([0, 1, -1, 1e-30, 65504, -3.5e-5], {"F32": "f4", "F64": "f8"}[name])
    after = np.nextafter(values, np.inf, dtype=values.dtype)
    places = [read_order(side.view(np.uint8), get_dtype(name)) for side in (values, after)]
    assert (places[1] - places[0]).tolist() == [1] * 6


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_fp8_saturates_at_its_largest_finite_value(name):
    values = widen(read_values(np.arange(256, dtype=np.uint8), get_dtype(name)))
    assert largest_finite(get_dtype(name)) == values[np.isfinite(values)].max()


@pytest.mark.parametrize(
    ("name", "largest"),
    [("F4", 6.0), ("F6_E2M3", 7.5), ("F6_E3M2", 28.0), ("BF16", None), ("F8_E8M0", None)],
)
def test_other_types_that_saturate(name, largest):
    assert largest_finite(get_dtype(name)) == largest


def test_scale_types_of_blocks_are_read_by_ml_dtypes():
    raw = np.arange(256, dtype=np.uint8)
    scales = widen(read_values(raw, get_dtype("F8_E8M0")))
    np.testing.assert_array_equal(scales, raw.view(ml_dtypes.float8_e8m0fnu).astype(float))


@pytest.mark.parametrize(("name", "scale_bytes"), [("MXFP4", 1), ("NVFP4", 4)])
def test_elements_at_the_limit_of_their_scale_are_counted(name, scale_bytes):
    dtype = get_dtype(name)
    raw = np.random.default_rng(5).integers(0, 256, (50, dtype.block_bytes), np.uint8)
    raw[:, :scale_bytes] = 0x38  # a scale that is not 0
    values = np.abs(read_values(raw.reshape(-1), dtype).astype(np.float64))
    expected = int((values == values.max()).sum())
    assert count_top_codes(raw.reshape(-1), dtype) == expected > 0
    assert count_top_codes(raw.reshape(-1), get_dtype("U8")) == 0
    found = compare_pieces(raw.reshape(-1), dtype, raw.reshape(-1), dtype)
    assert found.new.saturated == found.old.saturated == expected
