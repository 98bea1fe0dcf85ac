"""How much two tensors differ, counted piece by piece."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from mvc.dtypes import get_dtype
from mvc.workspace.tensor_compare import TensorDifference, find_largest


@pytest.mark.parametrize(
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
        found = find_largest(*(np.array(side).astype(scalar) for side in (left, right)))
        assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("dtype", "size_bytes", "places", "elements", "has_numbers"),
    [
        ("F64", 8, [0, 7, 8], 2, True),
        ("C128", 16, [0, 8, 16, 40], 3, True),
        ("C64", 8, [0, 4, 8], 2, True),
        ("C32", 4, [0, 2, 4], 2, False),
        ("BOOL", 1, [0, 1], 2, True),
        ("F8_E5M2", 1, [0, 1], 2, True),
        ("Q4_0", 18, [0, 1], None, False),
    ],
)
def test_elements_are_counted_by_their_bits(dtype, size_bytes, places, elements, has_numbers):
    old = np.zeros(size_bytes * 6, np.uint8)
    new = old.copy()
    new[places] = 1
    count = TensorDifference(get_dtype(dtype))
    count.add(old, old)
    for _ in range(2):
        count.add(old, new)
    assert count.bytes_changed == 2 * len(places)
    assert count.elements_changed == (None if elements is None else 2 * elements)
    assert (count.largest is not None) == has_numbers
    assert not has_numbers or count.largest > 0


def test_nan_stays_the_largest_difference():
    count = TensorDifference(get_dtype("F32"))
    for value in (1, np.nan, 5):
        old, new = np.zeros(1, np.float32), np.full(1, value, np.float32)
        count.add(old.view(np.uint8), new.view(np.uint8))
    assert math.isnan(count.largest)
