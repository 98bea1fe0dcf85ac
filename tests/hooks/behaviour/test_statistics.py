"""The tests of paired scores: against scipy's own, their false alarms, and what they find."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest, ks_2samp, permutation_test, ttest_1samp

from mvc_lab.behaviour.statistics import (
    StatisticalTest,
    Swaps,
    bin_edges,
    correct,
    count_bins,
    least_samples,
    measure_agreement,
)

SEEDS = 200
LEVEL = 0.05


def pairs(seed, *, shift=0.0, noise=0.3, count=80):
    """Return scores of two models that share what the inputs are, and differ in noise."""
    random = np.random.default_rng(seed)
    base = random.normal(size=count)
    old = base + noise * random.normal(size=count)
    return old, base + shift + noise * random.normal(size=count)


def family(seed, **options):
    old, new = pairs(seed, **options)
    swaps = Swaps(len(old), LEVEL, seed)
    tests = [swaps.test_distribution(old, new), *swaps.test_histograms(old, new)]
    return correct([*tests, swaps.test_mean("loss", old, new)], LEVEL)


def alarms(seeds=SEEDS, **options):
    """Return how many of the seeds each test alone, and the family corrected, rejects."""
    found = [family(seed, **options) for seed in range(seeds)]
    alone = np.array([[test.p < LEVEL for test in tests] for tests in found])
    return *alone.sum(axis=0), sum(not all(test.passed for test in tests) for tests in found)


def test_false_alarms_are_as_rare_as_stated():
    # 1 in 1000 such tests of 5 figures would exceed this by chance.
    most = binom.ppf(1 - 0.0002, SEEDS, LEVEL)
    assert max(alarms()) <= most
    # Noise that does not look the same for every input changes nothing.
    assert max(alarms(noise=np.linspace(0.1, 2, 80))) <= most


@pytest.mark.parametrize(("positions", "spread"), [(2, 5), (16, 50), (512, 300)])
def test_agreement_within_sequences_has_the_level_too(positions, spread):
    for required in (0.9, 0.99):
        failed = above = 0
        for seed in range(SEEDS):
            random = np.random.default_rng(seed)
            true = random.beta(required * spread, (1 - required) * spread, size=60)
            found, test = measure_agreement(
                random.binomial(positions, true) / positions, required, LEVEL
            )
            failed += test.p < LEVEL
            above += found.low > required
        assert max(failed, above) <= binom.ppf(1 - 0.0002, SEEDS, LEVEL)
    shares = np.random.default_rng(0).binomial(50, 0.95, size=24) / 50
    found, test = measure_agreement(shares, 0.99, 0.01)
    assert test.p < 0.001
    assert found.low < 0.95 < found.high < 0.99


@pytest.mark.parametrize("count", [0, 1, 7, 19, 20])
def test_agreement_is_that_of_scipy(count):
    whole = np.arange(20) < count
    found, test = measure_agreement(whole.astype(float), 0.9, 0.05)
    wanted = binomtest(count, 20, 0.9, alternative="less").pvalue
    assert test.p == pytest.approx(wanted)
    interval = binomtest(count, 20).proportion_ci(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    graded = whole * 0.8 + np.linspace(0, 0.1, 20)
    found, test = measure_agreement(graded, 0.9, 0.05)
    assert test.p == pytest.approx(ttest_1samp(graded, 0.9, alternative="less").pvalue)
    wanted = ttest_1samp(graded, 0.9).confidence_interval(0.95).high
    assert found.high == pytest.approx(min(1.0, wanted))


def test_small_changes_are_found():
    *_, small = alarms(seeds=60, shift=0.15)
    *_, larger = alarms(seeds=60, shift=0.3)
    assert small > 60 / 3  # of a shift of a seventh of the spread
    assert larger > 0.95 * 60
    shares = np.ones(400)
    shares[:20] = 0  # 95 % where 99 % are required
    assert measure_agreement(shares, 0.99, 0.01)[1].p < 0.001


def test_models_that_are_the_same_never_fail():
    old, _ = pairs(0)
    swaps = Swaps(len(old), LEVEL)
    tests = [swaps.test_distribution(old, old), *swaps.test_histograms(old, old)]
    assert {test.p for test in [*tests, swaps.test_mean("loss", old, old)]} == {1.0}


@pytest.mark.parametrize("seed", range(3))
def test_few_pairs_are_swapped_in_all_ways_as_scipy_does(seed):
    old, new = pairs(seed, count=9)
    swaps = Swaps(9, LEVEL)
    assert swaps.count == 2**9

    def distance(one, other):
        return ks_2samp(one, other).statistic

    wanted = permutation_test(
        (old, new), distance, permutation_type="samples", alternative="greater"
    )
    found = swaps.test_distribution(old, new)
    assert (found.statistic, found.p) == pytest.approx((wanted.statistic, wanted.pvalue))
    wanted = permutation_test(
        (old, new), lambda one, other, axis: np.mean(other - one, axis=axis),
        permutation_type="samples", vectorized=True,
    )  # fmt: skip
    found = swaps.test_mean("loss", old, new)
    assert (found.statistic, found.p) == pytest.approx((wanted.statistic, wanted.pvalue))


def test_many_ties_and_histograms():
    old, new = np.array([1.0, 1, 1, 2, 2, 3] * 5), np.array([1.0, 1, 2, 2, 3, 3] * 5)
    found = Swaps(30, LEVEL).test_distribution(old, new)
    assert found.statistic == pytest.approx(ks_2samp(old, new).statistic)
    edges = bin_edges(old, new)
    assert count_bins(old, edges).sum() == count_bins(new, edges).sum() == 30
    _, index = Swaps(30, LEVEL).test_histograms(old, new)
    first, second = (count_bins(side, edges) + 0.5 for side in (old, new))
    first, second = first / first.sum(), second / second.sum()
    assert index.statistic == pytest.approx(((first - second) * np.log(first / second)).sum())
    constant = np.ones(30)
    assert Swaps(30, LEVEL).test_histograms(constant, constant)[0].p == 1


def test_holm():
    tests = [
        StatisticalTest(name, 0, p)
        for name, p in zip("abcd", (0.01, 0.04, 0.03, 0.005), strict=True)
    ]
    found = correct(tests, 0.05)
    assert [test.p_adjusted for test in found] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [test.passed for test in found] == [False, True, True, False]
    assert correct([], 0.05) == ()


@pytest.mark.parametrize("level", [0.001, 0.01, 0.05])
def test_with_the_least_samples_a_test_can_fail_and_with_fewer_none_can(level):
    least = least_samples(level)
    for count, can_fail in ((least, True), (least - 1, False)):
        old = np.arange(count, dtype=float)
        tests = [Swaps(count, level).test_mean("loss", old, old + 1)] * 5
        assert correct(tests, level)[0].passed != can_fail
