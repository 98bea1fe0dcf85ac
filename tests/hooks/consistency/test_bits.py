"""How tensors differ, where, and who has the majority."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc_lab.consistency.digest import (
    BitDifference,
    compare_bits,
    find_index,
    find_majority,
    view_bytes,
)

pytestmark = pytest.mark.torch

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.complex64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(picks=st.sets(st.tuples(st.integers(0, 19), st.integers(0, 7)), max_size=6))
def test_bits_elements_and_the_first_of_them_are_counted(dtype, picks):
    ours = torch.ones(20).to(dtype)
    theirs = ours.clone()
    size = ours.element_size()
    for element, bit in picks:
        view_bytes(theirs)[element * size] ^= 1 << bit
    found = compare_bits(ours, theirs)
    elements = {element for element, _ in picks}
    assert (found.bits, found.elements) == (len(picks), len(elements))
    assert found.first == min(elements, default=None)
    assert (found.max_delta > 0) == bool(picks)


def test_the_largest_delta_counts_and_what_is_not_finite_is_infinite():
    zeros = torch.zeros(4)
    assert compare_bits(zeros, torch.tensor([0, 1e-6, -0.5, 0])).max_delta == 0.5
    assert compare_bits(zeros, -zeros) == BitDifference(0, 4, 4, 0.0)
    assert compare_bits(zeros, torch.tensor([0, math.nan, 0, 0])).max_delta == math.inf
    inf, nan = torch.tensor([math.inf, 1.0]), torch.tensor([math.nan])
    assert compare_bits(inf, inf).max_delta == 0
    assert compare_bits(inf, -inf).max_delta == math.inf
    other = nan.clone()
    view_bytes(other)[0] ^= 1
    assert compare_bits(nan, other) == BitDifference(0, 1, 1, 0.0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 20))
def test_blocks_add_up_to_the_whole(values, block):
    ours, theirs = torch.zeros(len(values)), torch.tensor(values).float()
    found = BitDifference()
    for first in range(0, len(values), block):
        found = found.then(
            compare_bits(ours[first : first + block], theirs[first : first + block]), first
        )
    assert found == compare_bits(ours, theirs)


@given(st.lists(st.integers(1, 6), max_size=4), st.data())
def test_an_index_is_that_of_numpy_and_begins_where_the_box_does(shape, data):
    flat = data.draw(st.integers(0, math.prod(shape) - 1))
    expected = tuple(int(one) for one in np.unravel_index(flat, shape))
    assert find_index(flat, shape) == expected
    offsets = [7 * at for at in range(len(shape))]
    assert find_index(flat, shape, offsets) == tuple(map(sum, zip(expected, offsets, strict=True)))


def test_more_than_half_are_a_majority():
    assert find_majority({0: b"a", 1: b"b"}) == ()
    assert find_majority({0: b"a", 1: b"b", 5: b"a"}) == (0, 5)
    assert find_majority({0: b"a", 1: b"b", 2: b"b", 3: b"a"}) == ()
    assert find_majority({0: b"a", 1: b"b", 2: b"c"}) == ()
