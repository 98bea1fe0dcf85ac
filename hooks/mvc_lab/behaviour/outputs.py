"""The outputs of two models over many samples: do they come from the same distribution?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mvc import UsageError
from mvc_lab.behaviour.modules import find_tensors
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

_PIECE = 1 << 22
_IGNORED = -100  # the label of positions that do not count, in torch and in Hugging Face's models
_LOGITS = "logits"
_CLASSES_FIRST = 3


@dataclass(frozen=True, slots=True)
class SampleScores:
    """The samples of one batch, one row each."""

    # What ``old`` and ``new`` are: ``confidence``, the mean probability of the top prediction, or
    # ``value``, the mean of all numbers returned.
    kind: str
    old: torch.Tensor  # old, new: the score of each sample on both sides
    new: torch.Tensor
    # The share of top predictions that are the same; None if there is but one number.
    agreement: torch.Tensor | None = None
    # The mean Jensen-Shannon divergence, in bits, of the predicted distributions.
    divergence: torch.Tensor | None = None
    # ``perplexity`` or ``mean-squared-error``, or None without targets.
    loss_kind: str | None = None
    # old_loss, new_loss: sums of the losses, for ``counted`` predictions.
    old_loss: torch.Tensor | None = None
    new_loss: torch.Tensor | None = None
    counted: torch.Tensor | None = None


def score_batch(old_output: object, new_output: object, batch: InputBatch) -> SampleScores:
    """Return the scores of both models for a batch.

    Raises:
        UsageError: the outputs or targets are not what can be scored.
    """
    old, is_named = _find_prediction(old_output, batch.rows)
    new, _ = _find_prediction(new_output, batch.rows)
    if old.shape != new.shape:
        raise UsageError(
            f"the models return {list(old.shape)} and {list(new.shape)}: their outputs cannot be compared"
        )
    targets = batch.targets
    is_class = targets is not None and not targets.is_floating_point()
    if targets is not None and is_class and old.dim() >= _CLASSES_FIRST:
        # Models of images have the classes second: sample, class, row, column.
        is_second = targets.shape == (old.shape[0], *old.shape[2:])
        if is_second and targets.shape != old.shape[:-1]:
            old, new = old.movedim(1, -1), new.movedim(1, -1)
    if not (is_named or is_class) or old.dim() < 2 or old.shape[-1] < 2:  # noqa: PLR2004
        return _score_values(old, new, targets)
    counts = torch.ones(old.shape[:-1], dtype=torch.float64)
    mask = batch.call.kwargs.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.shape == counts.shape and counts.dim() > 1:
        counts = (mask != 0).double()
    weights = counts.reshape(len(old), -1).sum(1).clamp(min=1)
    rows = [_score_positions(*pair) for pair in zip(_split(old), _split(new), strict=True)]
    columns = (torch.cat(column).reshape(old.shape[:-1]) for column in zip(*rows, strict=True))
    confidence, other, agrees, divergence = (
        torch.where(counts > 0, column, 0.0).reshape(len(old), -1).sum(1) / weights
        for column in columns
    )
    scores = SampleScores("confidence", confidence, other, agrees, divergence)
    return scores if not is_class else _add_losses(scores, old, new, batch)


def _find_prediction(output: object, rows: int) -> tuple[torch.Tensor, bool]:
    """Return the tensor that a model predicts with, and whether it is named as logits."""
    named = output.get(_LOGITS) if isinstance(output, Mapping) else getattr(output, _LOGITS, None)
    is_named = isinstance(named, torch.Tensor)
    for tensor in find_tensors(named if is_named else output):
        if tensor.dim() and tensor.is_floating_point():
            if tensor.shape[0] != rows:
                raise UsageError(
                    f"the model returns {list(tensor.shape)} for {rows} inputs, not a row for each",
                    hint='check modules only, or return "logits" with a row for each input',
                )
            return tensor.detach().cpu(), is_named
    raise UsageError("the model returns no tensor of floating-point numbers")


def _split(logits: torch.Tensor) -> list[torch.Tensor]:
    flat = logits.reshape(-1, logits.shape[-1])
    return list(torch.split(flat, max(1, _PIECE // flat.shape[-1])))


def _score_positions(old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return for each position: both top probabilities, whether the top is the same, divergence."""
    logs = [side.double().log_softmax(-1) for side in (old, new)]
    first, second = (log.exp() for log in logs)
    middle = ((first + second) / 2).log()
    apart = [
        torch.where(side > 0, side * (log - middle), 0.0).sum(-1)
        for side, log in zip((first, second), logs, strict=True)
    ]
    divergence = (apart[0] + apart[1]).clamp(min=0) / (2 * math.log(2))
    agrees = (old.argmax(-1) == new.argmax(-1)).double()
    return first.amax(-1), second.amax(-1), agrees, divergence


def _score_values(
    old: torch.Tensor, new: torch.Tensor, targets: torch.Tensor | None
) -> SampleScores:
    sides = [side.double().reshape(len(side), -1) for side in (old, new)]
    agrees = None
    if old.dim() > 1 and old.shape[-1] > 1:
        agrees = (old.argmax(-1) == new.argmax(-1)).double().reshape(len(old), -1).mean(1)
    scores = SampleScores("value", sides[0].mean(1), sides[1].mean(1), agrees)
    if targets is None:
        return scores
    if targets.numel() != old.numel():
        raise UsageError(f"targets of shape {list(targets.shape)} for outputs of {list(old.shape)}")
    wanted = targets.double().reshape(len(old), -1)
    losses = [(side - wanted).square().sum(1) for side in sides]
    return replace(
        scores,
        loss_kind="mean-squared-error",
        old_loss=losses[0],
        new_loss=losses[1],
        counted=torch.full((len(old),), float(wanted.shape[1]), dtype=torch.float64),
    )


def _add_losses(
    scores: SampleScores, old: torch.Tensor, new: torch.Tensor, batch: InputBatch
) -> SampleScores:
    """Return the scores with the negative log-likelihood of the targets."""
    targets = batch.targets
    assert targets is not None
    if targets.shape != old.shape[:-1]:
        raise UsageError(
            f"targets of shape {list(targets.shape)} for logits of {list(old.shape)}",
            hint="write the index of the right class for each prediction, -100 where none counts",
        )
    if is_next_token(batch):
        old, new, targets = old[:, :-1], new[:, :-1], targets[:, 1:]
    counts = targets != _IGNORED
    if (
        bool(counts.any())
        and not 0 <= int(targets[counts].min()) <= int(targets[counts].max()) < (old.shape[-1])
    ):
        raise UsageError(f"a target is not one of {old.shape[-1]} classes")
    wanted = torch.where(counts, targets, 0).reshape(-1)
    losses = []
    for side in (old, new):
        at, parts = 0, []
        for piece in _split(side):
            chosen = wanted[at : at + len(piece), None]
            parts.append(-piece.double().log_softmax(-1).gather(-1, chosen)[:, 0])
            at += len(piece)
        values = torch.cat(parts).reshape(targets.shape)
        losses.append(torch.where(counts, values, 0.0).reshape(len(side), -1).sum(1))
    counted = counts.reshape(len(old), -1).sum(1).double()
    return replace(
        scores, loss_kind="perplexity", old_loss=losses[0], new_loss=losses[1], counted=counted
    )


def is_next_token(batch: InputBatch) -> bool:
    """Return whether targets are the inputs themselves, so that each position predicts the next.

    So Hugging Face's causal models take labels: as a copy of ``input_ids``, not yet shifted.
    """
    targets = batch.targets
    tokens = batch.call.kwargs.get("input_ids", next(iter(batch.call.args), None))
    if targets is None or not isinstance(tokens, torch.Tensor) or tokens.shape != targets.shape:
        return False
    counts = targets != _IGNORED
    return targets.dim() > 1 and bool((tokens[counts] == targets[counts]).all())


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
