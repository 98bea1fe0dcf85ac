"""Are two samples of paired scores alike? Tests that hold for paired data, and their correction.

Both models see the same inputs, so their scores are pairs and never two independent samples: what
textbooks give for the latter does not hold. Instead each statistic is compared with what it becomes when
the two scores of each pair are swapped at random. If it does not matter which model a score comes from,
all these are equally likely, so a p-value is exact for any distribution and any dependence in a pair
(Good, Permutation, Parametric and Bootstrap Tests of Hypotheses, 2005). Pairs must be independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BINS = 10
MOST_TESTS = 5  # that are made together
_EXACT_PAIRS = 12
_LEAST_SWAPS = 1999
_SWAPS_PER_LEVEL = 10
_CELLS = 4_000_000
_EQUAL = 1e-12


@dataclass(frozen=True, slots=True)
class StatisticalTest:
    """One test.

    Attributes:
        name: what is tested.
        statistic: its value for the scores as they are.
        p: how likely a value at least so large is if the models are alike.
        p_adjusted: after Holm's correction for all tests made together.
        passed: whether that is not below the significance.
    """

    name: str
    statistic: float
    p: float
    p_adjusted: float = math.nan
    passed: bool = True


def correct(tests: Sequence[StatisticalTest], significance: float) -> tuple[StatisticalTest, ...]:
    """Return tests with p-values corrected by Holm's step-down method, and what follows.

    The chance that any of them fails, where no model differs, is then at most ``significance``
    (Holm, Scandinavian Journal of Statistics 6, 1979), however the tests depend on each other.
    """
    adjusted = dict.fromkeys(range(len(tests)), 0.0)
    highest = 0.0
    for rank, place in enumerate(sorted(adjusted, key=lambda place: tests[place].p)):
        highest = max(highest, min(1.0, (len(tests) - rank) * tests[place].p))
        adjusted[place] = highest
    return tuple(
        replace(test, p_adjusted=adjusted[place], passed=adjusted[place] >= significance)
        for place, test in enumerate(tests)
    )


def least_samples(significance: float) -> int:
    """Return how many pairs there must be for any of the tests to be able to fail.

    Of the 2^n ways to swap n pairs, two give the largest value of a statistic.
    """
    return math.ceil(math.log2(2 * MOST_TESTS / significance))


class Swaps:
    """The same random swaps for all statistics of some pairs.

    All swaps there are if the pairs are few, else enough to tell ``significance`` shared by all tests,
    and the pairs as they are among them.
    """

    def __init__(self, pairs: int, significance: float, seed: int = 0) -> None:
        if pairs <= _EXACT_PAIRS:
            codes = np.arange(2**pairs)[:, None] >> np.arange(pairs)
            self._signs = (1 - 2 * (codes & 1)).astype(np.int8)
        else:
            count = max(_LEAST_SWAPS, math.ceil(_SWAPS_PER_LEVEL * MOST_TESTS / significance))
            random = np.random.default_rng(seed)
            self._signs = random.integers(0, 2, (count + 1, pairs), np.int8) * 2 - 1
            self._signs[0] = 1

    @property
    def count(self) -> int:
        """How many swaps are tried."""
        return len(self._signs)

    def _p(self, values: Floats) -> float:
        return float(np.mean(values >= values[0] - _EQUAL * abs(values[0])))

    def _map(self, compute: Callable[[NDArray[np.int8]], Floats], width: int) -> Floats:
        """Return a statistic of each swap, some swaps at a time."""
        rows = max(1, _CELLS // max(1, width))
        parts = range(0, self.count, rows)
        return np.concatenate([compute(self._signs[at : at + rows]) for at in parts])

    def test_mean(self, name: str, old: Floats, new: Floats) -> StatisticalTest:
        """Test whether the means are the same; the statistic is the difference."""
        differences = new - old
        values = self._map(lambda signs: np.abs(signs @ differences), len(old)) / len(old)
        return StatisticalTest(name, float(differences.mean()), self._p(values))

    def test_distribution(self, old: Floats, new: Floats) -> StatisticalTest:
        """Test by Kolmogorov and Smirnov's largest distance of the two distribution functions."""
        pooled = np.concatenate((old, new))
        order = np.argsort(pooled, kind="stable")
        is_last = np.append(np.diff(pooled[order]) != 0, True)  # equal scores count at once
        pair, side = order % len(old), np.where(order < len(old), 1, -1).astype(np.int8)

        def distances(signs: NDArray[np.int8]) -> Floats:
            steps = np.cumsum(signs[:, pair] * side, axis=1, dtype=np.int32)[:, is_last]
            largest: Floats = np.abs(steps).max(axis=1) / len(old)
            return largest

        values = self._map(distances, 2 * len(old))
        return StatisticalTest("kolmogorov-smirnov", float(values[0]), self._p(values))

    def test_histograms(self, old: Floats, new: Floats) -> list[StatisticalTest]:
        """Test by the Jensen-Shannon distance (base 2) and the population stability index.

        The index is Σ (p - q) ln(p / q) over bins that hold as many of all scores each. Half a score
        more in each bin keeps it finite.
        """
        from scipy.spatial.distance import jensenshannon  # noqa: PLC0415  import cost

        edges = bin_edges(old, new)
        ones = np.eye(len(edges) + 1)  # row → a 1 in that bin
        first, second = (ones[np.searchsorted(edges, side)] for side in (old, new))
        together, apart = (first + second).sum(axis=0), first - second
        counts = self._map(lambda signs: (together + signs @ apart) / 2, len(old))
        left, right = (side + 0.5 for side in (counts, together - counts))
        left, right = (side / side.sum(axis=1, keepdims=True) for side in (left, right))
        indexes = ((left - right) * np.log(left / right)).sum(axis=1)
        distances = np.nan_to_num(jensenshannon(counts, together - counts, base=2, axis=1))
        return [
            StatisticalTest("jensen-shannon", float(distances[0]), self._p(distances)),
            StatisticalTest("population-stability", float(indexes[0]), self._p(indexes)),
        ]


def bin_edges(old: Floats, new: Floats) -> Floats:
    """Return the inner edges of bins that hold as many scores of both each, where no scores tie."""
    inner = np.linspace(0, 1, BINS + 1)[1:-1]
    return np.unique(np.quantile(np.concatenate((old, new)), inner))


def count_bins(scores: Floats, edges: Floats) -> NDArray[np.int64]:
    """Return how many scores are in each bin."""
    counts: NDArray[np.int64] = np.bincount(
        np.searchsorted(edges, scores), minlength=len(edges) + 1
    )
    return counts


@dataclass(frozen=True, slots=True)
class TopAgreement:
    """How often the top predictions of both models are the same.

    Attributes:
        share: of all predictions.
        low, high: the confidence interval of the true share, at 1 - significance.
        required: what the true share has to be.
    """

    share: float
    low: float
    high: float
    required: float


def measure_agreement(
    shares: Floats, required: float, significance: float
) -> tuple[TopAgreement, StatisticalTest]:
    """Return the agreement, and a test that fails if the true share is below ``required``.

    ``shares`` has the share of predictions that agree of each sample. Those of one sample depend on
    each other, so a sample counts once. Where each is right or wrong as a whole, test and interval are
    those of Clopper and Pearson. Where shares lie between, the upper end and the test are Student's:
    shares near 1 have their tail below, which makes them cautious, while the lower end would be too high
    and stays that of the binomial distribution, of which no share of the same mean varies more.
    """
    from scipy.special import bdtr, betaincinv, stdtr, stdtrit  # noqa: PLC0415  import cost

    total, samples = float(shares.sum()), len(shares)
    share, tail = total / samples, significance / 2
    least, most = math.floor(total + _EQUAL), math.ceil(total - _EQUAL)
    low = float(betaincinv(least, samples - least + 1, tail)) if least else 0.0
    high = float(betaincinv(most + 1, samples - most, 1 - tail)) if most < samples else 1.0
    p = float(bdtr(most, samples, required))
    is_graded = bool(((shares > 0) & (shares < 1)).any())
    error = float(shares.std(ddof=1)) / math.sqrt(samples) if samples > 1 else 0.0
    if is_graded and error and required >= 0.5:  # noqa: PLR2004  where the tail is below
        p = float(stdtr(samples - 1, (share - required) / error))
        high = min(1.0, share + float(stdtrit(samples - 1, 1 - tail)) * error)
    return TopAgreement(share, low, high, required), StatisticalTest("top-agreement", share, p)
