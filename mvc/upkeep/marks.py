"""What must stay: the first half of mark and sweep.

*Needed* is every chunk of a file version that can still be reached and was not released: from
HEAD, refs, reflogs, the index, and objects that are garbage but too young to go. *Released* is what
only released versions name. What neither names is garbage: of writers that died, or of history that
is gone.

Garbage may have lost a part already, and a reset to a released commit puts entries without content
into the index: what they name stays as far as it is there. Only what a commit names must be there.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError
from mvc.history.object_sweep import find_recent
from mvc.history.reachability import reachable_objects
from mvc.upkeep.versions import Versions, find_live
from mvc.workspace.manifests import find_manifest
from mvc.workspace.released import released_blobs
from mvc.workspace.releases import read_releases

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mvc.chunkstore.copies import Ids
    from mvc.history.reachability import ReflogExpiry
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.releases import Release

_MERGE_BYTES = 64 * 2**20
_NO_IDS = np.empty(0, "S32")


class IdSet:
    """A growing set of chunk ids, held as arrays: a hundred million take 3 GB, not 15."""

    def __init__(self, ids: Ids = _NO_IDS) -> None:
        self._fresh = bytearray()
        self._ids = ids

    def add(self, ids: Iterable[bytes]) -> None:
        """Add some ids."""
        self._fresh += b"".join(ids)
        if len(self._fresh) > max(_MERGE_BYTES, self._ids.nbytes):
            self.sorted()

    def sorted(self) -> Ids:
        """Return the ids, ascending, each once."""
        if self._fresh:
            fresh = np.frombuffer(bytes(self._fresh), "S32")
            self._ids = np.unique(np.concatenate([self._ids, fresh]))
            self._fresh = bytearray()
        return self._ids


@dataclass(frozen=True, slots=True)
class Marks:
    """What one look at the repository found; chunks are in ascending order."""

    versions: Versions  # remembers which files commits have, for the next look
    objects: Collection[GitId] = frozenset()
    needed: Ids = field(default_factory=lambda: _NO_IDS)
    released: Ids = field(default_factory=lambda: _NO_IDS)  # some may be needed all the same
    promised: frozenset[GitId] = frozenset()  # a commit names them: all their chunks must be there
    live: frozenset[GitId] = frozenset()  # what ``needed`` was read from
    let_go: frozenset[GitId] = frozenset()  # what ``released`` was read from


def mark(
    context: Context,
    *,
    grace_s: float,
    expiry: ReflogExpiry | None,
    releasing: Sequence[Release] = (),
    before: Marks | None = None,
) -> Marks:
    """Return what is needed now, and what was needed ``before``: only what is new since is read.

    Garbage younger than ``grace_s`` keeps its content; ``releasing`` counts as done.

    Raises:
        FormatError: the history is damaged: nothing may be removed.
    """
    history, known = context.history, before or Marks(Versions(context))
    objects = reachable_objects(history, expiry=expiry)
    releases = {commit: list(many) for commit, many in read_releases(context).items()}
    for release in releasing:
        releases.setdefault(release.commit, []).append(release)
    named = find_live(context, releases, known.versions, expiry=expiry)
    recent = find_recent(history, objects, older_than_s=grace_s)
    acts = (release for many in releases.values() for release in many)
    let_go = frozenset(blob for release in acts for blob in released_blobs(context, release))
    promised = known.promised.union(
        blob for blob, (commit, _) in named.items() if commit or blob not in let_go
    )
    live = named.keys() | (recent - let_go)
    if releases:  # else every young object is live anyway
        live |= _find_unreleased(context, recent, releases, known.versions)
    return Marks(
        known.versions,
        objects,
        _with_chunks(context, known.needed, live - known.live, promised),
        _with_chunks(context, known.released, let_go - known.let_go, promised),
        promised,
        known.live | live,
        known.let_go | let_go,
    )


def _find_unreleased(
    context: Context,
    recent: Iterable[GitId],
    releases: Mapping[GitId, Sequence[Release]],
    versions: Versions,
) -> set[GitId]:
    """Return the manifests of young unreachable commits whose content was not released.

    So a branch that was deleted by mistake can be restored whole, whatever it shares.
    """
    found: set[GitId] = set()
    for one in recent:
        with contextlib.suppress(FormatError):  # not a commit, or garbage that lost a part
            info = context.history.read_commit(one)
            found.update(versions.left(info, releases).values())
    return found


def _with_chunks(
    context: Context, ids: Ids, blobs: Iterable[GitId], promised: Collection[GitId]
) -> Ids:
    """Return some chunk ids and those that manifests name."""
    grown = IdSet(ids)
    for blob in blobs:
        if context.history.find_blob_size(blob) is None:
            continue  # a recent commit or tree
        with contextlib.suppress(*(() if blob in promised else (FormatError,))):
            manifest = find_manifest(context, blob)
            if manifest is not None:
                grown.add(manifest.chunk_ids())
    return grown.sorted()


def find_promised(context: Context, marks: Marks, lost: Iterable[bytes]) -> bytes | None:
    """Return one of some chunks that are gone although a commit needs it, or None."""
    missing = set(lost)
    for blob in marks.promised if missing else ():
        manifest = find_manifest(context, blob)
        for chunk in () if manifest is None else manifest.chunk_ids():
            if chunk in missing:
                return chunk
    return None
