"""What must stay: the first half of mark and sweep.

*Needed* is every chunk that a file version names which somebody can still reach and nobody
released: from HEAD, refs, reflogs, the index, and objects that are garbage but too young to go.
*Released* is what only released versions name. What neither names is garbage of writers that died
or of history that is gone.

Garbage may have lost a part already, and a reset to a released commit puts entries without content
into the index: what they name stays as far as it is there. Only what a commit names must be there.

Marking reads all of history once; ``look`` may be called again, as a sweeper does once it is alone,
and then only reads what is new.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError
from mvc.upkeep.versions import Versions, find_live, released_paths
from mvc.workspace.manifests import find_manifest
from mvc.workspace.released import released_blobs
from mvc.workspace.releases import read_releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mvc.chunkstore.copies import Ids
    from mvc.history.reflog_expiry import ReflogExpiry
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.releases import Release

_MERGE_BYTES = 64 * 2**20


class IdSet:
    """A growing set of chunk ids, held as arrays: a hundred million take 3 GB, not 15."""

    def __init__(self) -> None:
        self._fresh = bytearray()
        self._ids = np.empty(0, "S32")

    def add(self, ids: Iterable[bytes]) -> None:
        """Take in some ids."""
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


class Marks:
    """What is needed and what was released, as of the last look.

    Args:
        context: the repository.
        grace_s: how old garbage objects must be to lose their content.
        expiry: how long reflogs hold what only they know; for ever where None.
        releasing: acts of releasing to be taken as done.

    Attributes:
        objects: all Git objects in use.
    """

    def __init__(
        self,
        context: Context,
        *,
        grace_s: float,
        expiry: ReflogExpiry | None,
        releasing: Sequence[Release] = (),
    ) -> None:
        self._context = context
        self._grace_s = grace_s
        self._expiry = expiry
        self._releasing = releasing
        self._versions = Versions(context)
        self._needed, self._released = IdSet(), IdSet()
        self._taken: set[GitId] = set()
        self._let_go: set[GitId] = set()
        self._promised: set[GitId] = set()
        self.objects: set[GitId] = set()

    def look(self) -> None:
        """Take in everything that is needed now; what was needed before stays needed.

        Raises:
            FormatError: the history is damaged: nothing may be removed.
        """
        history = self._context.history
        self.objects = history.reachable_objects(expiry=self._expiry)
        releases = self._releases()
        named = find_live(self._context, releases, self._versions, expiry=self._expiry)
        recent = history.find_recent(self.objects, older_than_s=self._grace_s)
        let_go = self._find_released(releases)
        self._promised |= {
            blob for blob, (commit, _) in named.items() if commit or blob not in let_go
        }
        live = named.keys() | (recent - let_go) | self._find_unreleased(recent, releases)
        self._take(live - self._taken, self._needed)
        self._taken |= live
        self._take(let_go - self._let_go, self._released)
        self._let_go |= let_go

    @property
    def needed(self) -> Ids:
        """Chunks that must stay."""
        return self._needed.sorted()

    @property
    def released(self) -> Ids:
        """Chunks that released versions name; some of them may be needed all the same."""
        return self._released.sorted()

    def find_damage(self, lost: Iterable[bytes]) -> bytes | None:
        """Return one of some chunks that are not there and that must be, or None."""
        missing = set(lost)
        for blob in self._promised:
            manifest = find_manifest(self._context, blob)
            for chunk in () if manifest is None else manifest.chunk_ids():
                if chunk in missing:
                    return chunk
        return None

    def _releases(self) -> dict[GitId, list[Release]]:
        found = {commit: list(many) for commit, many in read_releases(self._context).items()}
        for release in self._releasing:
            found.setdefault(release.commit, []).append(release)
        return found

    def _find_released(self, releases: dict[GitId, list[Release]]) -> set[GitId]:
        acts = (release for many in releases.values() for release in many)
        return {blob for release in acts for blob in released_blobs(self._context, release)}

    def _find_unreleased(
        self, recent: Iterable[GitId], releases: Mapping[GitId, Sequence[Release]]
    ) -> set[GitId]:
        """Return the manifests of young commits nobody reaches whose content nobody let go.

        A branch that was deleted by mistake can be made again whole, whatever it shares.
        """
        found: set[GitId] = set()
        for one in recent if releases else ():  # without, all of them stay as they are
            with contextlib.suppress(FormatError):  # no commit, or garbage that lost a part
                info = self._context.history.read_commit(one)
                gone = released_paths(releases.get(one, ()))
                versions = self._versions.of(info).items()
                found.update(blob for path, blob in versions if path not in gone)
        return found

    def _take(self, blobs: Iterable[GitId], ids: IdSet) -> None:
        for blob in blobs:
            if self._context.history.find_blob_size(blob) is None:
                continue  # a recent commit or tree
            with contextlib.suppress(*(() if blob in self._promised else (FormatError,))):
                manifest = find_manifest(self._context, blob)
                if manifest is not None:
                    ids.add(manifest.chunk_ids())
