"""A storage in memory, which tests can damage behind its back."""

from __future__ import annotations

import threading
import time

from mvc.errors import CorruptionError, StorageError
from mvc.storage.protocol import ObjectInfo, check_key, check_prefix


class MemoryStorage:
    """Keys and bytes in a dictionary; safe to use from many threads."""

    def __init__(self):
        self._objects = {}
        self._made_s = {}
        self._lock = threading.Lock()

    def create(self, prefix=""):
        check_prefix(prefix)
        return _PendingObject(self)

    def read_into(self, key, offset, buffer):
        data = self.read(key)
        end = offset + len(buffer)
        if end > len(data):
            raise CorruptionError(f"{key} ends at {len(data):,} bytes, {end:,} were expected")
        buffer[:] = memoryview(data)[offset:end]

    def read(self, key):
        check_key(key)
        with self._lock:
            if key not in self._objects:
                raise FileNotFoundError(key)
            return self._objects[key]

    def find_size(self, key):
        check_key(key)
        with self._lock:
            return len(self._objects[key]) if key in self._objects else None

    def list(self, prefix):
        check_prefix(prefix)
        with self._lock:
            objects = sorted(self._objects.items())
        for key, data in objects:
            if key.startswith(prefix):
                yield ObjectInfo(key, len(data), self._made_s.get(key, 0.0))

    def sync(self, prefix):
        check_prefix(prefix)

    def delete(self, *keys):
        for key in keys:
            check_key(key)
            with self._lock:
                self._objects.pop(key, None)

    def publish(self, key, data):
        check_key(key)
        with self._lock:
            old = self._objects.get(key)
            if old is None or len(old) != len(data):
                self._objects[key] = data
                self._made_s[key] = time.time()


class _PendingObject:
    """Bytes on their way into a ``MemoryStorage``."""

    def __init__(self, storage):
        self._storage, self._data, self._is_open = storage, bytearray(), True

    @property
    def size_bytes(self):
        return len(self._data)

    def write(self, buffers):
        self._check_open()
        for buffer in buffers:
            self._data += buffer

    def publish(self, key):
        self._check_open()
        self._storage.publish(key, bytes(self._data))
        self._is_open = False

    def abort(self):
        self._is_open = False

    def _check_open(self):
        if not self._is_open:
            raise StorageError("writer is closed")

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.abort()
