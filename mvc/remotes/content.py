"""Chunks on their way to a remote and back.

To send: packs that are wanted whole go as they are, of others the wanted records go in new
packs, and with them those of short packs of the remote, once there are many. To receive: packs and records
the other way round, into a folder of its own (``arrival``).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from blake3 import blake3

from mvc.chunkstore.chains import ReadSlot, check_header
from mvc.chunkstore.listing import pack_key
from mvc.chunkstore.pack_writer import carry_record
from mvc.chunkstore.parallel import for_each
from mvc.chunkstore.rewriter import carry_rows, check_pack, choose_rows, group_records
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.transfer_plan import TransferPlan, plan_transfer
from mvc.errors import FormatError, MvcError, NotFoundError
from mvc.progress import announce, current_progress, report
from mvc.remotes.arrival import Arrival
from mvc.remotes.history import choose_crowd, list_chunks
from mvc.remotes.released import find_gaps, take_released
from mvc.remotes.remote_packs import RemotePacks, read_there
from mvc.storage.local import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.chunkstore.copies import Ids
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.formats.pack import PackRecord
    from mvc.formats.pack_index import PackIndex
    from mvc.history.transfer import Entry
    from mvc.ids import ChunkId, PackId
    from mvc.remotes.remote import Remote
    from mvc.remotes.root import Listing, Root

_GROUP_BYTES = 8 * 2**20
_GAP_BYTES = 2**16  # neighbours this close are read as one
_FETCH_THREADS = 4
_READS_AHEAD = 2 * _FETCH_THREADS
_SHORT_BYTES = 2 * 2**20
_JOINED_BYTES = 64 * 2**20
_JOIN_THREADS = 8
_FETCH_PACKS = 2
"""So many packs come at once, each in parts: one is made durable while the other comes."""


def send_content(
    there: Remote,
    packs: Mapping[PackId, int],
    wanted: Ids,
    scratch: Path,
    *,
    accept: Callable[[Sequence[ChunkId]], None],
    patience: int | None = 1,
) -> tuple[dict[PackId, int], frozenset[PackId]]:
    """Upload the packs that a remote lacks to have some chunks, each named once.

    ``packs`` are what the remote has, with lengths, and packs that are made to be sent go into ``scratch``.
    ``accept`` is called first with the chunks that neither side has, and raises what they mean.
    ``patience`` is as of ``choose_crowd``; with None no packs of the remote are joined.

    Returns:
        The lengths of the new packs, and which packs of the remote they take the place of.
    """
    store, remote, folder = there.context.here, there.packs, there.context.store_folder
    plan = plan_transfer(store.copies(), remote.copies(packs), wanted)
    accept(plan.missing)
    crowd = _choose_crowd(packs, patience) if patience and plan.size_bytes else {}
    announce(plan.size_bytes + sum(crowd.values()))
    made, gone = _write_packs(store, plan, remote, packs, crowd, scratch)
    files = [(index, folder / pack_key(index.pack)) for index in plan.whole]
    files += [(index, scratch / pack_key(index.pack)) for index in made]
    remote.send(files, current_progress())
    sent = {index.pack: index.pack_size_bytes for index, _ in files}
    return sent, frozenset(gone - sent.keys())


def _choose_crowd(packs: Mapping[PackId, int], patience: int) -> dict[PackId, int]:
    """Return the packs of a remote to join now, the shortest first, no more than memory has room for."""
    chosen: dict[PackId, int] = {}
    left = _JOINED_BYTES
    crowd = choose_crowd(packs, _SHORT_BYTES, patience=patience)
    for pack in sorted(crowd, key=lambda pack: (packs[pack], pack)):
        left -= packs[pack]
        if left < 0:
            break
        chosen[pack] = packs[pack]
    return chosen


def _write_packs(
    store: ChunkStore,
    plan: TransferPlan,
    remote: RemotePacks,
    packs: Mapping[PackId, int],
    crowd: Mapping[PackId, int],
    scratch: Path,
) -> tuple[list[PackIndex], set[PackId]]:
    """Write records that travel alone, and those of a crowd of packs of the remote, into new packs.

    Returned are the indexes of the new packs, and which of the crowd they hold.
    """
    if not (plan.parts or crowd):
        return [], set()
    made = ChunkStore(LocalStorage(scratch), threads=1)
    gone: set[PackId] = set()
    with made.rewriter() as writer:
        for index, rows in plan.parts:
            check_pack(store.storage, index, ReadSlot(), None)
            carry_rows(writer, store.storage, index, rows)
        data_of = _read_sound(store, remote, crowd)
        inside = [index for index in remote.indexes(crowd) if index.pack in data_of]
        outside = [index for index in remote.indexes(packs) if index.pack not in crowd]
        for index, chosen in choose_rows(outside, inside):
            records = sorted(
                (index.record(row) for row in chosen), key=lambda record: record.offset
            )
            if records:
                _carry_group(writer, records, data_of[index.pack][records[0].offset :])
            gone.add(index.pack)
    return list(made.copies().indexes), gone


def _read_sound(
    store: ChunkStore, remote: RemotePacks, packs: Mapping[PackId, int]
) -> dict[PackId, memoryview]:
    """Return the bytes of short packs of a remote, from here if they are here too.

    One that is damaged, or not what its index says, is left out: it stays alone, for fsck to report.
    """
    data_of: dict[PackId, memoryview] = {}

    def read(index: PackIndex, _: None) -> int:
        with contextlib.suppress(FormatError):
            try:
                data = memoryview(store.storage.read(pack_key(index.pack)))
            except FileNotFoundError:
                key = pack_key(index.pack)
                data = read_there(remote.storage, key, 0, index.pack_size_bytes)
            for record in map(index.record, range(len(index))):
                check_header(data[record.offset : record.end], record)
            if blake3(data).hexdigest() == index.pack:
                data_of[index.pack] = data
        return 0

    for_each(remote.indexes(packs), lambda: None, read, threads=_JOIN_THREADS)
    return data_of


def bring_content(there: Remote, root: Root, listing: Listing, entries: Sequence[Entry]) -> int:
    """Bring the content that some objects name and that is not here; return the bytes that came.

    The sweep lock is held, the root was just read, and the objects are here.

    Raises:
        NotFoundError: some of it is not there, and was not released.
        FormatError: what came is not what it was asked for; nothing of it is kept.
    """
    context = there.context
    wanted = list_chunks(context, entries)
    if not len(wanted):
        return 0

    def accept(missing: Sequence[ChunkId]) -> None:
        take_released(context, there, root, listing, find_gaps(context, entries, missing))

    return receive_content(there, listing.packs, wanted, accept=accept)


def receive_content(
    there: Remote,
    packs: Mapping[PackId, int],
    wanted: Ids,
    *,
    accept: Callable[[Sequence[ChunkId]], None] = lambda _: None,
) -> int:
    """Download chunks that are not here, as of ``send_content``; return the bytes that came.

    The sweep lock is held. FormatError: what came is not what it was asked for; nothing of it is kept.
    """
    store, remote = there.context.here, there.packs
    with Arrival(there.folder / "incoming", store, remote) as arrival:
        plan = plan_transfer(remote.copies(packs), arrival.copies(), wanted)
        with _doubting(remote, packs, NotFoundError):
            accept(plan.missing)
        announce(plan.size_bytes)
        used = [*plan.whole, *(index for index, _ in plan.parts)]
        with _doubting(remote, [index.pack for index in used], FormatError):
            _fetch_parts(remote, plan, arrival.landing)
            whole, progress = arrival.order(plan), current_progress()

            def land(index: PackIndex, _: None) -> int:
                remote.fetch(index, arrival.landing, progress)
                arrival.landed(index)
                return 0

            for_each(whole, lambda: None, land, threads=_FETCH_PACKS)
            arrival.move(there.context.store_folder)
    store.refresh()
    return plan.size_bytes


@contextlib.contextmanager
def _doubting(
    remote: RemotePacks, packs: Iterable[PackId], failure: type[MvcError]
) -> Iterator[None]:
    """Forget the indexes of some packs after a failure: it may be they that lie."""
    try:
        yield
    except failure:
        for pack in packs:
            remote.forget(pack)
        raise


def _fetch_parts(remote: RemotePacks, plan: TransferPlan, landing: LocalStorage) -> None:
    """Fetch the records that travel alone into new packs, in order, some reads ahead."""
    if not plan.parts:
        return
    groups = (
        (index, group)
        for index, rows in plan.parts
        for group in group_records(map(index.record, rows), _GROUP_BYTES, _GAP_BYTES)
    )

    def read(index: PackIndex, group: Sequence[PackRecord]) -> memoryview:
        size_bytes = group[-1].end - group[0].offset
        return read_there(remote.storage, pack_key(index.pack), group[0].offset, size_bytes)

    with (
        ThreadPoolExecutor(_FETCH_THREADS, "mvc-fetch") as crew,
        ChunkStore(landing, threads=1).rewriter() as writer,
    ):
        waiting: deque[tuple[Sequence[PackRecord], Future[memoryview]]] = deque()
        while (item := next(groups, None)) or waiting:
            if item is not None:
                waiting.append((item[1], crew.submit(read, *item)))
            if item is None or len(waiting) > _READS_AHEAD:
                group, data = waiting.popleft()
                _carry_group(writer, group, data.result())
                report(sum(record.end - record.offset for record in group))


def _carry_group(writer: ChunkWriter, group: Sequence[PackRecord], data: memoryview) -> None:
    start = group[0].offset
    for record in group:
        part = data[record.offset - start : record.end - start]
        check_header(part, record)
        writer.carry([carry_record(record, part)])
