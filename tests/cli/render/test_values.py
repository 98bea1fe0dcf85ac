"""The values of a tensor: statistics that no type and no size gets wrong."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.cli.render import values
from mvc.cli.render.values import numbers_of, value_fields


@given(st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])))
def test_counts_and_range(numbers):
    found = numbers_of(np.array(numbers))
    finite = [number for number in numbers if math.isfinite(number)]
    known = [number for number in numbers if not math.isnan(number)]
    assert found.nan == len(numbers) - len(known)
    assert found.inf == len(known) - len(finite)
    assert found.zero == numbers.count(0.0)
    assert (found.smallest, found.largest) == (min(known, default=None), max(known, default=None))
    assert found.mean == (pytest.approx(sum(finite) / len(finite)) if finite else None)


def test_blocks_add_up(monkeypatch):
    for block in [1, 3, 100]:
        monkeypatch.setattr(values, "_BLOCK_VALUES", block)
        found = numbers_of(np.arange(-4, 6).reshape(2, 5))
        assert (found.smallest, found.largest, found.mean, found.zero) == (-4, 5, 0.5, 1)


def test_sums_of_whole_numbers_do_not_overflow():
    for dtype in [np.int64, np.uint64]:
        largest = np.iinfo(dtype).max
        assert numbers_of(np.full(1000, largest, dtype)).mean == pytest.approx(float(largest))


def test_types_without_an_order_or_of_few_bits():
    found = numbers_of(np.array([1 + 2j, 3 - 4j]))
    assert (found.smallest, found.largest, found.mean) == (None, None, 2 - 1j)
    assert value_fields(found, None)["mean"] == [2.0, -1.0]
    found = numbers_of(np.array([0.5, -2], ml_dtypes.bfloat16))
    assert (found.smallest, found.largest) == (-2.0, 0.5)
    found = numbers_of(np.array([True, False]))
    assert (found.smallest, found.largest, found.mean) == (0, 1, 0.5)


def test_fields_are_cut_at_the_limit():
    found = numbers_of(np.arange(4, dtype=np.int32))
    assert value_fields(found, 2)["values"] == [0, 1]
    assert value_fields(found, 2)["truncated"] is True
    assert value_fields(found, 4)["truncated"] is False
    assert value_fields(found, None)["values"] == [0, 1, 2, 3]
