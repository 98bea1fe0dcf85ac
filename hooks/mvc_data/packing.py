"""Sequences of varying length as windows of fixed length, each token exactly once.

Which sequences share a window depends on their lengths alone, never on ranks, workers, batch size or
epoch. So windows are samples like any others: a loader shuffles them, and a resume needs nothing
but their numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from blake3 import blake3
from torch.utils.data import Dataset

from mvc import UsageError
from mvc.sampling import BlockOrder
from mvc_data.fetching import fetch
from mvc_data.windows import Cut, FirstFit, WindowContent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_TOKENS = "input_ids"
_OWN = ("position_ids", "document_ids")
_IGNORED = -100  # what cross entropy of torch leaves out
_HASHED = 1 << 22  # lengths at a time


class PackedDataset(Dataset[dict[str, torch.Tensor]]):
    """A map-style dataset of windows over a map-style dataset of sequences.

    A sample of ``dataset`` is a sequence of tokens, or a dict of sequences of equal length
    (``input_ids``, ``labels``, ...). A window is a dict of tensors of ``window`` elements: those
    fields; ``position_ids``, which begin at 0 in each sequence; and ``document_ids``, which number
    the sequences of the window from 0, with -1 where it is padded. ``cumulative_lengths`` makes of them
    what attention over sequences of varying length takes.

    With ``split=False`` sequences stay whole, but for those longer than a window, and windows are
    padded (by a percent or so). With ``split=True`` they follow each other in order and are cut at the
    ends of windows; only the last window of the dataset, or of a shard, is padded.
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
        """Plan all windows, in about 10 s and 200 MB per 10⁸ sequences.

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
