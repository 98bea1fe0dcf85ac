"""File versions: which commits have which stored files, and which of these were released.

A version is one path of one commit. Several versions may share one manifest: its content is needed
as long as one of them was not released.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.formats.manifest import MANIFEST_PREFIX, is_manifest
from mvc.history.reachability import ReflogExpiry, find_roots

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.releases import Release


class Versions:
    """The files in chunks of commits; what commits share is read once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_tree: dict[GitId, dict[str, GitId]] = {}
        self._is_manifest: dict[GitId, bool] = {}

    def of(self, info: CommitInfo) -> Mapping[str, GitId]:
        """Return path → manifest blob of a commit."""
        files = self._by_tree.get(info.tree)
        if files is None:
            tree = self._context.history.read_tree(info.tree)
            files = {path: entry.blob for path, entry in tree.items() if self._holds(entry.blob)}
            self._by_tree[info.tree] = files
        return files

    def left(
        self, info: CommitInfo, releases: Mapping[GitId, Sequence[Release]]
    ) -> dict[str, GitId]:
        """Return path → manifest blob of what was not released, given commit → its releases."""
        gone = released_paths(releases.get(info.id, ()))
        return {path: blob for path, blob in self.of(info).items() if path not in gone}

    def _holds(self, blob: GitId) -> bool:
        known = self._is_manifest.get(blob)
        if known is None:
            head = self._context.history.blob_start(blob, len(MANIFEST_PREFIX))[1]
            known = self._is_manifest[blob] = is_manifest(head)
        return known


def walk_all(context: Context, *, expiry: ReflogExpiry | None = None) -> list[CommitInfo]:
    """Return every commit that HEAD, a ref or a reflog reaches, newest first.

    Entries of reflogs that an ``expiry`` calls old do not count. Fails if a commit is damaged.
    """
    roots = find_roots(context.history, expiry=expiry)
    return list(context.history.walk(commits_of(context, roots)))


def reach(
    parents: Mapping[GitId, Sequence[GitId]],
    tips: Iterable[GitId],
    without: Collection[GitId] = frozenset(),
) -> set[GitId]:
    """Return the commits that tips lead to, themselves included, of those in ``parents``.

    The commits in ``without`` are left out, and so is what only they lead to.
    """
    reached: set[GitId] = set()
    pending = list(tips)
    while pending:
        commit = pending.pop()
        if commit in parents and commit not in reached and commit not in without:
            reached.add(commit)
            pending.extend(parents[commit])
    return reached


def commits_of(context: Context, ids: Iterable[GitId]) -> list[GitId]:
    """Return the commits that some ids stand for, tags followed; other objects are left out."""
    commits = map(context.history.find_commit, ids)
    return list(dict.fromkeys(commit for commit in commits if commit is not None))


def released_paths(releases: Sequence[Release]) -> frozenset[str]:
    """Return the paths that acts of releasing of one commit name."""
    return frozenset(path for release in releases for path in release.paths)


def find_live(
    context: Context,
    releases: Mapping[GitId, Sequence[Release]],
    versions: Versions | None = None,
    *,
    expiry: ReflogExpiry | None = None,
    trust_index: bool = True,
) -> dict[GitId, tuple[GitId | None, str]]:
    """Return manifest → (commit, path) of a version that was not released; no commit: the index.

    Nothing needs a manifest that is not among them: all versions that have it were released.
    A damaged history fails; a damaged index is skipped unless the caller relies on it.
    """
    versions = versions or Versions(context)
    live: dict[GitId, tuple[GitId | None, str]] = {}
    for info in walk_all(context, expiry=expiry):
        for path, blob in versions.left(info, releases).items():
            live.setdefault(blob, (info.id, path))
    with contextlib.suppress(*(() if trust_index else (FormatError,))):
        for path, blob in context.history.read_index().blobs():
            live.setdefault(blob, (None, path))
    return live
