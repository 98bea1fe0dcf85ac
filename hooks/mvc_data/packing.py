"""Sequences of varying length as windows of fixed length, each token exactly once.

Which sequences share a window depends on their lengths alone, never on ranks, workers, batch size or
epoch. So windows are samples like any others: a loader shuffles them, and a resume needs nothing
but their numbers.

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

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from blake3 import blake3
from torch.utils.data import Dataset

from mvc import UsageError
from mvc.sampling import BlockOrder
from mvc_data.fetching import fetch

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


class FirstFit:
    """Windows of whole sequences, but for those that are longer than one; ``runs`` are how many each run has."""

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


_TOKENS = "input_ids"
_OWN = ("position_ids", "document_ids")
_IGNORED = -100  # what cross entropy of torch leaves out
_HASHED = 1 << 22  # lengths at a time


class PackedDataset(Dataset[dict[str, torch.Tensor]]):
    """A map-style dataset of windows over a map-style dataset of sequences, planned in about 10 s and 200 MB per 10⁸.

    A sample of ``dataset`` is a sequence of tokens, or a dict of sequences of equal length
    (``input_ids``, ``labels``, ...). A window is a dict of tensors of ``window`` elements: those
    fields; ``position_ids``, which begin at 0 in each sequence; and ``document_ids``, which number
    the sequences of the window from 0, with -1 where it is padded. ``cumulative_lengths`` makes of them
    what attention over sequences of varying length takes.

    With ``split=False`` sequences stay whole, but for those longer than a window, and windows are
    padded (by a percent or so). With ``split=True`` they follow each other in order and are cut at the
    ends of windows; only the last window of the dataset, or of a shard, is padded.

    Args:
        dataset: the sequences, by number.
        lengths: tokens of each: an array, the path of one (.npy, which is mapped and not
            read), or the name of a column of ``dataset``.
        window: tokens of a window.
        split: cut sequences at the ends of windows.
        cut_long: leave out what a sequence has beyond ``window`` tokens, instead of
            giving it windows of its own.
        pad: what fills the rest of a window; by field, if it is a dict. Labels get -100.

    Raises:
        UsageError: lengths that do not fit the dataset, or a window of no token.
    """

    def __init__(
        self,
        dataset: Any,
        lengths: Any,
        window: int,
        *,
        split: bool = False,
        cut_long: bool = False,
        pad: int | Mapping[str, int] = 0,
    ) -> None:
        if type(window) is not int or window < 1:
            raise UsageError(f"a window of {window!r} tokens; it takes at least 1")
        known = _read_lengths(dataset, lengths)
        self.dataset, self.window = dataset, window
        self._pad, self._cut_long = pad, cut_long
        below = getattr(dataset, "order", None)
        runs = below.sizes if isinstance(below, BlockOrder) else np.array([len(known)])
        if cut_long and known.size and int(known.max()) > window:
            known = np.minimum(known, known.dtype.type(window))
        self._lengths = known
        self._windows = (Cut if split else FirstFit)(self._lengths, window, runs)
        self._size = int(self._windows.runs.sum())
        self.order = None
        if isinstance(below, BlockOrder):  # shuffled as near each other as what is packed
            block = round(below.block * self._size / max(below.size, 1))
            self.order = BlockOrder(self._windows.runs, max(1, block))
        digest = blake3(f"mvc windows 1 {window} {split}\0".encode())
        digest.update(runs.astype("<i8").tobytes())
        for first in range(0, len(known), _HASHED):
            digest.update(known[first : first + _HASHED].astype("<i8").tobytes())
        self.id = digest.hexdigest()

    def __len__(self) -> int:
        return self._size

    @property
    def tokens(self) -> int:
        """How many tokens all windows hold, without padding."""
        return int(np.sum(self._lengths, dtype=np.int64))

    @property
    def shards(self) -> str | None:
        """Tree hash of the shard map of the sequences, or None."""
        tree = getattr(self.dataset, "shards", None)
        return tree if isinstance(tree, str) else None

    @property
    def check(self) -> object:
        """How that map is checked before the first step, or None."""
        return getattr(self.dataset, "check", None)

    def samples_of(self, window: int) -> NDArray[np.int64]:
        """Return the numbers of the sequences whose tokens a window holds, in its order."""
        return self._find(window).samples

    def windows_of(self, sample: int) -> NDArray[np.int64]:
        """Return the windows that hold tokens of a sequence: who saw them, saw it."""
        if not 0 <= sample < len(self._lengths):
            raise IndexError(f"sample {sample} of {len(self._lengths)}")
        return self._windows.find_windows(int(sample))

    def __getitem__(self, window: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([window])[0]

    def __getitems__(self, windows: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Return some windows; each sequence that they share is fetched once."""
        contents = [self._find(window) for window in windows]
        wanted = list(dict.fromkeys(n for content in contents for n in content.samples.tolist()))
        known = {
            number: self._read_fields(number, sample)
            for number, sample in zip(wanted, fetch(self.dataset, wanted), strict=True)
        }
        return [self._fill(content, known) for content in contents]

    def _find(self, window: int) -> WindowContent:
        at = int(window) + (self._size if window < 0 else 0)
        if not 0 <= at < self._size:
            raise IndexError(f"window {window} of {self._size}")
        return self._windows.find_content(at)

    def _read_fields(self, number: int, sample: Any) -> dict[str, torch.Tensor]:
        named = sample if isinstance(sample, Mapping) else {_TOKENS: sample}
        expected = int(self._lengths[number])
        fields = {name: _make_tensor(name, number, value) for name, value in named.items()}
        for name, value in fields.items():
            is_cut = self._cut_long and expected == self.window <= len(value)
            if name in _OWN:
                raise UsageError(f"sample {number} has {name}, which windows have of their own")
            if len(value) != expected and not is_cut:
                raise UsageError(
                    f"{name} of sample {number} has {len(value)} tokens, and its length is given as "
                    f"{expected}",
                    hint="make the lengths again, after everything that changes them",
                )
        return fields

    def _fill(
        self, content: WindowContent, known: Mapping[int, Mapping[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        arrays = (content.samples, content.begins, content.ends)
        parts = list(zip(*(array.tolist() for array in arrays), strict=True))
        names = known[parts[0][0]] if parts else {}
        filled: dict[str, torch.Tensor] = {}
        for name, example in names.items():
            pad: Any = _IGNORED if name == "labels" else self._pad
            if isinstance(self._pad, Mapping):
                pad = self._pad.get(name, _IGNORED if name == "labels" else 0)
            filled[name] = torch.full((self.window,), pad, dtype=example.dtype)
        positions = torch.zeros(self.window, dtype=torch.int64)
        documents = torch.full((self.window,), -1, dtype=torch.int64)
        at = 0
        for document, (number, begin, end) in enumerate(parts):
            place = slice(at, at + end - begin)
            if known[number].keys() != names.keys():
                raise UsageError(f"sample {number} has other fields than sample {parts[0][0]}")
            for name, value in known[number].items():
                filled[name][place] = value[begin:end]
            positions[place] = torch.arange(end - begin)
            documents[place] = document
            at = place.stop
        return {**filled, "position_ids": positions, "document_ids": documents}


def cumulative_lengths(document_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return where sequences begin in a flattened batch of windows, and the longest length.

    The first value is int32 and ends with the number of tokens, as ``cu_seqlens`` of kernels for
    sequences of varying length; padding is a sequence of its own.
    """
    rows = document_ids.reshape(-1, document_ids.shape[-1])
    changes = torch.ones_like(rows, dtype=torch.bool)
    changes[:, 1:] = rows[:, 1:] != rows[:, :-1]
    begins = torch.nonzero(changes.reshape(-1)).reshape(-1)
    ends = torch.cat([begins, begins.new_tensor([rows.numel()])])
    return ends.to(torch.int32), int((ends[1:] - ends[:-1]).max()) if len(begins) else 0


def _make_tensor(name: str, number: int, value: Any) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.empty(())
    if tensor.dim() != 1:
        raise UsageError(
            f"{name} of sample {number} is not a sequence of numbers",
            hint="tokenize first; pack dicts of the fields to train on alone",
        )
    return tensor


def _read_lengths(dataset: Any, lengths: Any) -> NDArray[np.integer[Any]]:
    given = lengths
    if isinstance(lengths, (str, os.PathLike)):
        path = os.fspath(lengths)
        is_file = path.endswith(".npy")
        try:
            given = np.load(path, mmap_mode="r", allow_pickle=False) if is_file else dataset[path]
        except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
            what = "cannot be read" if is_file else "is not a column of the dataset"
            raise UsageError(
                f"lengths={path!r} {what}",
                hint="pass an array, a .npy file or the name of a column",
            ) from error
    known = np.asarray(given)
    size = len(dataset)
    if known.shape != (size,) or (size and known.dtype.kind not in "iu"):
        raise UsageError(
            f"lengths is {known.dtype} of shape {known.shape}, and the dataset has {size} samples",
            hint="one whole number for each sample",
        )
    if size and int(known.min()) < 0:
        raise UsageError(f"the length of sample {int(known.argmin())} is {int(known.min())}")
    return known
