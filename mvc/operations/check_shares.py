"""The check of a commit of several ranks: do two of them hold the same bytes?

Each rank hashes what it checks (``states.cross_check``) once its own chunks are stored, and tells the ids
with its share. Rank 0 compares them with those of the manifests. A difference does not keep a commit from
being made, since the state would be lost; it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.chunkstore.parallel import NiceThreads
from mvc.errors import FormatError
from mvc.ids import ChunkId, split_ids
from mvc.states.assembling import UNCHECKED, ChunkChecker
from mvc.states.cross_check import count_checkable, list_checkers
from mvc.workspace.context import Context, threads_of
from mvc.workspace.trailers import MAX_DISPUTES, Agreement, Dispute

if TYPE_CHECKING:
    from mvc.formats.manifest import Manifest
    from mvc.states.share import CheckPeers, Share
    from mvc.workspace.stored_share import StoredShare


def add_checked(
    context: Context, stored: StoredShare, share: Share, peers: CheckPeers
) -> StoredShare:
    """Return a stored share with the ids of what its rank has checked of other ranks'."""
    if share.check is None:
        return stored
    checker = ChunkChecker(share, peers)
    with closing(NiceThreads(threads_of(context), "mvc-check", context.niceness)) as crew:
        jobs = [crew.submit(checker.hash_chunk, *chunk) for chunk in checker.list_chunks()]
        ids = b"".join([job.result() for job in jobs])
    return replace(stored, checked=ids, check_round=share.check.round)


def compare_checked(
    share: Share, by_rank: Sequence[StoredShare], manifests: Mapping[str, Manifest]
) -> Agreement | None:
    """Compare what ranks have checked with what was stored; None if nothing was checked.

    FormatError: a rank tells of more or fewer chunks than it has to check, or of another round.
    """
    if share.check is None:
        return None
    agreed, disputes = 0, list[Dispute]()
    stored = [
        (path, segment.segment.tensors[0].name, segment.chunks)
        for path, manifest in manifests.items()
        for segment in manifest.segments
    ]
    for array, chunk, checked in _pair_checked(share, by_rank):
        path, tensor, ids = stored[array]
        if checked == ids[chunk]:
            agreed += 1
            continue
        division = share.plan.keepers.divisions[array]
        parts = [division.kept[number] for number, _ in division.find_parts(chunk)]
        keepers = tuple(sorted({part.rank for part in parts}))
        checkers = tuple(sorted({part.checker for part in parts}))
        disputes.append(Dispute(path, tensor, chunk, keepers, checkers))
    if not agreed and not disputes:
        return None
    chunks = count_checkable(share.plan.keepers)
    return Agreement(agreed, chunks, len(disputes), tuple(disputes[:MAX_DISPUTES]))


def _pair_checked(
    share: Share, by_rank: Sequence[StoredShare]
) -> Iterator[tuple[int, int, ChunkId]]:
    """Yield (array, chunk, id) of all that was checked, from what the ranks sent."""
    assert share.check is not None
    number, ids = share.check.round, {}
    for part in by_rank:
        if part.check_round == number:
            ids[part.rank] = iter(split_ids(part.checked))
        elif part.checked or part.check_round >= 0:
            raise FormatError(
                f"rank {part.rank} has checked for commit {part.check_round} of the run, not {number}"
            )
    for array, chunk, rank in list_checkers(share.plan.keepers, number):
        checked = next(ids[rank], None) if rank in ids else UNCHECKED
        if checked is None:
            raise FormatError(f"rank {rank} has checked fewer chunks than it has to")
        if checked != UNCHECKED:
            yield array, chunk, checked
    for rank, rest in ids.items():
        if next(rest, None) is not None:
            raise FormatError(f"rank {rank} has checked more chunks than it has to")
