"""Statistics that a few wild values do not move."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mvc_hooks.divergence.robust import find_medians, measure_spread, robust_score
from support.readings import finite, noise


@given(st.lists(finite(), min_size=1, max_size=40))
def test_medians_are_numpys(values):
    assert math.isclose(
        float(find_medians(np.array(values))), float(np.median(values)), rel_tol=1e-12, abs_tol=1e-9
    )


@given(st.lists(finite(), min_size=3, max_size=40), finite(), st.integers(-300, 300))
def test_score_does_not_depend_on_the_unit(values, value, exponent):
    values = np.array(values)
    scaled = np.ldexp(values, exponent), math.ldexp(value, exponent)
    assume(np.array_equal(np.ldexp(scaled[0], -exponent), values))
    score, median = robust_score(value, values)
    again, scaled_median = robust_score(scaled[1], scaled[0])
    assert again == score
    assert math.ldexp(scaled_median, -exponent) == median


@given(st.lists(finite(), min_size=3, max_size=40), finite(), st.randoms())
def test_score_does_not_depend_on_the_order(values, value, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    first, second = (robust_score(value, np.array(v)) for v in (values, shuffled))
    assert first[1] == second[1]
    assert math.isclose(first[0], second[0], rel_tol=1e-9)


def test_spread_of_normal_noise_is_its_standard_deviation():
    median, sigma = measure_spread(np.random.default_rng(3).normal(7, 2, 100_000))
    assert abs(median - 7) < 0.03
    assert abs(sigma - 2) < 0.03


def test_wild_values_in_the_window_do_not_move_the_score_far():
    calm = noise(count=101)
    wild = calm.copy()
    wild[:9] = 1e9
    assert robust_score(4.0, wild)[0] > robust_score(4.0, calm)[0] / 3


@pytest.mark.parametrize("largest", [1.7e308, 5e-324, 1e-310, 0.0])
def test_ends_of_the_range_do_not_overflow(largest):
    values = np.array([largest, -largest, 0.0, largest, largest])
    for value in (1.7e308, -1.7e308, 0.0, 5e-324, largest):
        score, median = robust_score(value, values)
        assert not math.isnan(score)
        assert math.isclose(median, largest, abs_tol=1e-300)
