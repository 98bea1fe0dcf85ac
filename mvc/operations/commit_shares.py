"""The commit of a sharded run: every rank stores its chunks, one of them makes the commit.

Manifests do not know ranks: they list the chunks of whole tensors, as if one process had stored them.
Each rank hashes, encodes and writes the chunks that it owns, durably, and holds the sweep lock until the
commit is made, since nothing names its chunks before. Only ids travel to the rank that commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import islice
from typing import TYPE_CHECKING

from mvc.chunkstore.values import ChunkSpan, WriteCounts
from mvc.errors import ConflictError, FormatError, StorageError
from mvc.formats.manifest import Manifest, StoredSegment, cut_sizes
from mvc.formats.manifest_lines import encode_manifest
from mvc.history.values import MODE_FILE, TreeEntry
from mvc.ids import ChunkId, PackId, split_ids
from mvc.numbers.figures import Health
from mvc.operations.aftercare import keeps_up, tidy_up
from mvc.operations.check_shares import add_checked, compare_checked
from mvc.operations.commit_state import (
    CommitRequest,
    commit_files,
    find_place,
    store_state_file,
)
from mvc.states.assembling import open_files
from mvc.states.document import STATE_FILE
from mvc.states.layout import RANKS_FOLDER
from mvc.states.outline import check_sizes
from mvc.states.share import CheckPeers, Share
from mvc.states.share import open_share as lay_out_share
from mvc.states.state import measure_tensors, open_file, open_image
from mvc.workspace.bases import Hint, OwnMasters, Relatives, masters_first
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.files import Cutter, cut_segment
from mvc.workspace.measuring import SessionHealth
from mvc.workspace.stored_share import StoredShare, list_ids

if TYPE_CHECKING:
    from mvc.chunkstore.relatives import DeltaMode
    from mvc.chunkstore.store import ChunkStore
    from mvc.formats.layout import FileLayout, Segment
    from mvc.sources import JoinedSource
    from mvc.states.files import StateFile
    from mvc.workspace.commits import CommitResult

_LOOK_AGAIN_S = (0.0, 0.1, 0.5, 2.0, 8.0, 30.0)
FIRST = 0
"""The rank that stores headers and texts, and makes the commit."""


def open_share(
    context: Context, image: memoryview, form: bytes, previous: Share | None = None
) -> Share:
    """Return what a rank of a sharded run keeps of its state.

    Args:
        image: the bytes of its layout, copied (see ``mvc.training.layout_state``).
        form: that of the layout.
        previous: the share of an earlier commit; it saves planning if the form is the same.

    Raises:
        FormatError: not such a form.
    """
    return lay_out_share(image, form, context.chunk_bytes, previous)


@contextmanager
def store_share(
    context: Context,
    share: Share,
    peers: CheckPeers,
    *,
    branch: str | None = None,
    delta: bool | None = None,
    send: bool = False,
) -> Iterator[StoredShare]:
    """Store the chunks that a rank owns, for ``commit_shares``; usable as a context manager.

    They are durable when its block begins, and safe from ``gc`` until it ends: keep it open until
    the commit is made.

    Args:
        share: of this rank.
        peers: the other ranks, for the rest of chunks that straddle ranks; ``fetch_checked`` is only
            asked if the share has a ``check``.
        branch: whose last commit differences are taken from; defaults to the current one.
        delta: as for ``add``.
        send: whether they are on the store (``mvc.store``) too when the block begins: for a rank whose
            repository is not that of rank 0.

    Raises:
        StorageError: another rank is gone, the disk is full, or the store cannot be reached.
        UsageError: they are to be sent, and there is no store.
    """
    from mvc.operations import send_share  # noqa: PLC0415  brings what travels, commits need none

    with context.history.no_sweep():
        place = find_place(context, branch, None)
        tip = send_share.follow_store(context, branch) if send else place.tip
        base = context.history.read_tree(tip) if tip is not None else {}
        mode = context.delta_mode(insist=delta)
        writer = _ShareWriter(context, share, open_files(share, peers), base)
        stored = add_checked(context, writer.store(mode), share, peers)
        if send:
            packs = send_share.send_share(context, list_ids(stored), writer.packs)
            stored = replace(stored, packs=packs)
        yield stored
    newest = tip if send else find_place(context, branch, None).tip
    if newest is not None:  # the last rank to leave is alone, and none is before
        tidy_up(context, newest)


class _ShareWriter:
    """Stores the share of one rank in one session."""

    def __init__(
        self,
        context: Context,
        share: Share,
        files: Mapping[str, JoinedSource],
        base: Mapping[str, TreeEntry],
    ) -> None:
        self._context, self._share, self._files, self._base = context, share, files, base
        self._masters = OwnMasters(share, files, context.chunk_bytes)
        self._ids: dict[int, list[ChunkId]] = {}
        self.packs: list[PackId] = []

    def store(self, mode: DeltaMode) -> StoredShare:
        """Store everything; return what the committing rank needs."""
        context, share, gaps = self._context, self._share, list[ChunkId]()
        layouts = {path: layout for path, _, layout in share.plan.layouts}
        with context.here.writer(mode, measure=True) as writer:
            relatives = Relatives(context, writer, self._base, self._files)
            health = SessionHealth(context, writer)
            cutter = Cutter(writer, context.chunk_bytes, relatives, health)
            own, own_health = {}, {}
            for file in _open_own(share):
                own[file.path], is_measured = store_state_file(cutter, file)
                if is_measured:
                    own_health[file.path] = health.total
            if share.rank == FIRST:
                for path, layout in layouts.items():
                    gaps += cutter.store_gaps(self._files[path], layout)
            totals = {
                path: self._store_file(cutter, path, layouts[path])
                for path in masters_first(list(layouts), layouts)
            }
        health.keep()
        self.packs = writer.packs
        ids = (chunk for array in sorted(self._ids) for chunk in self._ids[array])
        return StoredShare(
            share.rank,
            share.digest,
            context.chunk_bytes,
            b"".join([*gaps, *ids]),
            tuple(totals[path] for path in layouts),
            own,
            writer.counts,
            own_health,
        )

    def _store_file(self, cutter: Cutter, path: str, layout: FileLayout) -> Health:
        """Store the chunks of a file that this rank owns; return their health."""
        assert cutter.relatives is not None
        assert cutter.health is not None
        first = self._share.plan.first_arrays[path]
        arrays = {segment: first + at for at, segment in enumerate(layout.segments)}
        hints = cutter.relatives.find_hints(path, layout)
        early, late = cutter.relatives.split(layout.segments)
        cutter.health.begin()
        self._store_arrays(cutter, path, {segment: arrays[segment] for segment in early}, hints)
        self._store_arrays(cutter, path, {segment: arrays[segment] for segment in late}, hints)
        return cutter.health.total

    def _store_arrays(
        self,
        cutter: Cutter,
        path: str,
        arrays: Mapping[Segment, int],
        hints: Mapping[Segment, Hint],
    ) -> None:
        """Store what this rank owns of some tensors of a file, which may be roundings of earlier ones."""
        assert cutter.health is not None
        spans: list[ChunkSpan] = []
        counts: dict[int, list[int]] = {}
        for segment, array in arrays.items():
            owned = counts[array] = self._share.plan.keepers.owned(array, self._share.rank)
            if owned:
                chunks = list(cut_segment(segment, cutter.chunk_bytes, hints.get(segment)))
                mine = ((number, chunks[number]) for number in owned)
                spans += self._masters.offer(segment, array, mine, cutter.writer)
        source = self._files[path]
        written = cutter.writer.add(source, spans)
        cutter.health.note(source, spans, written)
        ids = iter(written)
        for segment, array in arrays.items():
            self._ids[array] = list(islice(ids, len(counts[array])))
            self._masters.note(
                path, segment, array, dict(zip(counts[array], self._ids[array], strict=True))
            )


def _open_own(share: Share) -> list[StateFile]:
    """Return the files that a rank has of its own; of the first, those in the state, and its text."""
    files = share.own_files()
    if share.rank == FIRST:
        opened = [open_file(path, data) for path, data in files.items()]
        layouts = [(path, layout) for path, _, layout in share.plan.layouts]
        layouts += [(file.path, file.layout) for file in opened]
        check_sizes(bytes(files[STATE_FILE]), measure_tensors(layouts))
        return opened
    if not files:
        return []
    folder = f"{RANKS_FOLDER}/{share.rank}/"
    opened = open_image({path.removeprefix(folder): data for path, data in files.items()})
    return [replace(file, path=folder + file.path) for file in opened]


@keeps_up
@holds_sweep_lock
def commit_shares(
    context: Context, share: Share, stored: Sequence[StoredShare], request: CommitRequest
) -> CommitResult:
    """Commit what all ranks have stored, as ``commit_state`` would commit the whole.

    Where ranks have checked what others keep, ``agreement`` of the result says what came of it; a
    difference does not keep the commit from being made.

    Args:
        share: that of rank 0, which calls this.
        stored: what every rank's ``store_share`` gave, while their blocks are open.
        request: what the commit says and where it goes.

    Raises:
        FormatError: not the shares of all ranks.
        StorageError: what a rank has stored is neither here nor on the store.
        ConflictError: they are of different states; or as for ``commit_state``.
        GateError: a gate refuses the state.
    """
    by_rank = _check_shares(context, share, stored)
    manifests = _join_manifests(context, share, by_rank)
    own = {path: data for part in by_rank for path, data in part.files.items()}
    own_health = {path: health for part in by_rank for path, health in part.own_health.items()}
    agreement = compare_checked(share, by_rank, manifests)
    _check_stored(context, by_rank)

    def write(*_: object) -> tuple[dict[str, TreeEntry], WriteCounts]:
        data = {path: encode_manifest(manifest) for path, manifest in manifests.items()} | own
        blobs = {path: context.history.write_blob(content) for path, content in data.items()}
        totals = zip(manifests, zip(*(part.health for part in by_rank), strict=True), strict=True)
        healths = {path: sum(parts, Health()) for path, parts in totals} | own_health
        context.kept.keep_file_health(
            {blobs[path]: health for path, health in healths.items() if path in blobs}
        )
        entries = {path: TreeEntry(MODE_FILE, blob) for path, blob in blobs.items()}
        names = [field.name for field in fields(WriteCounts)]
        counts = {name: sum(getattr(part.counts, name) for part in by_rank) for name in names}
        return entries, WriteCounts(**counts)

    result = commit_files(context, request, [*manifests, *own], write, agreement)
    elsewhere_bytes = sum(part.counts.stored_bytes for part in by_rank if part.packs)
    return replace(result, written_bytes=result.written_bytes + elsewhere_bytes)


def _check_shares(
    context: Context, share: Share, stored: Sequence[StoredShare]
) -> list[StoredShare]:
    """Return the shares in the order of their ranks, after checking that they fit together."""
    by_rank = sorted(stored, key=lambda part: part.rank)
    if [part.rank for part in by_rank] != list(range(share.ranks)):
        raise FormatError(f"not the shares of {share.ranks} ranks, one of each")
    for part in by_rank:
        if part.digest != share.digest:
            raise ConflictError(
                f"rank {part.rank} holds another state than rank {share.rank}: other tensors, shapes or "
                "shards",
                hint="every rank of a run has the same parts, and trains the same model",
            )
        if part.chunk_bytes != context.chunk_bytes:
            raise ConflictError(
                f"rank {part.rank} cuts tensors every {part.chunk_bytes:,} bytes, and this one every "
                f"{context.chunk_bytes:,}",
                hint="mvc.chunkbytes has to be the same everywhere",
            )
        if len(part.health) != len(share.plan.layouts):
            raise FormatError(f"the stored share of rank {part.rank} has other files than its form")
    return by_rank


def _check_stored(context: Context, shares: Sequence[StoredShare]) -> None:
    """Check that all chunks are here, or on the store if their rank has sent them."""
    store = context.here
    for part in shares:
        ids = () if part.packs else list(split_ids(list_ids(part).tobytes()))
        if not (store.contains_all(ids) or _come_to_sight(store, ids)):
            raise StorageError(
                f"rank {part.rank} has stored chunks that are not in this repository",
                hint="all ranks need a folder that all of them see, or a common store",
            )
    if any(part.packs for part in shares):
        from mvc.operations.send_share import take_brought  # noqa: PLC0415  few runs need it

        take_brought(context, shares)


def _come_to_sight(store: ChunkStore, ids: Sequence[ChunkId]) -> bool:
    """Look again for chunks that other ranks have stored: NFS may show new files late."""
    for pause_s in _LOOK_AGAIN_S:
        time.sleep(pause_s)
        if store.refresh() and store.contains_all(ids):
            return True
    return False


def _join_manifests(
    context: Context, share: Share, by_rank: Sequence[StoredShare]
) -> dict[str, Manifest]:
    """Return the manifests of the state's files, of the ids that the ranks sent."""
    ids = [iter(split_ids(part.ids)) for part in by_rank]
    gaps = [
        tuple(islice(ids[FIRST], len(cut_sizes(len(head), context.chunk_bytes))))
        for _, head, _ in share.plan.layouts
    ]
    owners = iter(share.plan.keepers.owners)
    manifests = {}
    try:
        for (path, _, layout), around in zip(share.plan.layouts, gaps, strict=True):
            segments = tuple(
                StoredSegment(segment, tuple(next(ids[rank]) for rank in next(owners).tolist()))
                for segment in layout.segments
            )
            size_bytes = layout.size_bytes
            manifests[path] = Manifest(
                layout.format, size_bytes, context.chunk_bytes, around, segments
            )
    except (StopIteration, RuntimeError):  # the first becomes the second within a generator
        raise FormatError("a rank has stored fewer chunks than it owns") from None
    if any(next(rest, None) is not None for rest in ids):
        raise FormatError("a rank has stored more chunks than it owns")
    return manifests
