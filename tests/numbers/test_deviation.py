"""How far elements are apart: against Python's own arithmetic, one by one, in every type."""

import cmath
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.dtypes import DTYPES, get_dtype
from mvc.numbers.deviation import Deviation, Tolerance, measure_deviation
from mvc.numbers.elements import is_readable, read_values, widen
from support.cases import for_each

NAMES = {
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "int8": "I8",
    "uint8": "U8", "int64": "I64", "bool": "BOOL", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip


def measure(old, new, old_dtype, new_dtype=None, **options):
    sides = (np.ascontiguousarray(side).view(np.uint8) for side in (old, new))
    (left, right), kind = sides, get_dtype(old_dtype)
    other = get_dtype(new_dtype or old_dtype)
    return measure_deviation(left, kind, right, other, **options)


@for_each(
    ("dtype", "old", "new", "expected"),
    [
        ("float32", [1, 2], [1.5, 2.25], 0.5),
        ("float32", [np.inf], [np.inf], 0),
        ("float32", [np.inf], [-np.inf], np.inf),
        ("float32", [np.inf], [1], np.inf),
        ("float32", [np.nan], [np.nan], 0),
        ("float32", [np.nan, 1], [1, 9], np.nan),
        ("float16", [65504], [-65504], 131008),
        ("bfloat16", [1], [3], 2),
        ("float8_e4m3fn", [1], [2], 1),
        ("int8", [-128], [127], 255),
        ("uint8", [255], [0], 255),
        ("int64", [-(2**63)], [2**63 - 1], 2.0**64),
        ("bool", [True], [False], 1),
        ("complex64", [3 + 4j], [0], 5),
    ],
)
def test_the_largest_difference(dtype, old, new, expected):
    scalar = getattr(np, dtype, None) or getattr(ml_dtypes, dtype)
    for left, right in ((old, new), (new, old)):
        sides = (np.array(side).astype(scalar) for side in (left, right))
        found = measure(*sides, NAMES[dtype]).largest
        assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("dtype", "size_bytes", "places", "elements"),
    [
        ("F64", 8, [0, 7, 8], 2),
        ("C128", 16, [0, 8, 16, 40], 3),
        ("C64", 8, [0, 4, 8], 2),
        ("C32", 4, [0, 2, 4], 2),
        ("BOOL", 1, [0, 1], 2),
        ("F8_E5M2", 1, [0, 1], 2),
        ("Q4_0", 18, [0, 1], None),
    ],
)
def test_elements_are_counted_by_their_bits(dtype, size_bytes, places, elements):
    old = np.zeros(size_bytes * 6, np.uint8)
    new = old.copy()
    new[places] = 1
    found = measure(old, old, dtype) + measure(old, new, dtype) + measure(old, new, dtype)
    assert found.bytes_changed == 2 * len(places)
    assert found.changed == (None if elements is None else 2 * elements)


def test_nan_stays_the_largest_difference():
    found = Deviation()
    for value in (1, np.nan, 5):
        found += measure(np.zeros(1, "f4"), np.full(1, value, "f4"), "F32")
    assert math.isnan(found.largest)


def test_a_type_that_cannot_be_read_is_compared_by_its_blocks():
    old = np.zeros(3 * 50, np.uint8)  # IQ1_S: 256 elements in 50 bytes
    new = old.copy()
    new[60] = 1
    found = measure(old, new, "IQ1_S", tolerance=Tolerance(1e9))
    if not is_readable(get_dtype("IQ1_S")):
        assert (found.beyond, found.first.index, found.largest) == (256, 256, None)


def expected(old, new, tolerance):
    """Return (elements beyond, largest, first index), with Python's floats one by one."""
    distances, beyond = [], []
    for one, other in zip(old, new, strict=True):
        if one == other or (cmath.isnan(one) and cmath.isnan(other)):
            distance = 0.0
        else:
            distance = abs(other - one)
        distances.append(distance)
        allowed = tolerance.absolute + tolerance.relative * abs(one)
        beyond.append(not math.isfinite(distance) or distance > allowed)
    largest = math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)
    return sum(beyond), largest, beyond.index(True) if any(beyond) else None


GGUF = ("Q", "IQ", "TQ")  # what gguf makes of garbage is its own matter
READABLE = [
    name for name, dtype in DTYPES.items() if is_readable(dtype) and not name.startswith(GGUF)
]


@given(st.data(), st.sampled_from(READABLE), st.sampled_from([0.0, 1e-5, 0.5]))
def test_any_bits_of_any_type(data, name, size):
    dtype = get_dtype(name)
    count = data.draw(st.integers(0, 4)) * dtype.block_bytes
    old = np.frombuffer(data.draw(st.binary(min_size=count, max_size=count)), np.uint8)
    new = old.copy()
    for place in data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=3)):
        if count:
            new[place] ^= data.draw(st.integers(0, 255))
    tolerance = Tolerance(size, data.draw(st.sampled_from([0.0, 0.01])))
    if dtype.numpy_name in ("int64", "uint64"):
        values = [read_values(side, dtype).tolist() for side in (old, new)]
    else:
        with np.errstate(all="ignore"):
            values = [widen(read_values(side, dtype)).tolist() for side in (old, new)]
    beyond, largest, first = expected(*values, tolerance)
    found = measure(old, new, name, tolerance=tolerance)
    assert found.beyond == beyond
    assert found.largest == pytest.approx(largest, nan_ok=True)
    assert (found.first and found.first.index) == first
    exact = measure(old, new, name)
    assert (exact.beyond > 0) == bool((old != new).any())
    assert exact.bytes_changed == int((old != new).sum())
    # Pieces join to the same, wherever they are cut.
    blocks = count // dtype.block_bytes
    cut = data.draw(st.integers(0, blocks)) if blocks else 0
    at, elements = cut * dtype.block_bytes, cut * dtype.block_elements
    joined = measure(old[:at], new[:at], name) + measure(
        old[at:], new[at:], name, first_index=elements
    )
    assert repr(joined) == repr(exact)  # NaN is itself there


def test_two_dtypes_are_compared_as_numbers():
    old = np.array([1, np.nan, -0.0, np.inf, 0.1], "f4")
    new = old.astype(ml_dtypes.bfloat16)
    found = measure(old, new, "F32", "BF16", tolerance=Tolerance(1e-3))
    assert (found.changed, found.bytes_changed, found.beyond) == (1, None, 0)
    assert found.largest == float(np.abs(np.float64(new[4]) - np.float64(old[4])))
    assert measure(old, new, "F32", "BF16", tolerance=Tolerance()).first.index == 4
    assert measure(old[:0], new[:0], "F32", "BF16", tolerance=Tolerance()).elements == 0


def test_ulps_are_steps_between_neighbours():
    tiny = np.nextafter(np.float32(0), np.float32(1))
    old = np.array([1, -tiny, 65504, 3, np.nan], "f4")
    new = np.array([np.nextafter(np.float32(1), np.float32(2)), tiny, 65504, np.inf, 1], "f4")
    ulps = [measure(old[at : at + 1], new[at : at + 1], "F32").first for at in range(5)]
    assert [one and one.ulps for one in ulps][:3] == [1, 2, None]
    assert ulps[3].ulps == 0x7F800000 - 0x40400000
    assert ulps[4].ulps is None
    far = measure(np.array([-1e308]), np.array([1e308]), "F64").first
    assert far.ulps == 2 * int(np.array([1e308]).view(np.int64)[0])
