"""A storage far away, read through a cache on disk that is bounded in size.

Objects never change, so what was read once stays right. They are kept in blocks of equal length:
a read asks for the blocks that are not here, neighbours in one request, and no two threads ask for the
same one. A block carries its name and its hash; a damaged one is fetched again. The blocks that
were used least recently go first. Many processes may share a cache; whatever goes wrong with it costs a
request and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from mvc.errors import ConflictError, CorruptionError, StorageError
from mvc.fs import TEMP_SUFFIX, DurableFile, exclusive_lock, replace_staged
from mvc.ids import ID_BYTES
from mvc.storage.protocol import Forgetting, ObjectInfo, PendingObject, Storage, check_key

if TYPE_CHECKING:
    from pathlib import Path


BLOCK_BYTES = 2**18
_WHOLE = -1
_LOCK_NAME = "lock"
_ABANDONED_S = 3600


class CachedStorage:
    """The objects of another storage; safe for many threads and processes.

    Args:
        inner: where they are.
        folder: of the cache; may be removed at any time.
        limit_bytes: what the cache may take.
        block_bytes: how much is fetched and kept at once.
    """

    def __init__(
        self, inner: Storage, folder: Path, limit_bytes: int, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._inner = inner
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._block_bytes = block_bytes
        self._sizes: dict[str, int] = {}
        self._busy: set[tuple[str, int]] = set()
        self._turn = threading.Condition()
        self._room_bytes: int | None = None  # what may be written before the folder is looked at

    def create(self, prefix: str = "") -> PendingObject:
        """Begin a new object; it is not cached before it is read."""
        return self._inner.create(prefix)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on, from the cache as far as that has it."""
        check_key(key)
        if not len(buffer):
            self._inner.read_into(key, offset, buffer)
            return
        target, missing = _Target(offset, buffer), list[int]()  # claimed, and not here
        size, end = self._block_bytes, target.end
        try:
            for number in range(offset // size, (end - 1) // size + 1):
                if not self._claim(key, number, wait=not missing):
                    self._fetch(
                        key, missing, target
                    )  # before waiting for what another thread fetches
                    self._claim(key, number, wait=True)
                missing.append(number)
                data = self._find(key, number)
                if data is not None and target.take(number * size, data, size):
                    self._release(key, [missing.pop()])
            self._fetch(key, missing, target)
        finally:
            self._release(key, missing)

    def read(self, key: str) -> bytes:
        """Return a whole (small) object, which is cached as a whole."""
        check_key(key)
        cached = self._find(key, _WHOLE)
        if cached is not None:
            return bytes(cached)
        data = self._inner.read(key)
        self._keep(key, _WHOLE, memoryview(data))
        return data

    def find_size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or None if there is none."""
        return self._inner.find_size(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder prefix, sorted by key."""
        return self._inner.list(prefix)

    def sync(self, prefix: str) -> None:
        """Make names durable where the objects are."""
        self._inner.sync(prefix)

    def delete(self, *keys: str) -> None:
        """Remove objects."""
        self._inner.delete(*keys)
        for key in keys:
            self.forget(key)

    def forget(self, key: str) -> None:
        """Fetch an object again when it is next read: what was sent was not what it should be."""
        check_key(key)
        self._sizes.pop(key, None)
        shutil.rmtree(self._folder / key, ignore_errors=True)
        if isinstance(self._inner, Forgetting):
            self._inner.forget(key)

    def _claim(self, key: str, number: int, *, wait: bool) -> bool:
        """Make this thread the only one to fetch a block; False if another does and we do not wait."""
        with self._turn:
            while (key, number) in self._busy:
                if not wait:
                    return False
                self._turn.wait()
            self._busy.add((key, number))
        return True

    def _release(self, key: str, numbers: Sequence[int]) -> None:
        with self._turn:
            self._busy.difference_update((key, number) for number in numbers)
            self._turn.notify_all()

    def _fetch(self, key: str, numbers: MutableSequence[int], target: _Target) -> None:
        """Fetch blocks that were claimed, neighbours with one request, and keep them."""
        for run in _runs(numbers):
            start, wanted_bytes = run[0] * self._block_bytes, len(run) * self._block_bytes
            left_bytes = self._size(key, min(start + wanted_bytes, target.end)) - start
            data = memoryview(bytearray(max(0, min(wanted_bytes, left_bytes))))
            self._inner.read_into(key, start, data)
            if not target.take(start, data, wanted_bytes):
                end = start + len(data)
                raise CorruptionError(f"{key} ends at {end:,} bytes, {target.end:,} were expected")
            for number in run:
                at = number * self._block_bytes - start
                self._keep(key, number, data[at : at + self._block_bytes])
        self._release(key, numbers)
        numbers.clear()

    def _size(self, key: str, end: int) -> int:
        """Return the length of an object, asked again if what is known of it is before some end."""
        known_bytes = self._sizes.get(key, -1)
        if known_bytes < end:
            size_bytes = self._inner.find_size(key)
            if size_bytes is None:
                raise FileNotFoundError(key)
            known_bytes = self._sizes[key] = size_bytes
        return known_bytes

    def _path(self, key: str, number: int) -> Path:
        return self._folder / key / ("whole" if number == _WHOLE else f"{number:07}")

    def _find(self, key: str, number: int) -> memoryview | None:
        """Return a block from the cache, if it is there and sound, and note that it was used."""
        path = self._path(key, number)
        try:
            data = memoryview(path.read_bytes())
            if data[-ID_BYTES:] != _digest(key, number, data[:-ID_BYTES]):
                path.unlink()
                return None
            os.utime(path)
        except OSError:
            return None
        return data[:-ID_BYTES]

    def _keep(self, key: str, number: int, data: memoryview) -> None:
        path = self._path(key, number)
        with contextlib.suppress(OSError, StorageError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with DurableFile(path.parent) as file:
                file.write([data, _digest(key, number, data)])
                # Not synced: the hash tells if power was lost.
                replace_staged(file.keep(synced=False), path)
        with self._turn:
            room_bytes = self._room_bytes = (self._room_bytes or 0) - len(data) - ID_BYTES
        if room_bytes <= 0:
            self._shrink()

    def _shrink(self) -> None:
        """Remove what was used least recently, if the cache is over its limit."""
        with contextlib.suppress(OSError, ConflictError, StorageError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self._folder / _LOCK_NAME, wait=False):
                blocks = sorted(_list_blocks(self._folder))
                total_bytes = sum(size_bytes for _, size_bytes, _ in blocks)
                goal_bytes = self._limit_bytes - self._limit_bytes // 8
                for _, size_bytes, path in blocks:
                    if total_bytes <= goal_bytes:
                        break
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                    total_bytes -= size_bytes
            with self._turn:  # others write as well: look again long before all room is taken
                left_bytes = (self._limit_bytes - total_bytes) // 2
                self._room_bytes = max(left_bytes, self._limit_bytes // 16)


@dataclass(frozen=True, slots=True)
class _Target:
    """The buffer of a read, and where in the object it begins."""

    offset: int
    buffer: memoryview

    @property
    def end(self) -> int:
        return self.offset + len(self.buffer)

    def take(self, start: int, data: memoryview, expected_bytes: int) -> bool:
        """Copy the part of ``data`` that the read wants into its buffer.

        ``data`` begins at ``start`` of the object, and should have ``expected_bytes``, or less at the
        end of the read. Returns whether it has.
        """
        first, end = max(start, self.offset), min(start + len(data), self.end)
        if first < end:
            place = self.buffer[first - self.offset : end - self.offset]
            place[:] = data[first - start : end - start]
        return end == min(start + expected_bytes, self.end)


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _digest(key: str, number: int, data: memoryview) -> bytes:
    return blake3(f"{key}\n{number}\n".encode()).update(data).digest()


def _list_blocks(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield (when it was last used, length, path) of all blocks; what writers left behind goes."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(path)
                if name.endswith(TEMP_SUFFIX) and time.time() - stat.st_mtime > _ABANDONED_S:
                    os.unlink(path)
                elif name != _LOCK_NAME:
                    yield stat.st_mtime_ns, stat.st_size, path
