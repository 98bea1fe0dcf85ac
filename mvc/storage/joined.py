"""Two storages seen as one, to be read: what has just come, before it is trusted, and what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mvc.errors import UsageError
from mvc.storage.protocol import Forgetting, ObjectInfo, PendingObject, Storage


class ReadOnlyStorage:
    """What storages have in common that are only read."""

    def create(self, prefix: str = "") -> PendingObject:
        """Refuse: this is for reading."""
        raise UsageError(f"nothing is written to a storage that is only read ({prefix!r})")

    def delete(self, *keys: str) -> None:
        """Refuse, as ``create`` does."""
        raise UsageError(f"nothing is removed from a storage that is only read ({len(keys)} keys)")

    def sync(self, prefix: str) -> None:
        """Do nothing."""


class JoinedStorage(ReadOnlyStorage):
    """Objects of several storages; of equal keys, that of the first counts. Nothing is written."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        self._storages = tuple(storages)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on."""
        for storage in self._storages[:-1]:
            try:
                storage.read_into(key, offset, buffer)
            except FileNotFoundError:
                continue
            return
        self._storages[-1].read_into(key, offset, buffer)

    def read(self, key: str) -> bytes:
        """Return a whole object."""
        for storage in self._storages[:-1]:
            try:
                return storage.read(key)
            except FileNotFoundError:
                continue
        return self._storages[-1].read(key)

    def find_size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or None if there is none."""
        sizes = (storage.find_size(key) for storage in self._storages)
        return next((size for size in sizes if size is not None), None)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder prefix, sorted by key."""
        infos: dict[str, ObjectInfo] = {}
        for storage in self._storages:
            for info in storage.list(prefix):
                infos.setdefault(info.key, info)
        yield from (infos[key] for key in sorted(infos))

    def forget(self, key: str) -> None:
        """Forget what caches keep of an object, since it is not what it should be."""
        for storage in self._storages:
            if isinstance(storage, Forgetting):
                storage.forget(key)
