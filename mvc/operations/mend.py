"""mend: what a commit needs and is damaged here is set aside, and comes from a remote if one has it.

A damaged pack still counts as holding its chunks, so a run that computes the same bytes again would
not store them again. Once it is set aside they are missing: a remote may give them, or the next commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError, MvcError
from mvc.operations.fsck import set_damaged_aside
from mvc.operations.fsck_remote import ask_remotes, receive_lost
from mvc.remotes.remote import open_remote
from mvc.remotes.settings import list_remotes
from mvc.upkeep.sweep import upkeep_lock
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.chunkstore.store import ChunkStore
    from mvc.ids import ChunkId, GitId, PackId
    from mvc.workspace.context import Context


def mend_commit(context: Context, revision: str) -> tuple[str, ...]:
    """Mend the content of a commit as far as possible; return what was done, a line each.

    Every pack that it needs is read. Damaged ones are set aside, so that what is lost of them is
    stored again when it comes again, and remotes are asked for it at once.

    Raises:
        NotFoundError: no such revision.
        ConflictError: a gc, prune or repack is running.
        StorageError: the machine failed.
    """
    commit = context.history.resolve(revision)
    chunks = _find_chunks(context, commit)
    with upkeep_lock(context), context.history.no_sweep():
        problems = context.here.check_packs(_find_packs(context.here, chunks))
        _, messages = set_damaged_aside(context, problems)
        context.here.refresh()
    with context.history.no_sweep():
        return messages + tuple(_bring(context, chunks))


def _find_chunks(context: Context, commit: GitId) -> set[ChunkId]:
    """Return the chunks of a commit, as far as its manifests can be read."""
    chunks: set[ChunkId] = set()
    for entry in context.history.read_tree(commit).values():
        with contextlib.suppress(FormatError):
            manifest = find_manifest(context, entry.blob)
            chunks.update(() if manifest is None else manifest.chunk_ids())
    return chunks


def _find_packs(store: ChunkStore, chunks: Iterable[ChunkId]) -> set[PackId]:
    """Return the packs that hold chunks, or what these are based on."""
    packs: set[PackId] = set()
    wanted = list(chunks)
    seen = set(wanted)
    while wanted:
        for location in store.find_all(wanted.pop()):
            packs.add(location.pack)
            wanted += [base for base in location.bases if base not in seen]
            seen.update(location.bases)
    return packs


def _bring(context: Context, chunks: set[ChunkId]) -> list[str]:
    """Bring the chunks that are not here from the remotes that have them."""
    messages: list[str] = []
    if context.here.contains_all(chunks):
        return messages
    remotes = []
    for name in list_remotes(context):
        with contextlib.suppress(MvcError):  # it cannot even be addressed
            remotes.append(open_remote(context, name))
    wanted = np.unique(np.array(sorted(chunks), "S32"))
    for there, _, listing in ask_remotes(remotes, messages):
        try:
            messages += receive_lost(there, listing, wanted)
        except MvcError as error:
            messages.append(f"{there.settings.url}: {error.message}")
        if context.here.contains_all(chunks):
            return [*messages, f"what was lost came from {there.settings.url}"]
    return messages
