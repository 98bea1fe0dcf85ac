"""The samples of a source without a plan, counted as they come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from mvc import sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.sampling import DrawnEntry, IdList

    Ids: TypeAlias = "NDArray[np.int64] | tuple[str, ...]"

Kind: TypeAlias = "Literal['index', 'key']"
_AT_ONCE = 1 << 16
"""Ids that are kept before they are hashed: a batch alone is too few to be hashed fast."""


def read_ids(named: Any) -> Ids | None:
    """Return what a sampler or the user names samples by as ids; None if it names none.

    Whole numbers are indices. Texts are keys, and so are other values that JSON has.
    """
    if isinstance(named, range):
        return np.arange(named.start, named.stop, named.step, dtype=np.int64)
    if isinstance(named, str):
        named = [named]
    try:
        values = np.asarray(named)
    except (ValueError, TypeError, RuntimeError):  # ragged, or a tensor elsewhere
        values = np.empty(0, object)
    if values.dtype.kind in "iu" and values.ndim < 2:  # noqa: PLR2004  of more, each row is an id
        return values.astype(np.int64).reshape(-1)
    try:
        return tuple(one if isinstance(one, str) else json.dumps(one) for one in named)
    except (TypeError, ValueError):
        return None


def kind_of(ids: Ids) -> Kind:
    """Return by what some ids name samples."""
    return "key" if isinstance(ids, tuple) else "index"


class Tally:
    """Samples of one source that this rank drew; ``reason`` is why some were skipped."""

    def __init__(self, source: str, kind: Kind) -> None:
        self.kind = kind
        self._source = source
        self._waiting: dict[str | None, list[Ids]] = {}
        self._held = 0
        self._entry = sampling.DrawnEntry(kind)

    def add(self, ids: Ids, reason: str | None = None) -> None:
        """Count samples."""
        self._waiting.setdefault(reason, []).append(ids)
        self._held += len(ids)
        if self._held >= _AT_ONCE:
            self.settle()

    def settle(self) -> DrawnEntry:
        """Return all of them as an entry."""
        for reason, parts in self._waiting.items():
            found = sampling.IdList.of(self._source, _join(parts))
            more = (
                sampling.DrawnEntry(self.kind, found)
                if reason is None
                else _skip(self.kind, reason, found)
            )
            self._entry = self._entry.join(more)
        self._waiting, self._held = {}, 0
        return self._entry

    def take_up(self, entry: DrawnEntry) -> None:
        """Count what an entry has."""
        self._entry = self._entry.join(entry)

    def forget(self, before: DrawnEntry) -> None:
        """List no ids any more that an earlier entry counts."""
        self._entry = self.settle().forget(before)


def _skip(kind: Kind, reason: str, found: IdList) -> DrawnEntry:
    return sampling.DrawnEntry(kind, skipped={reason: found})


def _join(parts: list[Any]) -> Ids:
    if isinstance(parts[0], tuple):
        return tuple(key for part in parts for key in part)
    joined: NDArray[np.int64] = np.concatenate(parts)
    return joined
