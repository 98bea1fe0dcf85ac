"""Which sequences share a window of fixed length.

Sequences are taken in blocks of consecutive ones, so the plan of a block depends on nothing else,
and a window's sequences are near each other in the data:

* ``FirstFit``: first-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973: at most
  11/9 of the optimum plus one) in each block of 512: the longest sequence first, each into the first
  window with room. All blocks of a chunk take a step together, one numpy call each, which costs
  about 0.1 µs a sequence. What is kept is the window of each sequence, 2 bytes.
* ``Cut``: all sequences one after the other, cut into windows at every ``window`` tokens. What is kept
  is the tokens before each block.

No block and no window crosses the end of a run (a shard), so a reader in order stays in order.
A sequence that is longer than a window fills whole windows by itself; only its rest is packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Lengths = NDArray[np.integer]

_BLOCK = 512
_AT_ONCE = 512  # blocks; their free space stays in the cache
_SMALL = 1 << 16


@dataclass(frozen=True, slots=True)
class WindowContent:
    """What a window holds, in order: tokens ``begins[i]`` to ``ends[i]`` of sequence ``samples[i]``."""

    samples: Integers
    begins: Integers
    ends: Integers


class Windows(Protocol):
    """All windows over some sequences; ``runs`` are how many each run has."""

    runs: Integers

    def find_content(self, window: int) -> WindowContent:
        """Return what a window holds."""

    def find_windows(self, sample: int) -> Integers:
        """Return the windows that hold tokens of a sequence."""


class FirstFit:
    """Windows of whole sequences, but for those that are longer than one."""

    def __init__(self, lengths: Lengths, window: int, runs: Integers) -> None:
        self._lengths, self._window = lengths, window
        self._starts, owners = _cut_blocks(runs)
        self._bins = np.zeros(len(lengths), np.uint16)
        count = len(self._starts) - 1
        self._opened = np.zeros(count, np.int64)
        windows = np.zeros(count, np.int64)
        for first in range(0, count, _AT_ONCE):
            chunk = slice(first, min(first + _AT_ONCE, count))
            self._opened[chunk], windows[chunk] = self._pack(chunk)
        self._firsts = np.concatenate(([0], np.cumsum(windows)))
        self.runs = np.bincount(owners, windows, len(runs)).astype(np.int64)

    def find_content(self, window: int) -> WindowContent:
        """Return what a window holds."""
        block = int(np.searchsorted(self._firsts, window, "right")) - 1
        local = window - int(self._firsts[block])
        first, last = int(self._starts[block]), int(self._starts[block + 1])
        lengths = np.asarray(self._lengths[first:last], np.int64)
        whole = lengths // self._window
        rest = whole * self._window
        opened = int(self._opened[block])
        if local < opened:
            chosen = np.flatnonzero((self._bins[first:last] == local) & (lengths > rest))
            return WindowContent(first + chosen, rest[chosen], lengths[chosen])
        ends = np.cumsum(whole)
        at = int(np.searchsorted(ends, local - opened, "right"))
        begin = (local - opened - int(ends[at] - whole[at])) * self._window
        return WindowContent(
            *(np.array([value], np.int64) for value in (first + at, begin, begin + self._window))
        )

    def find_windows(self, sample: int) -> Integers:
        """Return the windows that hold tokens of a sequence."""
        block = int(np.searchsorted(self._starts, sample, "right")) - 1
        first = int(self._firsts[block])
        lengths = np.asarray(self._lengths[self._starts[block] : sample + 1], np.int64)
        whole, rests = np.divmod(lengths, self._window)
        end = first + int(self._opened[block]) + int(whole.sum())
        packed = [first + int(self._bins[sample])] if rests[-1] else []
        return np.array([*packed, *range(end - int(whole[-1]), end)], np.int64)

    def _pack(self, chunk: slice) -> tuple[Integers, Integers]:
        """Pack some blocks; return how many windows are of rests, and how many each has in all."""
        starts = self._starts[chunk.start : chunk.stop + 1]
        sizes = np.diff(starts)
        lengths = np.zeros((len(sizes), _BLOCK), np.int64)
        filled = np.arange(_BLOCK) < sizes[:, None]
        lengths[filled] = self._lengths[starts[0] : starts[-1]]
        whole, rests = np.divmod(lengths, self._window)
        bins, opened = _first_fit(rests, self._window)
        self._bins[starts[0] : starts[-1]] = bins[filled]
        return opened, opened + whole.sum(1)


class Cut:
    """Windows of one sequence after the other; the last of a run may be shorter."""

    def __init__(self, lengths: Lengths, window: int, runs: Integers) -> None:
        self._lengths, self._window = lengths, window
        self._starts, owners = _cut_blocks(runs)
        sums = np.array(
            [
                int(np.sum(lengths[first:last], dtype=np.int64))
                for first, last in zip(self._starts[:-1], self._starts[1:], strict=True)
            ],
            np.int64,
        )
        self._blocks = np.searchsorted(owners, np.arange(len(runs) + 1))
        totals = np.concatenate(([0], np.cumsum(sums)))
        self._before = totals[:-1] - totals[self._blocks[owners]] if len(sums) else sums
        self.runs = -(-np.diff(totals[self._blocks]) // window)
        self._ends = np.cumsum(self.runs)

    def find_content(self, window: int) -> WindowContent:
        """Return what a window holds."""
        run = int(np.searchsorted(self._ends, window, "right"))
        low = (window - int(self._ends[run] - self.runs[run])) * self._window
        first, last = int(self._blocks[run]), int(self._blocks[run + 1])
        block = first + int(np.searchsorted(self._before[first:last], low, "right")) - 1
        stop = first + int(np.searchsorted(self._before[first:last], low + self._window))
        start, end = int(self._starts[block]), int(self._starts[stop])
        lengths = np.asarray(self._lengths[start:end], np.int64)
        begins = int(self._before[block]) - low + np.cumsum(lengths) - lengths
        chosen = np.flatnonzero((begins < self._window) & (begins + lengths > 0) & (lengths > 0))
        at, length = begins[chosen], lengths[chosen]
        return WindowContent(
            start + chosen, np.maximum(-at, 0), np.minimum(length, self._window - at)
        )

    def find_windows(self, sample: int) -> Integers:
        """Return the windows that hold tokens of a sequence."""
        block = int(np.searchsorted(self._starts, sample, "right")) - 1
        run = int(np.searchsorted(self._blocks, block, "right")) - 1
        lengths = np.asarray(self._lengths[self._starts[block] : sample + 1], np.int64)
        high = int(self._before[block]) + int(lengths.sum())
        first = int(self._ends[run] - self.runs[run])
        windows = (high - int(lengths[-1])) // self._window, -(-high // self._window)
        return first + np.arange(*windows if lengths[-1] else (0, 0), dtype=np.int64)


def _cut_blocks(runs: Integers) -> tuple[Integers, Integers]:
    """Return where the blocks of all runs start (and the end of the last), and the run of each."""
    counts = -(-runs // _BLOCK)
    owners = np.repeat(np.arange(len(runs)), counts)
    within = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
    starts = (np.cumsum(runs) - runs)[owners] + within * _BLOCK
    return np.concatenate((starts, [int(runs.sum())])), owners


def _first_fit(lengths: Integers, window: int) -> tuple[NDArray[np.uint16], Integers]:
    """Pack each row by itself; return the window of each length, and how many windows a row has."""
    kind = np.dtype(np.uint16 if window < _SMALL else np.uint32 if window < 1 << 32 else np.uint64)
    order = np.argsort(window - lengths, axis=1, kind="stable")
    descending = np.ascontiguousarray(np.take_along_axis(lengths, order, 1).astype(kind).T)
    most = min(2 * int(lengths.sum(1).max(initial=0)) // window + 2, _BLOCK + 1)
    free = np.full((len(lengths), most), window, kind)
    flat, rows = free.reshape(-1), np.arange(len(lengths)) * most
    bins, opened = np.zeros(descending.shape, np.uint16), 0
    for step, row in enumerate(descending):
        if not row.any():
            break
        fit = (free[:, : opened + 1] >= row[:, None]).argmax(1)
        flat[rows + fit] -= row
        bins[step] = fit
        opened = max(opened, int(fit.max()) + 1)
    chosen = np.empty(lengths.shape, np.uint16)
    np.put_along_axis(chosen, order, bins.T, 1)
    return chosen, (free < window).sum(1)
