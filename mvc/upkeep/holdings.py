"""What keeps content, read once: refs, commits, file versions, and the chunks of each manifest.

Named content is what refs, a detached HEAD and the index hold. Reflogs, ``ORIG_HEAD`` and the like
only delay: what nothing else holds goes when they forget it, so they do not count as users and are
summed up separately. Of the index, only what HEAD's commit does not have counts: the rest goes
where HEAD goes. Released versions hold nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.upkeep.versions import Versions, reach, walk_all
from mvc.workspace.manifests import find_manifest
from mvc.workspace.releases import read_releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mvc.chunkstore.copies import Numbers, StoredCopies
    from mvc.formats.manifest import Manifest
    from mvc.ids import GitId
    from mvc.upkeep.shares import Chunks, Users
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class Parts:
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
        found = known >= 0
        return known[found], np.repeat(users, self.counts)[found]


@dataclass(frozen=True, slots=True)
class Content:
    """One manifest: how long the file is, and its chunks, each once, as far as the store has them."""

    size_bytes: int
    chunks: Chunks
    parts: Parts | None


class Holdings:
    """A repository's refs, commits and file versions.

    Attributes:
        refs: full name (or ``HEAD``, if it is detached) → commit.
        commits: every commit that can be reached, newest first.
        parents: of each of them.
        named: those of them that a ref or HEAD reaches.
        staged: path → blob of what is in the index and not in HEAD's commit.
        names: the numbers of tensor names; None stands for bytes between tensors.

    Raises:
        FormatError: the history is damaged.
    """

    def __init__(self, context: Context, copies: StoredCopies, *, with_tensors: bool) -> None:
        self._context = context
        self._copies = copies
        self._with_tensors = with_tensors
        self._contents: dict[GitId, Content | None] = {}
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
        found = self._files.get(commit)
        if found is None:
            found = self._versions.left(self.commits[commit], self._releases)
            self._files[commit] = found
        return found

    def content(self, blob: GitId) -> Content | None:
        """Return what a manifest holds, None for a plain file; read once."""
        if blob not in self._contents:
            manifest = find_manifest(self._context, blob)
            self._contents[blob] = None if manifest is None else self._read(manifest)
        return self._contents[blob]

    def contents(self, blobs: Iterable[GitId]) -> Iterator[Content]:
        """Yield what manifests hold, each once; plain files are left out."""
        for blob in dict.fromkeys(blobs):
            content = self.content(blob)
            if content is not None:
                yield content

    def contents_of(self, commits: Iterable[GitId]) -> Iterator[Content]:
        """Yield what the manifests of some commits hold."""
        return self.contents(blob for commit in commits for blob in self.files(commit).values())

    def _read(self, manifest: Manifest) -> Content:
        joined = b"".join(manifest.chunk_ids())
        ids = np.frombuffer(joined, "S32") if joined else np.empty(0, "S32")
        numbers = self._copies.find(ids).astype(np.int32)
        chunks = np.unique(numbers)
        parts = self._read_parts(manifest, numbers) if self._with_tensors else None
        return Content(manifest.size_bytes, chunks[chunks >= 0], parts)

    def _read_parts(self, manifest: Manifest, numbers: Chunks) -> Parts:
        names, starts, counts, sizes = [0], [0], [len(manifest.gaps)], [manifest.gap_bytes]
        start = len(manifest.gaps)
        for stored in manifest.segments:
            for view in stored.segment.tensors:
                names.append(self.names.setdefault(view.name, len(self.names)))
                starts.append(start)
                counts.append(len(stored.chunks))
                sizes.append(stored.segment.size_bytes)
            start += len(stored.chunks)
        return Parts(
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
