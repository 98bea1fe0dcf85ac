"""What can be saved of a damaged pack: its sound chunks go into a new one, the rest is set aside.

A pack that is damaged somewhere still counts as holding all of its chunks, so that a lost chunk
would never be stored again. Salvaging ends that: afterwards what is lost is missing, and adding the
same file again stores it. Nothing is thrown away: the damaged file lies under ``damaged/``.

    copy aside, durable ──► write the sound chunks into a new pack ──► publish ──► remove the old

A crash leaves the old pack, or both, or (where the new pack must take the old one's very name)
the copy alone, from which the next attempt goes on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.chunkstore.catalog import (
    delete_pack,
    index_key,
    pack_key,
    publish_index,
    read_index,
    scan_stored_pack,
)
from mvc.chunkstore.chains import LostBaseError, ReadSlot
from mvc.chunkstore.pack_writer import OpenPack, carry_record
from mvc.errors import FormatError
from mvc.formats.pack_index import encode_pack_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.chunkstore.reader import ChunkReader
    from mvc.formats.pack import PackRecord
    from mvc.ids import PackId
    from mvc.storage.protocol import Storage

ASIDE = "damaged/"
_COPY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Salvage:
    """What became of a damaged pack.

    Attributes:
        pack: which one.
        kept: chunks that are now in a new pack.
        lost: chunks that are known to have been in it and could not be read.
    """

    pack: PackId
    kept: int
    lost: int


def aside_key(pack: PackId) -> str:
    """Return where a damaged pack is set aside."""
    return f"{ASIDE}{pack}.pack"


def salvage_pack(reader: ChunkReader, pack: PackId) -> Salvage:
    """Move the sound chunks of a damaged pack into a new one and set the old one aside.

    Raises:
        UnsupportedError: a chunk in an encoding of a newer mvc, which cannot be judged here.
        StorageError: the machine failed; nothing is lost.
    """
    storage = reader.storage
    is_there = _set_aside(storage, pack)
    source = pack_key(pack) if is_there else aside_key(pack)
    records = _find_records(storage, pack, source)
    kept = 0
    with contextlib.ExitStack() as stack:
        fresh: OpenPack | None = None
        for record, data in _read_sound(reader, source, records):
            if fresh is None:
                fresh = OpenPack(storage)
                stack.callback(fresh.pending.abort)
            fresh.append([carry_record(record, data)])
            kept += 1
        if fresh is None:
            delete_pack(storage, pack)
        else:
            _replace(storage, pack, fresh)
    return Salvage(pack, kept, len(records) - kept)


def _set_aside(storage: Storage, pack: PackId) -> bool:
    """Copy a pack, durably, before anything is removed; False if there is none to copy."""
    size_bytes = storage.find_size(pack_key(pack))
    if size_bytes is None:
        return False
    with storage.create(ASIDE) as file:
        for offset in range(0, size_bytes, _COPY_BYTES):
            block = bytearray(min(_COPY_BYTES, size_bytes - offset))
            storage.read_into(pack_key(pack), offset, memoryview(block))
            file.write([block])
        file.publish(aside_key(pack))
    return True


def _find_records(storage: Storage, pack: PackId, source: str) -> list[PackRecord]:
    """Return what the pack is known to hold: by its own record headers, and by its index."""
    found: dict[int, PackRecord] = {}
    size_bytes = storage.find_size(source)
    if size_bytes is None:
        return []
    with contextlib.suppress(FormatError):  # from the first damaged header on
        for record in scan_stored_pack(storage, pack, size_bytes, key=source):
            found[record.offset] = record
    with contextlib.suppress(FormatError, FileNotFoundError):
        index = read_index(storage, pack, storage.find_size(index_key(pack)) or 0)
        for record in index.records():
            found.setdefault(record.offset, record)
    return [found[offset] for offset in sorted(found)]


def _read_sound(
    reader: ChunkReader, source: str, records: list[PackRecord]
) -> Iterator[tuple[PackRecord, memoryview]]:
    slot = ReadSlot()
    for record in records:
        data = slot.buffer("stored", record.end - record.offset)
        try:
            reader.storage.read_into(source, record.offset, data)
            reader.decode_record(data, record, slot)
        except LostBaseError:
            pass  # only when its base is stored again can it be told whether this is sound
        except FormatError:
            continue
        yield record, data


def _replace(storage: Storage, pack: PackId, fresh: OpenPack) -> None:
    index = fresh.seal()
    if index.pack == pack:  # only its header or footer were damaged
        storage.delete(pack_key(pack))  # its index stays: it tells the next attempt what is missing
    fresh.pending.publish(pack_key(index.pack))
    storage.delete(index_key(index.pack))  # a damaged one of the same length would stay
    publish_index(storage, index.pack, encode_pack_index(index))
    if index.pack != pack:
        delete_pack(storage, pack)
