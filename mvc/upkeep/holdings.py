"""What keeps content, read once; and which bytes one user needs, or needs alone.

Named content is what refs, a detached HEAD and the index hold. Reflogs, ``ORIG_HEAD`` and the like
only delay: what nothing else holds goes when they forget it, so they do not count as users and are
summed up separately. Of the index, only what HEAD's commit does not have counts: the rest goes
where HEAD goes. Released versions hold nothing.

A *user* is anything that keeps content: a branch, a commit, a path, a tensor; here a number. A user
needs the chunks that it names and, through their chosen copies, all that those are based on. A
chunk belongs to a user *alone* if no other user needs it: without that user it would go.

To decide that, it is enough to know the least and the greatest user that needs each chunk: if they
are equal, there is only one. Both flow down from a chunk to its bases, one link per round. So a
kind of users costs two arrays, however many users there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.formats.pack import MAX_BASES, MAX_DEPTH
from mvc.upkeep.versions import Versions, reach, walk_all
from mvc.workspace.manifests import find_manifest
from mvc.workspace.releases import read_releases

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.chunkstore.copies import Mask, Numbers, StoredCopies
    from mvc.formats.manifest import Manifest
    from mvc.ids import GitId
    from mvc.workspace.context import Context

    Chunks = NDArray[np.int32]
    Users = NDArray[np.int32]

_COMPACT_FROM = 2**21


@dataclass(frozen=True, slots=True)
class TensorChunks:
    """Which chunks of a manifest belong to which tensor names.

    Every array but ``chunks`` has one element per view; a segment of several views is in several.
    """

    names: Users
    starts: Numbers  # where its chunks begin in ``chunks``
    counts: Numbers
    sizes: Numbers  # of its segment
    chunks: Chunks  # of the whole file in order, repeated where the file repeats them

    def expand(self, users: Users) -> tuple[Chunks, Users]:
        """Return (chunk, user) for every chunk of every view, given the user of each view."""
        skipped = self.starts - np.concatenate(([0], np.cumsum(self.counts)[:-1]))
        places = np.repeat(skipped, self.counts) + np.arange(self.counts.sum())
        known = self.chunks[places]
        is_known = known >= 0
        return known[is_known], np.repeat(users, self.counts)[is_known]


@dataclass(frozen=True, slots=True)
class ManifestContent:
    """One manifest: how long the file is, and its chunks, each once, as far as the store has them."""

    size_bytes: int
    chunks: Chunks
    parts: TensorChunks | None


class KeptContent:
    """A repository's refs, commits and file versions; FormatError if the history is damaged.

    Attributes:
        refs: full name (or ``HEAD``, if it is detached) → commit.
        commits: every commit that can be reached, newest first.
        parents: of each of them.
        named: those of them that a ref or HEAD reaches.
        staged: path → blob of what is in the index and not in HEAD's commit.
        names: the numbers of tensor names; None stands for bytes between tensors.
    """

    def __init__(self, context: Context, copies: StoredCopies, *, with_tensors: bool) -> None:
        self._context = context
        self._copies = copies
        self._with_tensors = with_tensors
        self._contents: dict[GitId, ManifestContent | None] = {}
        self._releases = read_releases(context)
        self._versions = Versions(context)
        self._files: dict[GitId, Mapping[str, GitId]] = {}
        self.names: dict[str | None, int] = {None: 0}
        head = context.history.head()
        self.refs = context.ref_commits()
        if head.branch is None and head.commit is not None:
            self.refs["HEAD"] = head.commit
        self.commits = {info.id: info for info in walk_all(context)}
        self.parents = {info.id: info.parents for info in self.commits.values()}
        self.named = reach(self.parents, self.refs.values())
        self.staged = self._find_staged(head.commit)

    def files(self, commit: GitId) -> Mapping[str, GitId]:
        """Return path → manifest of the versions of a commit that were not released."""
        files = self._files.get(commit)
        if files is None:
            files = self._versions.left(self.commits[commit], self._releases)
            self._files[commit] = files
        return files

    def content(self, blob: GitId) -> ManifestContent | None:
        """Return what a manifest holds, None for a plain file; read once."""
        if blob not in self._contents:
            manifest = find_manifest(self._context, blob)
            self._contents[blob] = None if manifest is None else self._read(manifest)
        return self._contents[blob]

    def contents(self, blobs: Iterable[GitId]) -> Iterator[ManifestContent]:
        """Yield what manifests hold, each once; plain files are left out."""
        for blob in dict.fromkeys(blobs):
            content = self.content(blob)
            if content is not None:
                yield content

    def contents_of(self, commits: Iterable[GitId]) -> Iterator[ManifestContent]:
        """Yield what the manifests of some commits hold."""
        return self.contents(blob for commit in commits for blob in self.files(commit).values())

    def find_holders(self, users: Mapping[str, int]) -> dict[GitId, tuple[int, int]]:
        """Return commit → the least and the greatest of some refs, numbered in ascending order, that reach it.

        A commit that two refs reach is never looked at by a third: all before it have two as well.
        """
        holders: dict[GitId, tuple[int, int]] = {}
        for name, user in users.items():
            pending = [self.refs[name]]
            while pending:
                commit = pending.pop()
                least, greatest = holders.get(commit, (user, -1))
                if least == greatest != user or greatest < 0:
                    holders[commit] = (least, user)
                    pending.extend(self.parents[commit])
        return holders

    def _read(self, manifest: Manifest) -> ManifestContent:
        joined = b"".join(manifest.chunk_ids())
        ids = np.frombuffer(joined, "S32") if joined else np.empty(0, "S32")
        numbers = self._copies.find(ids).astype(np.int32)
        chunks = np.unique(numbers)
        parts = self._read_parts(manifest, numbers) if self._with_tensors else None
        return ManifestContent(manifest.size_bytes, chunks[chunks >= 0], parts)

    def _read_parts(self, manifest: Manifest, numbers: Chunks) -> TensorChunks:
        names, starts, counts, sizes = [0], [0], [len(manifest.gaps)], [manifest.gap_bytes]
        start = len(manifest.gaps)
        for stored in manifest.segments:
            for view in stored.segment.tensors:
                names.append(self.names.setdefault(view.name, len(self.names)))
                starts.append(start)
                counts.append(len(stored.chunks))
                sizes.append(stored.segment.size_bytes)
            start += len(stored.chunks)
        return TensorChunks(
            np.array(names, np.int32),
            np.array(starts, np.int64),
            np.array(counts, np.int64),
            np.array(sizes, np.int64),
            numbers,
        )

    def _find_staged(self, head: GitId | None) -> dict[str, GitId]:
        tree = {} if head is None else self._versions.of(self.commits[head])
        entries = self._context.history.read_index().entries
        return {
            path: entry.blob
            for path, entry in entries.items()
            if tree.get(path) != entry.blob and self.content(entry.blob) is not None
        }


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
            before = self._least.copy(), self._greatest.copy()
            needed = self._needs.referring[self._greatest[self._needs.referring] >= 0]
            for place in range(MAX_BASES):
                bases = self._needs.bases[needed, place]
                above = needed[bases >= 0]
                bases = bases[bases >= 0]
                np.minimum.at(self._least, bases, self._least[above])
                np.maximum.at(self._greatest, bases, self._greatest[above])
            if all(map(np.array_equal, before, (self._least, self._greatest))):
                break


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
            reached = _distinct([grown[bases >= 0]])
            places = np.minimum(np.searchsorted(keys, reached), len(keys) - 1)
            fresh = reached[keys[places] != reached]
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
            reached = np.unique(bases[bases >= 0])
            fresh = reached[~self.mask[reached]]


def _distinct(parts: Sequence[Numbers]) -> Numbers:
    """Return all values, ascending, each once; NumPy's own hashes them, which is far slower."""
    values = np.concatenate(parts)
    values.sort(kind="stable")  # quick where the parts are in order
    return values[np.concatenate(([True], values[1:] != values[:-1]))] if len(values) else values


def _sum(users: NDArray[np.integer], sizes: Numbers, count: int) -> Numbers:
    """Return the sum of sizes by user, exact below 2^53 bytes."""
    return np.bincount(users, sizes, minlength=count).astype(np.int64)
