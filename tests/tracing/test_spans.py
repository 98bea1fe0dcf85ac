"""Spans of time against a timeline that is counted out, tick by tick."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.tracing.spans import Cover, merge, subtract

TICKS = 40
moments = st.integers(0, TICKS)
pairs = st.lists(st.tuples(moments, moments), max_size=12)  # some run backwards: these are empty


def ticks(spans):
    """Return the ticks that spans cover, one by one."""
    return {at for start, end in spans for at in range(int(start), int(end))}


@given(pairs, pairs)
def test_a_union_is_sorted_disjoint_and_complete(left, right):
    spans = merge(left, right)
    assert ticks(spans) == ticks(left) | ticks(right)
    flat = spans.ravel().tolist()
    assert flat == sorted(set(flat))  # spans that touch are one


@given(pairs, pairs)
def test_a_difference_is_what_the_other_lacks(left, right):
    found = subtract(merge(left), merge(right))
    assert ticks(found) == ticks(left) - ticks(right)


@given(pairs, moments, moments)
def test_a_window_has_as_much_as_is_counted(spans, start, end):
    window = set(range(start, end))
    assert Cover(spans).within(start, end) == pytest.approx(len(ticks(spans) & window))


@given(pairs, pairs, moments, moments)
def test_what_one_covers_and_the_other_does_not(left, right, start, end):
    both, one = Cover(left, right), Cover(right)
    exposed = both.within(start, end) - one.within(start, end)
    window = set(range(start, end))
    assert exposed == pytest.approx(len((ticks(left) - ticks(right)) & window))


@given(pairs)
def test_shares_of_parts_are_the_ticks_in_them(spans):
    covered = ticks(spans)
    wanted = [len(covered & set(range(at, at + 4))) / 4 for at in range(0, TICKS, 4)]
    assert Cover(spans).shares(0, TICKS, TICKS // 4) == pytest.approx(wanted)


def test_nothing_covers_nothing():
    assert Cover().within(0, 5) == 0
    assert Cover([]).shares(0, 5, 3) == [0, 0, 0]
    assert len(subtract(merge([(1, 2)]), merge([(0, 3)]))) == 0


def test_spans_far_from_zero_keep_nanoseconds():
    at = 4e3
    cover = Cover(np.array([[at, at + 1e-6], [at + 2e-6, at + 3e-6]]))
    assert cover.within(at, at + 1) == pytest.approx(2e-6, rel=1e-3)
