"""A stage of a mixture: which source has which position, and how often it came before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.errors import UsageError
from mvc.sampling.permutation import permute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

_FEWEST_SLOTS, _MOST_SLOTS = 512, 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """A stage: where it begins and ends, slots of each source in a block, what was drawn before.

    Without a ``key`` the slots are spread evenly.
    """

    start: int
    until: int
    slots: tuple[int, ...]
    counts: Positions
    key: bytes | None

    def locate(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the source at each position, and how often it came before."""
        blocks, places = np.divmod(positions - self.start, sum(self.slots))
        sources: Positions = np.empty_like(positions)
        ranks: Positions = np.empty_like(positions)
        for block, chosen in split(blocks):
            by_place, by_rank, _ = _arrange(self.slots, self._key(block))
            sources[chosen], ranks[chosen] = by_place[places[chosen]], by_rank[places[chosen]]
        each = np.array(self.slots, np.int64)[sources]
        return sources, np.add(self.counts[sources] + ranks, blocks * each, dtype=np.int64)

    def find(self, source: int, counts: Positions) -> Positions:
        """Return where a source comes for the time that is counted from 0; -1: not in this stage."""
        if not self.slots[source]:
            return np.full_like(counts, -1)
        blocks: Positions
        blocks, ranks = np.divmod(counts - self.counts[source], self.slots[source])
        places = np.empty_like(counts)
        first = sum(self.slots[:source])
        length = sum(self.slots)
        for block, chosen in split(blocks):
            _, _, by_slot = _arrange(self.slots, self._key(block))
            places[chosen] = by_slot[first + ranks[chosen]]
        is_far = blocks > (self.until - self.start) // length
        positions = np.where(is_far, self.until, blocks * length + places + self.start)
        return np.where(positions < self.until, positions, -1)

    def count_until(self, position: int) -> Positions:
        """Return how often each source came before a position."""
        blocks, rest = divmod(position - self.start, sum(self.slots))
        if not rest:
            return self.counts + blocks * np.array(self.slots, np.int64)
        by_place, _, _ = _arrange(self.slots, self._key(blocks))
        partly = np.bincount(by_place[:rest], minlength=len(self.slots))
        return self.counts + blocks * np.array(self.slots, np.int64) + partly

    def _key(self, block: int) -> bytes | None:
        return None if self.key is None else self.key + b" %d" % block


def split(keys: Positions) -> Iterator[tuple[int, Any]]:
    """Yield each key, and what selects its elements."""
    if keys.size and (keys == keys[0]).all():
        yield int(keys[0]), slice(None)
    elif keys.size:
        order = np.argsort(keys, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            yield int(keys[part[0]]), part


@lru_cache(maxsize=64)
def _arrange(slots: tuple[int, ...], key: bytes | None) -> tuple[Positions, Positions, Positions]:
    """Return for each place of a block its source, and how often that came before in the block.

    And the place for each slot, source by source in the order of places.
    """
    length, each = sum(slots), np.array(slots, np.int64)
    sources = np.repeat(np.arange(len(slots)), each)
    firsts = np.repeat(np.cumsum(each) - each, each)
    ranks = np.arange(length) - firsts
    if key is None:
        # Whole numbers in place of (rank + 1/2) / slots: they sort the same everywhere.
        spread = (2 * ranks + 1) * (1 << 32) // np.repeat(each, each)
        by_place = sources[np.argsort(spread, kind="stable")]
    else:
        by_place = sources[permute(np.arange(length), length, key)]
    by_slot = np.argsort(by_place, kind="stable")
    by_rank = np.empty(length, np.int64)
    by_rank[by_slot] = ranks
    return by_place, by_rank, by_slot


@lru_cache(maxsize=64)
def choose_slots(weights: tuple[float, ...]) -> tuple[int, ...]:
    """Return how many slots of a block each source has.

    Raises:
        UsageError: a weight is so small that its source would have none.
    """
    shares = np.array(weights, np.float64) / math.fsum(weights)
    fewest = _FEWEST_SLOTS
    while fewest <= _MOST_SLOTS:
        lengths = range(fewest, 2 * fewest + 1, fewest // _FEWEST_SLOTS)
        choices = [slots for size in lengths if (slots := _round_shares(shares, size)) is not None]
        if choices:
            # Rounded, so that every machine sees lengths with equal errors as equal.
            differences = (np.abs(np.array(slots) / sum(slots) - shares) for slots in choices)
            errors = [round(float(difference.max()), 12) for difference in differences]
            return choices[errors.index(min(errors))]
        fewest *= 2
    raise UsageError(f"a weight is less than 1 in {2 * _MOST_SLOTS} of their sum")


def _round_shares(shares: NDArray[np.float64], length: int) -> tuple[int, ...] | None:
    """Return slots that sum up to a length; None if a source with a weight has none."""
    whole = np.floor(shares * length).astype(np.int64)
    rest = np.round(shares * length - whole, 9)
    whole[np.argsort(-rest, kind="stable")[: length - int(whole.sum())]] += 1
    return None if np.any((whole == 0) & (shares > 0)) else tuple(whole.tolist())
