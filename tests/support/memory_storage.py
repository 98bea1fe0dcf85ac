"""A storage in memory, for tests and for stores that need not outlive the process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from mvc.errors import CorruptionError, StorageError
from mvc.storage.protocol import ObjectInfo, check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from mvc.storage.protocol import Buffer


class MemoryStorage:
    """Keys and bytes in a dictionary; safe to use from many threads."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._made_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def create(self, prefix: str = "") -> MemoryPendingObject:
        """Begin a new object; ``prefix`` names the folder of its later key."""
        check_prefix(prefix)
        return MemoryPendingObject(self)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on."""
        data = self.read(key)
        part = memoryview(data)[offset : offset + len(buffer)]
        if len(part) < len(buffer):
            raise CorruptionError(
                f"{key} ends at {len(data):,} bytes, {offset + len(buffer):,} were expected"
            )
        buffer[:] = part

    def read(self, key: str) -> bytes:
        """Return a whole object."""
        check_key(key)
        with self._lock:
            if key not in self._objects:
                raise FileNotFoundError(key)
            return self._objects[key]

    def find_size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or None if there is none."""
        check_key(key)
        with self._lock:
            data = self._objects.get(key)
        return None if data is None else len(data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the published objects below a folder prefix, sorted by key."""
        check_prefix(prefix)
        with self._lock:
            found = [
                ObjectInfo(key, len(data), self._made_s.get(key, 0.0))
                for key, data in self._objects.items()
            ]
        for info in sorted(found, key=lambda info: info.key):
            if info.key.startswith(prefix):
                yield info

    def sync(self, prefix: str) -> None:
        """Do nothing: what is in memory is as durable as it will ever be."""
        check_prefix(prefix)

    def delete(self, *keys: str) -> None:
        """Remove objects; removing one that is not there is not an error."""
        for key in keys:
            check_key(key)
            with self._lock:
                self._objects.pop(key, None)

    def _publish(self, key: str, data: bytes) -> None:
        with self._lock:
            old = self._objects.get(key)
            if old is None or len(old) != len(data):
                self._objects[key] = data
                self._made_s[key] = time.time()


class MemoryPendingObject:
    """Bytes on their way into a ``MemoryStorage``."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._open = True

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        self._check_open()
        for buffer in buffers:
            self._parts.append(bytes(buffer))
            self._size_bytes += len(self._parts[-1])

    def publish(self, key: str) -> None:
        """Make the object visible under ``key``."""
        check_key(key)
        self._check_open()
        self._open = False
        self._storage._publish(key, b"".join(self._parts))

    def abort(self) -> None:
        """Forget everything written; harmless after ``publish``."""
        self._open = False
        self._parts = []

    def _check_open(self) -> None:
        if not self._open:
            raise StorageError("writer is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.abort()
