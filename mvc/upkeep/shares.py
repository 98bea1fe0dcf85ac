"""Who needs which chunks: bytes that one user alone holds, and all that a user needs. Arrays only.

A *user* is anything that keeps content: a branch, a commit, a path, a tensor; here a number. A user
needs the chunks that it names and, through their chosen copies, all that those are based on. A
chunk belongs to a user *alone* if no other user needs it: without that user it would go.

To decide that, it is enough to know the least and the greatest user that needs each chunk: if they
are equal, there is only one. Both flow down from a chunk to its bases, one link per round. So a
kind of users costs two arrays, however many users there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.formats.pack import MAX_BASES, MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mvc.chunkstore.copies import Mask, Numbers, StoredCopies

    Chunks = NDArray[np.int32]
    Users = NDArray[np.int32]

_COMPACT_FROM = 2**21


class Needs:
    """What each chunk takes and builds on, by its chosen copy; 0 bytes if it cannot be decoded."""

    def __init__(self, copies: StoredCopies) -> None:
        chosen = copies.chosen
        known = chosen != NONE
        self.sizes: Numbers = np.where(known, np.append(copies.sizes, 0)[chosen], 0)
        padded = np.concatenate((copies.bases, np.full((1, MAX_BASES), NONE)))
        self.bases: Numbers = np.where(known[:, None], padded[chosen], NONE)
        self.referring = np.flatnonzero((self.bases >= 0).any(axis=1))

    def __len__(self) -> int:
        return len(self.sizes)


class Owners:
    """Of every chunk, the least and the greatest of the users that need it.

    One more user, ``others``, stands for all that is not listed.
    """

    def __init__(self, needs: Needs, users: int) -> None:
        self._needs = needs
        self._users = users
        self.others = users
        self._least = np.full(len(needs), users + 1, np.int32)
        self._greatest = np.full(len(needs), -1, np.int32)

    def add(self, chunks: Chunks, least: int, greatest: int) -> None:
        """Take in that users from ``least`` to ``greatest`` name some chunks."""
        self._least[chunks] = np.minimum(self._least[chunks], least)
        self._greatest[chunks] = np.maximum(self._greatest[chunks], greatest)

    def add_each(self, chunks: Chunks, users: Users) -> None:
        """Take in that each user names the chunk in its place."""
        np.minimum.at(self._least, chunks, users)
        np.maximum.at(self._greatest, chunks, users)

    def count_alone(self) -> Numbers:
        """Return for every user the stored bytes that only it needs."""
        self._flow_down()
        single = (self._least == self._greatest) & (self._least < self._users)
        return _sum(self._least[single], self._needs.sizes[single], self._users)

    def _flow_down(self) -> None:
        for _ in range(MAX_DEPTH):
            needed = self._needs.referring[self._greatest[self._needs.referring] >= 0]
            for place in range(MAX_BASES):
                bases = self._needs.bases[needed, place]
                above = needed[bases >= 0]
                bases = bases[bases >= 0]
                np.minimum.at(self._least, bases, self._least[above])
                np.maximum.at(self._greatest, bases, self._greatest[above])


class Totals:
    """All that each user needs, bases included.

    Users are counted in groups: everything about a user is added before ``finish`` is called.
    """

    def __init__(self, needs: Needs, users: int) -> None:
        self._needs = needs
        self._users = users
        self._keys: list[Numbers] = []
        self._waiting = 0
        self._limit = _COMPACT_FROM
        self.bytes = np.zeros(users, np.int64)

    def add(self, chunks: Chunks, users: Users | int) -> None:
        """Take in that a user, or each user in its place, names some chunks."""
        self._keys.append(np.int64(len(self._needs)) * users + chunks)
        self._waiting += len(chunks)
        if self._waiting > self._limit:
            keys = _distinct(self._keys)
            self._keys, self._waiting = [keys], len(keys)
            self._limit = max(_COMPACT_FROM, 2 * len(keys))

    def finish(self) -> None:
        """Count what was added since the last call."""
        if not self._waiting:
            return
        size = len(self._needs)
        keys = fresh = _distinct(self._keys)
        self._keys, self._waiting, self._limit = [], 0, _COMPACT_FROM
        for _ in range(MAX_DEPTH):
            bases = self._needs.bases[fresh % size]
            grown = (fresh // size * size)[:, None] + bases
            found = _distinct([grown[bases >= 0]])
            places = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
            fresh = found[keys[places] != found]
            if not fresh.size:
                break
            keys = _distinct([keys, fresh])
        self.bytes += _sum(keys // size, self._needs.sizes[keys % size], self._users)


class Union:
    """What some users need together, bases included; grows."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self.mask: Mask = np.zeros(len(needs), np.bool_)
        self.bytes = 0

    def add(self, chunks: Chunks) -> None:
        """Take in some chunks, each named once, and what they are based on."""
        fresh = chunks[~self.mask[chunks]].astype(np.int64)
        while fresh.size:
            self.mask[fresh] = True
            self.bytes += int(self._needs.sizes[fresh].sum())
            bases = self._needs.bases[fresh]
            found = np.unique(bases[bases >= 0])
            fresh = found[~self.mask[found]]


def _distinct(parts: Sequence[Numbers]) -> Numbers:
    """Return all values, ascending, each once; NumPy's own hashes them, which is far slower."""
    values = np.concatenate(parts)
    values.sort(kind="stable")  # quick where the parts are in order
    return values[np.concatenate(([True], values[1:] != values[:-1]))] if len(values) else values


def _sum(users: NDArray[np.integer], sizes: Numbers, count: int) -> Numbers:
    """Return the sum of sizes by user, exact below 2^53 bytes."""
    return np.bincount(users, sizes, minlength=count).astype(np.int64)
