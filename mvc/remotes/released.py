"""Content that was released is nowhere, so it does not travel; that it was released does.

A remote has release records of its own, below ``refs/notes/released`` there: those of what was pushed
without its content. They are not merged with the records here as notes would be, since a record lets
gc remove content: who fetches takes over just those of content that did not come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError
from mvc.remotes.history import bring_history
from mvc.workspace.context import RELEASED_REF, Context
from mvc.workspace.manifests import find_manifest
from mvc.workspace.releases import RELEASES, Release, add_releases, encode_release, read_releases

if TYPE_CHECKING:
    from mvc.history.transfer import Entry
    from mvc.ids import ChunkId, GitId
    from mvc.remotes.remote import Remote
    from mvc.remotes.root import Listing, Root
    from mvc.workspace.notebook import Notebook

NOTES_OF_REMOTES = "refs/notes/remotes/"


def find_gaps(
    context: Context, entries: Iterable[Entry], missing: Sequence[ChunkId]
) -> frozenset[GitId]:
    """Return the manifests among some objects that name chunks which are missing."""
    if not missing:
        return frozenset()
    lost = frozenset(missing)
    blobs = (blob for blob, kind in entries if kind == "blob")
    manifests = ((blob, find_manifest(context, blob)) for blob in blobs)
    return frozenset(
        blob
        for blob, manifest in manifests
        if manifest is not None and not lost.isdisjoint(manifest.chunk_ids())
    )


def find_lost(
    context: Context, entries: Iterable[Entry], missing: Sequence[ChunkId]
) -> frozenset[GitId]:
    """Return the manifests that name chunks which are missing and were not released."""
    gaps = find_gaps(context, entries, missing)
    return gaps - _blobs(_choose(read_releases(context), gaps)) if gaps else gaps


def tell_released(
    context: Context, there: Remote, root: Root, listing: Listing, gaps: frozenset[GitId]
) -> GitId | None:
    """Return the release records of a remote with those of content that is not sent.

    They follow the remote below a ref of their own, and are there once that has been pushed. NotFoundError:
    some of the content was not released.
    """
    if not gaps:
        return None
    records = _choose(read_releases(context), gaps)
    if gaps - _blobs(records):
        raise NotFoundError(
            "content to be pushed is neither here nor on the remote",
            hint='"mvc fsck" tells what is missing'
            if context.store is context.here
            else '"mvc fetch --content REV" brings the content of a revision from where it is',
        )
    notes = _follow(context, there, root, listing)
    changes: dict[GitId, list[str]] = {}
    for record in records:
        paragraphs = changes.setdefault(record.commit, notes.find_paragraphs(record.commit))
        text = encode_release(record)
        paragraphs += [text] * (text not in paragraphs)
    notes.write(changes, message="released before it was pushed", stamp=context.stamp())
    return context.history.find_ref(_ref_of(there))


def take_released(
    context: Context, there: Remote, root: Root, listing: Listing, gaps: frozenset[GitId]
) -> None:
    """Record here what was released on a remote, of content that did not come; NotFoundError if some was not."""
    gaps -= _blobs(_choose(read_releases(context), gaps))
    if not gaps:
        return
    records = _choose(_follow(context, there, root, listing).read(), gaps)
    if gaps - _blobs(records):
        raise NotFoundError(
            "content that history names is not on the remote",
            hint="push it there from where it is; until then, fetch without content",
        )
    add_releases(
        context, (record for record in records if context.history.has_object(record.commit))
    )


def _follow(context: Context, there: Remote, root: Root, listing: Listing) -> Notebook[Release]:
    """Return the release records of a remote, brought here below a ref that follows them."""
    history, ref = context.history, _ref_of(there)
    old, tip = history.find_ref(ref), root.refs.get(RELEASED_REF)
    if tip is None:
        if old is not None:
            history.delete_ref(ref, expected=old, stamp=context.stamp())
    elif tip != old:
        bring_history(context, there, listing.history, [tip], [old] if old else [])
        history.update_ref(ref, tip, expected=old, message="followed", stamp=context.stamp())
    return context.notebook(replace(RELEASES, ref=ref))


def _ref_of(there: Remote) -> str:
    return f"{NOTES_OF_REMOTES}{there.folder.name}/released"


def _choose(releases: Mapping[GitId, Sequence[Release]], blobs: frozenset[GitId]) -> list[Release]:
    """Return what acts of releasing say of some manifests."""
    chosen: list[Release] = []
    for release in (release for several in releases.values() for release in several):
        places = [place for place, blob in enumerate(release.blobs) if blob in blobs]
        if places:
            paths = tuple(release.paths[place] for place in places)
            kept = tuple(release.blobs[place] for place in places)
            chosen.append(replace(release, paths=paths, blobs=kept))
    return chosen


def _blobs(records: Iterable[Release]) -> frozenset[GitId]:
    return frozenset(blob for record in records for blob in record.blobs)
