"""The outputs of two models over many samples: do they come from the same distribution?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mvc import UsageError
from mvc_lab.behaviour.scores import SampleScores, score_batch
from mvc_lab.behaviour.statistics import (
    StatisticalTest,
    Swaps,
    bin_edges,
    correct,
    count_bins,
    least_samples,
    measure_agreement,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc_lab.behaviour.inputs import InputBatch
    from mvc_lab.behaviour.statistics import TopAgreement


@dataclass(frozen=True, slots=True)
class ScoreHistogram:
    """The scores of both sides: ``edges`` between bins, and how many samples each bin holds."""

    edges: tuple[float, ...]
    old: tuple[int, ...]
    new: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeanLoss:
    """The loss of both models: ``perplexity`` or ``mean-squared-error``."""

    kind: str
    old: float
    new: float


@dataclass(frozen=True, slots=True)
class OutputReport:
    """How the outputs of two models are distributed over the same samples.

    Attributes:
        samples: how many there are.
        least_samples: how many there must be for any test to be able to fail.
        significance: the chance of a failure where no model differs, for all tests together.
        swaps: how often the scores of pairs were swapped.
        score: what is made of an output: ``confidence`` or ``value``.
        tests: what was tested, and what follows after Holm's correction.
        agreement: of the top predictions, if there are several numbers to choose from.
        divergence: mean Jensen-Shannon divergence of the predicted distributions, in bits, or None.
        loss: with targets.
        histogram: of the scores.
    """

    samples: int
    least_samples: int
    significance: float
    swaps: int
    score: str
    tests: tuple[StatisticalTest, ...]
    agreement: TopAgreement | None
    divergence: float | None
    loss: MeanLoss | None
    histogram: ScoreHistogram | None

    @property
    def is_judged(self) -> bool:
        """Whether there are enough samples for a test to be able to fail."""
        return self.samples >= self.least_samples

    @property
    def passed(self) -> bool | None:
        """Whether no test failed; None if none could have."""
        is_passed = all(test.passed for test in self.tests)
        return None if is_passed and not self.is_judged else is_passed


class OutputScores:
    """Takes the outputs of both models batch by batch, and keeps a few numbers of each sample."""

    def __init__(self) -> None:
        self._batches: list[SampleScores] = []

    def add(self, old: object, new: object, batch: InputBatch) -> None:
        """Take what both models returned for a batch."""
        self._batches.append(score_batch(old, new, batch))

    def judge(self, significance: float, agreement: float, seed: int = 0) -> OutputReport:
        """Return the report on all samples."""
        kinds = {(batch.kind, batch.agreement is None, batch.loss_kind) for batch in self._batches}
        if len(kinds) != 1:
            raise UsageError("the models return different kinds of outputs for different batches")
        scores = self._batches[0]
        old, new = self._column("old"), self._column("new")
        is_finite = np.isfinite(old) & np.isfinite(new)
        is_alike = is_finite | (old == new) | (np.isnan(old) & np.isnan(new))
        swaps = Swaps(int(is_finite.sum()) or len(old), significance, seed)
        tests: list[StatisticalTest] = []
        histogram = None
        if is_finite.any():
            kept = (old[is_finite], new[is_finite])
            tests = [swaps.test_distribution(*kept), *swaps.test_histograms(*kept)]
            edges = bin_edges(*kept)
            counts = (tuple(map(int, count_bins(side, edges))) for side in kept)
            histogram = ScoreHistogram(tuple(map(float, edges)), *counts)
        loss, loss_test = self._test_losses(scores.loss_kind, significance, seed)
        tests += loss_test
        agreed = divergence = None
        if scores.agreement is not None:
            shares = self._column("agreement")
            agreed, test = measure_agreement(shares, agreement, significance)
            tests.append(test)
        judged = correct(tests, significance)
        if not is_alike.all():  # not a question of chance
            share = float(np.mean(~is_alike))
            judged = (StatisticalTest("not-finite", share, 0.0, 0.0, passed=False), *judged)
        if scores.divergence is not None:
            divergence = float(self._column("divergence").mean())
        return OutputReport(
            samples=len(old),
            least_samples=least_samples(significance),
            significance=significance,
            swaps=swaps.count,
            score=scores.kind,
            tests=judged,
            agreement=agreed,
            divergence=divergence,
            loss=loss,
            histogram=histogram,
        )

    def _column(self, name: str) -> NDArray[np.float64]:
        return torch.cat([getattr(batch, name) for batch in self._batches]).double().numpy()

    def _test_losses(
        self, kind: str | None, significance: float, seed: int
    ) -> tuple[MeanLoss | None, list[StatisticalTest]]:
        if kind is None:
            return None, []
        old, new, counted = (self._column(name) for name in ("old_loss", "new_loss", "counted"))
        means = [float(side.sum() / max(counted.sum(), 1)) for side in (old, new)]
        if kind == "perplexity":
            means = [math.exp(mean) if mean < 700 else math.inf for mean in means]  # noqa: PLR2004  float64
        if not (np.isfinite(old) & np.isfinite(new)).all():
            return MeanLoss(kind, *means), []  # the scores are not finite either
        swaps = Swaps(len(old), significance, seed)
        return MeanLoss(kind, *means), [swaps.test_mean(kind, old, new)]
