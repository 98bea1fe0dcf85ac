"""A sharded commit of machines that share no folder, but a store.

Each machine sends the packs of its ranks, as a push would, and tells rank 0 which they are. Rank 0 looks
that they are there before it makes the commit, and pushes that: manifests, history, and the refs last,
together with the names of all these packs. Until then nothing names them; if it never happens, they are
garbage, which ``gc --remote`` takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import (
    ConflictError,
    CorruptionError,
    FormatError,
    NotFoundError,
    StorageError,
    UsageError,
)
from mvc.history.names import HEADS
from mvc.history.refspecs import map_first
from mvc.operations.fetch import fetch
from mvc.operations.sending import sending_folder
from mvc.remotes.brought import note_brought
from mvc.remotes.content import send_content
from mvc.remotes.history import bring_history
from mvc.remotes.promised import remember_packs
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.root import Listing, Root
from mvc.workspace.context import STORE, Context
from mvc.workspace.stored_share import StoredShare, list_ids
from mvc.workspace.whereabouts import Whereabouts, sees_mark

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids
    from mvc.ids import ChunkId, GitId, PackId


def open_common(context: Context) -> Remote:
    """Return the store that has the content; UsageError if there is none."""
    name = context.history.config.get(STORE)
    if name is None:
        raise UsageError(
            "no store has the content of this repository, so ranks elsewhere cannot be given any",
            hint='"mvc init --store URL" on each machine, or one folder that all of them see',
        )
    return open_remote(context, name)


def look_for_mark(context: Context, mark: str) -> Whereabouts:
    """Return where this repository is, as compared with the one in which a mark was left.

    Raises:
        UsageError: that is not the name of a mark.
    """
    name, store = context.history.config.get(STORE), None
    if name is not None:
        settings = open_remote(context, name).settings
        store = (
            str(settings.url)
            if settings.place == str(settings.url)
            else f"{settings.url} ({settings.place})"
        )
    return Whereabouts(sees_mark(context, mark), store)


def follow_store(context: Context, branch: str | None) -> GitId | None:
    """Bring the history of a branch from the store; return the commit that it is at there."""
    there = open_common(context)
    name = HEADS + (branch or context.history.head().branch or "")
    root = there.roots.read() or Root()
    tip, (ref, _) = root.refs.get(name), map_first(there.settings.fetch, name)
    old = context.history.find_ref(ref) if ref is not None else None
    if tip is None or tip == old:
        return tip
    known = list(context.history.refs.values().values())
    bring_history(context, there, there.roots.read_listing(root).history, [tip], known)
    if ref is not None:
        with contextlib.suppress(ConflictError):  # another rank of this machine was first
            stamp = context.stamp()
            context.history.update_ref(ref, tip, expected=old, message="followed", stamp=stamp)
    return tip


def bring_commit(context: Context, commit: str) -> None:
    """Have the history of a commit here that another machine of a run has made, and read its content.

    It comes from the store that has the content (``mvc.store``); content itself comes when it is
    read. Without such a store it has to be here.

    Raises:
        NotFoundError: it is neither here nor there.
        StorageError: the store cannot be reached.
    """
    is_here = context.history.find_commit(commit) is not None
    if is_here and context.history.config.get(STORE) is None:
        return
    there = open_common(context)
    if not is_here:
        fetch(context, there.settings.name, content=False)
    if context.history.find_commit(commit) is None:
        raise NotFoundError(
            f"commit {commit[:10]} is neither here nor on {there.settings.url}",
            hint="it has to be pushed from the machine that made it",
        )
    root = there.roots.read()
    if root is not None:
        remember_packs(there, there.roots.read_listing(root).packs)
        context.forget_settings()


def send_share(context: Context, wanted: Ids, written: Collection[PackId]) -> dict[PackId, int]:
    """Send what the store lacks of some chunks; return the packs that have them there, with lengths.

    ``written`` are the packs here that were made for them.
    """
    there = open_common(context)
    if not len(wanted):
        return {}
    listing = there.roots.read_listing(there.roots.read() or Root())
    packs = _choose_known(context, there, listing, wanted, written)

    def refuse(missing: Sequence[ChunkId]) -> None:
        if missing:
            raise CorruptionError(
                f"{len(missing):,} chunks that this rank has stored cannot be read any more",
                hint='"mvc fsck" tells what is wrong',
            )

    with sending_folder(there.folder) as scratch:
        sent, _ = send_content(there, packs, wanted, scratch, accept=refuse, patience=None)
        there.packs.keep_indexes(sent)
    packs |= sent
    copies = there.packs.copies(packs)
    used = copies.packs[copies.chosen[copies.close(copies.mask(wanted))]]
    names = (copies.indexes[number].pack for number in np.unique(used).tolist())
    return {name: packs[name] for name in names}


def _choose_known(
    context: Context, there: Remote, listing: Listing, wanted: Ids, written: Collection[PackId]
) -> dict[PackId, int]:
    """Return the packs there to compare with: those whose index is here, if they tell enough.

    Most of a share is new, so what the others have sent need not be known: else each machine would
    fetch the index of every pack of all others.
    """
    known = there.packs.recall(listing.packs)
    lacking = wanted[~there.packs.copies(known).decodes(wanted)]
    here = {index.pack: index for index in context.here.copies().indexes}
    new = [here[pack].ids for pack in written if pack in here]
    if np.isin(lacking, np.concatenate(new or [np.empty(0, "S32")])).all():
        return known
    return dict(listing.packs)


def take_brought(context: Context, shares: Sequence[StoredShare]) -> None:
    """Check that the chunks that ranks elsewhere have sent for a commit are on the store, to stay."""
    sent = {pack: size for share in shares for pack, size in share.packs.items()}
    there = open_common(context)
    root = there.roots.read() or Root()
    going = Listing(sent).names().intersection(root.deleting)
    if going:
        raise ConflictError(
            f"the store is deleting {min(going)[:22]}, which is needed again",
            hint="the next commit sends it anew, once the gc there is done",
        )
    with contextlib.suppress(FormatError):  # it is told below whose they are
        there.packs.indexes(sent)
    for share in shares:
        _check_sent(there, share)
    listing = there.roots.read_listing(root)
    new = {pack: size for pack, size in sent.items() if pack not in listing.packs}
    note_brought(there, new)
    context.forget_settings()


def _check_sent(there: Remote, share: StoredShare) -> None:
    if not share.packs:
        return
    why = "lacks some of its chunks"
    try:
        if there.packs.copies(share.packs).decodes(list_ids(share)).all():
            return
    except FormatError as error:
        why = error.message
    raise StorageError(
        f"what rank {share.rank} has sent is not on {there.settings.url}: {why}",
        hint="is that the same place on every machine?",
    )
