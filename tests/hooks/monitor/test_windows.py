"""Quantiles, histograms and joined intervals, against what they mean."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc_hooks.ranks.syncing import join_intervals
from mvc_lab.monitor.numbers import SECONDS, LastValues, SecondsHistogram

NUMBERS = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(values, share):
    window = LastValues(500)
    for value in values:
        window.add(value)
    expected = np.quantile(values, share, method="inverted_cdf")
    assert window.quantile(share) == expected
    assert window.largest == max(values)


def test_a_window_forgets():
    window = LastValues(3)
    assert (window.quantile(0.5), window.largest, window.sum) == (None, None, 0)
    for value in (9.0, 1.0, 2.0, 3.0):
        window.add(value)
    assert (len(window), window.quantile(0.99), window.sum) == (3, 3.0, 6.0)


@given(st.lists(NUMBERS, max_size=50))
def test_bars_count_up_to_their_bounds(values):
    bars = SecondsHistogram()
    for value in values:
        bars.add(value)
    for bound, count in bars.bars():
        limit = math.inf if bound == "+Inf" else float(bound)
        assert count == sum(value <= limit for value in values)
    assert bars.sum == pytest.approx(sum(values))


def test_thresholds_of_seconds_are_bounds():
    assert {0.05, 1.0, 30.0} <= set(SECONDS)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=20))
def test_joined_intervals_last_as_long_as_their_union(pairs):
    ticks = {tick for begin, length in pairs for tick in range(begin, begin + length)}
    assert join_intervals((begin, begin + length) for begin, length in pairs) == len(ticks)
