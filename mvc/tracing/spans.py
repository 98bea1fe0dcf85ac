"""A trace of one rank as far as it counts, and sets of spans of time: sorted, disjoint (start, end) in seconds.

All questions come down to one: how much of a set lies before a moment? Between its starts and ends that is
piecewise linear, so the answer for many moments at once is one interpolation. With F of a set, the part of it
in a window is F(end) - F(start), and of two sets A and B, what A covers and B does not is that of both together less that of B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Spans = NDArray[np.float64]
    Pairs = Spans | Sequence[tuple[float, float]]


def merge(*sets: Pairs) -> Spans:
    """Return the union of any spans, which may overlap and have any order; empty ones are dropped."""
    pairs = np.concatenate(
        [np.empty((0, 2)), *(np.asarray(spans, np.float64).reshape(-1, 2) for spans in sets)]
    )
    pairs = pairs[pairs[:, 1] > pairs[:, 0]]
    if not len(pairs):
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    begins = np.concatenate([[True], pairs[1:, 0] > reach[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.column_stack([pairs[begins, 0], reach[ends]])


def subtract(spans: Spans, others: Spans) -> Spans:
    """Return what is in one set and not in another; both are unions, as of ``merge``."""
    if not len(spans) or not len(others):
        return spans
    gaps = np.column_stack(
        [np.concatenate([[-np.inf], others[:, 1]]), np.concatenate([others[:, 0], [np.inf]])]
    )
    first = np.searchsorted(gaps[:, 1], spans[:, 0], side="right")
    last = np.searchsorted(gaps[:, 0], spans[:, 1], side="left")
    counts = last - first
    mine = np.repeat(np.arange(len(spans)), counts)
    gap = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[mine]
    return merge(
        np.column_stack(
            [np.maximum(spans[mine, 0], gaps[gap, 0]), np.minimum(spans[mine, 1], gaps[gap, 1])]
        )
    )


class Cover:
    """How much time a set of spans covers."""

    def __init__(self, *sets: Pairs) -> None:
        spans = merge(*sets)
        self.spans = spans
        self._moments = spans.ravel()
        self._sums = np.repeat(np.cumsum(spans[:, 1] - spans[:, 0]), 2)
        self._sums[::2] -= spans[:, 1] - spans[:, 0]

    def before(self, moments: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how many seconds are covered before each moment."""
        if not len(self._moments):
            return np.zeros(np.shape(moments))
        return np.interp(moments, self._moments, self._sums)

    def within(self, start_s: float, end_s: float) -> float:
        """Return how many seconds of a window are covered."""
        low, high = self.before(np.array([start_s, max(end_s, start_s)]))
        return float(high - low)

    def shares(self, start_s: float, end_s: float, count: int) -> list[float]:
        """Return which share of each of ``count`` equal parts of a window is covered."""
        edges = np.linspace(start_s, end_s, count + 1)
        parts = np.diff(self.before(edges)) / max((end_s - start_s) / count, 1e-12)
        return [float(share) for share in np.clip(parts, 0.0, 1.0)]


@dataclass(frozen=True, slots=True)
class Collective:
    """Something that all ranks did together; ``size_bytes`` is None if the trace does not say it."""

    name: str
    start_s: float
    end_s: float
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class StepWindow:
    """A step: a name and a part of the time."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank did; times are in seconds from the first event.

    Attributes:
        rank: None if the trace does not say it, as ``ranks``, how many there were.
        device: ``gpu`` or ``cpu``.
        own: the ranges of mvc by name, in the thread that trains.
        copies: DistributedDataParallel copying sums back into gradients.
        searches: DistributedDataParallel looking for parameters that got no gradient.
    """

    path: str
    rank: int | None
    ranks: int | None
    device: str
    steps: tuple[StepWindow, ...]
    compute: Cover
    collectives: tuple[Collective, ...]
    own: Mapping[str, Spans]
    copies: Cover
    searches: Cover
