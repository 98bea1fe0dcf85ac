"""Chunks on their way to a remote and back.

To send: packs of which everything is wanted go as they are, of others the wanted records go in new
packs. To receive: the same the other way round, into a folder of its own. There every chunk is decoded
and hashed, with what is here already for the chunks that others are based on; only then do the packs
move among those of the repository. What a kill leaves in that folder is used by the next attempt.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mvc import fs
from mvc.chunkstore.catalog import PackCatalog
from mvc.chunkstore.chains import ReadSlot, check_header
from mvc.chunkstore.check import check_packs
from mvc.chunkstore.listing import PACKS, PackListing, index_key, pack_key
from mvc.chunkstore.pack_writer import carry_record
from mvc.chunkstore.parallel import for_each
from mvc.chunkstore.reader import ChunkReader
from mvc.chunkstore.rewriter import carry_rows, check_pack
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.transfer_plan import TransferPlan, plan_transfer
from mvc.errors import CorruptionError, FormatError, NotFoundError
from mvc.progress import announce
from mvc.remotes.remote_packs import read_there
from mvc.storage.joined import JoinedStorage
from mvc.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mvc.chunkstore.copies import Ids
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.formats.pack import PackRecord
    from mvc.formats.pack_index import PackIndex
    from mvc.ids import PackId
    from mvc.progress import ByteProgress
    from mvc.remotes.remote_packs import RemotePacks

_GROUP_BYTES = 8 * 2**20
_GAP_BYTES = 2**16  # neighbours this close are read as one
_FETCH_THREADS = 4


def send_content(
    store: ChunkStore,
    folder: Path,
    remote: RemotePacks,
    packs: Mapping[PackId, int],
    wanted: Ids,
    scratch: Path,
    progress: ByteProgress = None,
) -> dict[PackId, int]:
    """Upload the packs that a remote lacks to have some chunks; return their lengths.

    Args:
        store: where the chunks are.
        folder: of that store.
        remote: where they are to be.
        packs: what the remote has, with lengths.
        wanted: ids of the chunks, each once.
        scratch: a folder for packs that are made to be sent.
        progress: called with bytes sent.

    Raises:
        NotFoundError: neither side has a chunk.
    """
    plan = plan_transfer(store.copies(), remote.copies(packs), wanted)
    if plan.missing:
        raise NotFoundError(
            f"chunk {plan.missing[0].hex()[:12]} is neither here nor on the remote",
            hint="its content was released, or is on another remote; fetch it first",
        )
    announce(progress, plan.size_bytes)
    made = _write_parts(store, plan, scratch)
    files = [(index, folder / pack_key(index.pack)) for index in plan.whole]
    files += [(index, scratch / pack_key(index.pack)) for index in made]
    remote.send(files, progress)
    return {index.pack: index.pack_size_bytes for index, _ in files}


def _write_parts(store: ChunkStore, plan: TransferPlan, scratch: Path) -> list[PackIndex]:
    """Write the records that travel alone into new packs; return their indexes."""
    if not plan.parts:
        return []
    made = ChunkStore(LocalStorage(scratch), threads=1)
    with made.rewriter() as writer:
        for index, rows in plan.parts:
            check_pack(store.storage, index, ReadSlot(), None)
            carry_rows(writer, store.storage, index, rows)
    return list(made.copies().indexes)


def receive_content(
    store: ChunkStore,
    folder: Path,
    remote: RemotePacks,
    packs: Mapping[PackId, int],
    wanted: Ids,
    incoming: Path,
    progress: ByteProgress = None,
) -> int:
    """Download chunks that the store lacks; return the bytes that came.

    Args:
        store: where the chunks are to be; its sweep lock is held.
        folder: of that store.
        remote: where they are.
        packs: what the remote has, with lengths.
        wanted: ids of the chunks, each once.
        incoming: the folder of what has come and is not verified yet.
        progress: called with bytes that came.

    Raises:
        FormatError: what came is not what it was asked for; nothing of it is kept.
        NotFoundError: neither side has a chunk.
    """
    here = store.copies()
    plan = plan_transfer(remote.copies(packs), here, wanted)
    if plan.missing:
        raise NotFoundError(f"chunk {plan.missing[0].hex()[:12]} is not on the remote")
    if not plan.size_bytes:
        return 0
    announce(progress, plan.size_bytes)
    with _incoming(incoming) as landing:
        for index in plan.whole:
            if landing.find_size(index_key(index.pack)) is None:
                remote.fetch(index, landing, progress)
        _fetch_parts(remote, plan, landing, progress)
        _verify(store, landing)
        _move(landing, folder)
    store.refresh()
    return plan.size_bytes


@contextmanager
def _incoming(folder: Path) -> Iterator[LocalStorage]:
    """Yield the storage of what has come; it is emptied at the end, but not by a kill."""
    fs.make_dirs(folder)
    with fs.exclusive_lock(folder / "lock"):
        try:
            yield LocalStorage(folder)
        except FormatError:
            shutil.rmtree(folder / PACKS, ignore_errors=True)
            raise
        shutil.rmtree(folder / PACKS, ignore_errors=True)


def _fetch_parts(
    remote: RemotePacks, plan: TransferPlan, landing: LocalStorage, progress: ByteProgress
) -> None:
    """Fetch the records that travel alone into new packs."""
    if not plan.parts:
        return
    with ChunkStore(landing, threads=1).rewriter() as writer:
        for index, rows in plan.parts:
            _fetch_rows(remote, index, rows, writer, progress)


def _fetch_rows(
    remote: RemotePacks,
    index: PackIndex,
    rows: Sequence[int],
    writer: ChunkWriter,
    progress: ByteProgress,
) -> None:
    groups = list(_group([index.record(row) for row in rows]))
    for at in range(0, len(groups), _FETCH_THREADS):
        found: dict[int, memoryview] = {}

        def fetch(
            number: int, _: None, *, at: int = at, found: dict[int, memoryview] = found
        ) -> int:
            first, last = groups[at + number][0], groups[at + number][-1]
            size_bytes = last.end - first.offset
            key = pack_key(index.pack)
            found[number] = read_there(remote.storage, key, first.offset, size_bytes)
            return size_bytes

        some = groups[at : at + _FETCH_THREADS]
        for_each(range(len(some)), lambda: None, fetch, threads=_FETCH_THREADS, progress=progress)
        for number, group in enumerate(some):
            _carry_group(writer, group, found[number])


def _group(records: Sequence[PackRecord]) -> Iterator[list[PackRecord]]:
    """Yield neighbours in a pack that are read at once."""
    group: list[PackRecord] = []
    for record in records:
        if group and (
            record.offset - group[-1].end > _GAP_BYTES
            or record.end - group[0].offset > _GROUP_BYTES
        ):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _carry_group(writer: ChunkWriter, group: Sequence[PackRecord], data: memoryview) -> None:
    start = group[0].offset
    for record in group:
        part = data[record.offset - start : record.end - start]
        check_header(part, record)
        writer.carry([carry_record(record, part)])


def _verify(store: ChunkStore, landing: LocalStorage) -> None:
    """Decode and hash every chunk that has come."""
    reader = ChunkReader(PackCatalog(JoinedStorage([landing, store.storage])))
    listing = PackListing(landing)
    for problem in check_packs(reader, listing, data=True, threads=store.threads):
        raise CorruptionError(
            f"the remote sent damaged content: pack {problem.pack[:12]}: {problem.detail}",
            hint="nothing of it was kept; try another remote, or run fsck on this one",
        )


def _move(landing: LocalStorage, folder: Path) -> None:
    """Move verified packs among those of the repository: packs, durably, then indexes."""
    listing = PackListing(landing)
    fs.make_dirs(folder / PACKS)
    for key in (pack_key, index_key):
        for pack in listing.packs:
            fs.replace_staged(landing.root / key(pack), folder / key(pack))
        fs.fsync_dir(folder / PACKS)
