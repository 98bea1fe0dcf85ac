"""The packs of a remote: what its indexes say, and packs on their way there and back.

Indexes are kept below ``.mvc/remotes``: they never change, so each is fetched once. A pack is
checked against its name before it leaves; ``content`` checks what has come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
from blake3 import blake3

from mvc import fs
from mvc.chunkstore.copies import StoredCopies
from mvc.chunkstore.listing import PACKS, index_key, pack_key
from mvc.chunkstore.parallel import for_each
from mvc.errors import CorruptionError, FormatError
from mvc.formats.pack_index import MAX_INDEX_BYTES, PackIndex, parse_pack_index
from mvc.ids import ID_BYTES, PackId, is_hex_id
from mvc.storage.local import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.progress import ByteProgress
    from mvc.storage.protocol import SharedStorage, Storage

V = TypeVar("V")

_INDEX_THREADS = 16
PART_BYTES = 8 * 2**20
_PART_THREADS = 4
_HASH_BYTES = 4 * 2**20


class RemotePacks:
    """The packs of one remote.

    Args:
        storage: of the remote.
        cache: the folder of its indexes.
        local: where packs may have come from, and so their indexes need not be fetched.
    """

    def __init__(self, storage: SharedStorage, cache: Path, local: Storage) -> None:
        self.storage = storage
        self._cache = LocalStorage(cache)
        self._local = local
        self._indexes: dict[PackId, PackIndex] = {}

    def copies(self, packs: Mapping[PackId, int]) -> StoredCopies:
        """Return all chunks of some packs of the remote, given their lengths."""
        return StoredCopies(self.indexes(packs))

    def indexes(self, packs: Mapping[PackId, int]) -> list[PackIndex]:
        """Return the indexes of some packs of the remote, given their lengths; FormatError if one is missing or wrong."""
        unknown = [pack for pack in packs if pack not in self._indexes]

        def load(pack: PackId, _: None) -> int:
            data = self.read_index(pack, packs[pack])
            self._indexes[pack] = _parse_index(data, pack, packs[pack])
            return 0

        for_each(unknown, lambda: None, load, threads=_INDEX_THREADS)
        return [self._indexes[pack] for pack in packs]

    def read_index(self, pack: PackId, size_bytes: int) -> bytes:
        """Return the index of a pack of the remote, given its length; it is kept from now on."""
        for storage in (self._cache, self._local):
            try:
                data = storage.read(index_key(pack))
                _parse_index(data, pack, size_bytes)
            except (FileNotFoundError, FormatError):
                continue
            return data
        try:
            data = self.storage.read(index_key(pack))
        except FileNotFoundError:
            raise FormatError(f"the remote lacks the index of pack {pack[:12]}") from None
        if len(data) > MAX_INDEX_BYTES:
            raise FormatError(f"the index of pack {pack[:12]} is too long")
        _parse_index(data, pack, size_bytes)
        self._keep_index(pack, data)
        return data

    def _keep_index(self, pack: PackId, data: bytes) -> None:
        with self._cache.create(PACKS) as file:
            file.write([data])
            file.publish(index_key(pack))

    def recall(self, packs: Mapping[PackId, int]) -> dict[PackId, int]:
        """Return those of some packs whose index is here, so that it takes no request to read."""
        here = {info.key for storage in (self._cache, self._local) for info in storage.list(PACKS)}
        return {pack: size for pack, size in packs.items() if index_key(pack) in here}

    def keep_indexes(self, packs: Mapping[PackId, int]) -> None:
        """Keep the indexes of some packs, given their lengths, whatever happens to packs here."""
        self.indexes(packs)
        for pack, size_bytes in packs.items():
            if self._cache.find_size(index_key(pack)) is None:
                self._keep_index(pack, self.read_index(pack, size_bytes))

    def send(self, packs: Sequence[tuple[PackIndex, Path]], progress: ByteProgress = None) -> None:
        """Upload packs, given their files, and then their indexes; each is checked before."""

        def upload(item: tuple[PackIndex, Path], _: None) -> int:
            index, path = item
            if hash_file(path) != index.pack:
                raise CorruptionError(
                    f"pack {index.pack} is damaged: its content does not match its name",
                    hint='run "mvc fsck --data"; nothing damaged is pushed',
                )
            # One that is there whole was sent by a push that was cut off.
            is_there = self.storage.find_size(pack_key(index.pack)) == index.pack_size_bytes
            if not is_there:
                self.storage.upload(pack_key(index.pack), path, progress)
            elif progress is not None:
                progress(index.pack_size_bytes)
            data, key = path.with_suffix(".idx"), index_key(index.pack)
            if not is_there or self.storage.find_size(key) != data.stat().st_size:
                self.storage.upload(key, data)
            return 0

        for_each(packs, lambda: None, upload, threads=_PART_THREADS)
        self._indexes.update((index.pack, index) for index, _ in packs)

    def fetch(self, index: PackIndex, target: LocalStorage, progress: ByteProgress = None) -> None:
        """Download a whole pack and its index, to be checked there."""
        folder = target.root / PACKS
        fs.make_dirs(folder)
        size_bytes = index.pack_size_bytes
        with fs.DurableFile(folder) as file:

            def copy(at: int, _: None) -> int:
                length = min(PART_BYTES, size_bytes - at)
                data = read_there(self.storage, pack_key(index.pack), at, length)
                file.write_at(data, at)
                return length

            parts = range(0, size_bytes, PART_BYTES)
            for_each(parts, lambda: None, copy, threads=_PART_THREADS, progress=progress)
            file.publish(
                target.root / pack_key(index.pack), expected_bytes=size_bytes, read_only=True
            )
        with target.create(PACKS) as copied:
            copied.write([self.read_index(index.pack, size_bytes)])
            copied.publish(index_key(index.pack))

    def forget(self, pack: PackId) -> None:
        """Forget the index of a pack, which may have been a lie."""
        self._indexes.pop(pack, None)
        self._cache.delete(index_key(pack))


def read_there(storage: SharedStorage, key: str, offset: int, size_bytes: int) -> memoryview:
    """Return a run of an object that the root of a remote names; FormatError if it is not there."""
    try:
        return memoryview(storage.read_ranges(key, [(offset, size_bytes)])[0])
    except FileNotFoundError:
        raise FormatError(f"the remote lacks {key}, which its root names") from None


def read_json(path: Path, kind: type[V]) -> V | None:
    """Return what is remembered in a file, or None if there is nothing, or nothing of that kind."""
    try:
        with fs.open_file(path) as file:
            return msgspec.json.decode(file.read(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def read_sizes(path: Path) -> dict[PackId, int] | None:
    """Return the lengths of packs that are remembered in a file, or None if none are."""
    sizes = read_json(path, dict[str, int])
    if sizes is None:
        return None
    return {PackId(name): size for name, size in sizes.items() if is_hex_id(name, 2 * ID_BYTES)}


def hash_file(path: Path) -> str:
    """Return the BLAKE3-256 of a file, in hex."""
    hasher, buffer, at = blake3(), memoryview(bytearray(_HASH_BYTES)), 0
    with fs.open_file(path) as file:
        while count := fs.read_at(file.fileno(), buffer, at):
            hasher.update(buffer[:count])
            at += count
    return hasher.hexdigest()


def _parse_index(data: bytes, pack: PackId, size_bytes: int) -> PackIndex:
    index = parse_pack_index(data)
    if index.pack != pack or index.pack_size_bytes != size_bytes:
        raise FormatError(f"the index of pack {pack[:12]} is that of another pack")
    return index
