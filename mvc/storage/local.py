"""A storage in a folder: one file per object, written durably, read through a few descriptors.

Descriptors are kept open because a checkout reads one pack thousands of times. A descriptor that
falls out of the cache closes when the last thread that reads through it is done: ``_Descriptor``
closes in its destructor, so the reference count is the only bookkeeping.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, CorruptionError, translate_os_errors
from mvc.ids import hash_chunk
from mvc.storage.protocol import (
    ObjectInfo,
    Tagged,
    check_key,
    check_prefix,
    check_whole,
    is_key,
)

if TYPE_CHECKING:
    from typing import Self

    from mvc.progress import ByteProgress
    from mvc.storage.protocol import Buffer

MAX_OPEN_FILES = 64
"""Descriptors kept for reading; far below the usual limit of 1,024 per process."""
_COPY_BYTES = 4 * 2**20
_LOCK_NAME = ".replacing"


class _Descriptor:
    """A descriptor that closes with its last reader."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(
            path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        )  # a pipe is not waited for

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # os may be gone at exit
        if self.number >= 0:
            close(self.number)


@contextlib.contextmanager
def _reading(key: str) -> Iterator[None]:
    """Let every way in which a file is not there be FileNotFoundError."""
    try:
        with translate_os_errors(f"read {key}"):
            yield
    except (NotADirectoryError, IsADirectoryError) as error:
        raise FileNotFoundError(key) from error


class LocalStorage:
    """Objects as files below ``root``, which exists; safe for many threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._open_files: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def create(self, prefix: str = "") -> LocalPendingObject:
        """Begin a new object; ``prefix`` names the folder of its later key."""
        check_prefix(prefix)
        folder = self.root / prefix
        fs.make_dirs(folder)
        return LocalPendingObject(self, fs.DurableFile(folder))

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on."""
        file = self._open(key)
        with _reading(key):
            done = fs.read_at(file.number, buffer, offset)
        if done < len(buffer):
            self._forget(key)
            raise CorruptionError(
                f"{key} ends at {offset + done:,} bytes, {offset + len(buffer):,} were expected"
                if done
                else f"{key} ends before byte {offset:,}"
            )

    def read(self, key: str) -> bytes:
        """Return a whole object."""
        check_key(key)
        with _reading(key), fs.open_file(self.root / key) as file:
            check_whole(key, os.fstat(file.fileno()).st_size)
            return file.read()

    def find_size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or None if there is none."""
        check_key(key)
        with translate_os_errors(f"look at {key}"):
            stat = fs.find_stat(self.root / key)
        return stat.size_bytes if stat is not None and stat.is_regular else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the published objects below a folder prefix, sorted by key."""
        check_prefix(prefix)
        with translate_os_errors(f"list {prefix or self.root}"):
            yield from sorted(_walk(self.root / prefix, prefix), key=lambda info: info.key)

    def sync(self, prefix: str) -> None:
        """Make the names of all objects below a folder prefix durable."""
        check_prefix(prefix)
        if (self.root / prefix).is_dir():
            fs.fsync_dir(self.root / prefix)

    def delete(self, *keys: str) -> None:
        """Remove objects; removing one that is not there is not an error."""
        for key in keys:
            self._forget(key)
        fs.remove_file(*(self.root / key for key in keys if self.find_size(key) is not None))

    def read_tagged(self, key: str) -> Tagged | None:
        """Return a small object, tagged with the hash of its bytes, or None if there is none."""
        try:
            data = self.read(key)
        except FileNotFoundError:
            return None
        return Tagged(data, hash_chunk(data).hex())

    def is_current(self, key: str, tag: str) -> bool:
        """Return whether the version of an object with a tag is still there."""
        tagged = self.read_tagged(key)
        return tagged is not None and tagged.tag == tag

    def replace(self, key: str, data: bytes, tag: str | None) -> None:
        """Put an object in the place of the version with a tag, durably, under an advisory lock."""
        check_key(key)
        fs.make_dirs((self.root / key).parent)
        with fs.exclusive_lock(self.root / _LOCK_NAME):
            old = self.read_tagged(key)
            if (None if old is None else old.tag) != tag:
                raise ConflictError(f"{key} has been replaced meanwhile")
            self._forget(key)
            fs.write_durable(self.root / key, [data])

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Return (offset, length) runs of one object."""
        buffers: list[Buffer] = [bytearray(length) for _, length in ranges]
        for (offset, _), buffer in zip(ranges, buffers, strict=True):
            self.read_into(key, offset, memoryview(buffer))
        return buffers

    def upload(self, key: str, path: Path, progress: ByteProgress = None) -> None:
        """Copy a file here, whatever was there."""
        check_key(key)
        target = self.root / key
        fs.make_dirs(target.parent)
        with fs.open_file(path) as source, fs.DurableFile(target.parent) as file:
            while data := source.read(_COPY_BYTES):
                file.write([data])
                if progress is not None:
                    progress(len(data))
            self._forget(key)
            file.publish(target, read_only=True)

    def _open(self, key: str) -> _Descriptor:
        with self._lock:
            file = self._open_files.get(key)
            if file is not None:
                self._open_files.move_to_end(key)
                return file
        check_key(key)
        with _reading(key):
            file = _Descriptor(self.root / key)
        with self._lock:
            self._open_files[key] = file
            while len(self._open_files) > MAX_OPEN_FILES:
                self._open_files.popitem(last=False)
        return file

    def _forget(self, key: str) -> None:
        with self._lock:
            self._open_files.pop(key, None)

    def _publish(self, file: fs.DurableFile, key: str) -> None:
        file.write(())  # raises if the writer failed before
        target = self.root / key
        fs.make_dirs(target.parent)
        old = fs.find_stat(target)
        if old is not None and old.is_regular and old.size_bytes == file.size_bytes:
            # Another writer was first. Its rename may not be on the disk yet; ours must be.
            file.abort()
        else:
            self._forget(key)
            file.publish(target, read_only=True)
            if target.parent == file.folder:
                return
        fs.fsync_dir(target.parent)


class LocalPendingObject:
    """A file on its way into a ``LocalStorage``."""

    def __init__(self, storage: LocalStorage, file: fs.DurableFile) -> None:
        self._storage = storage
        self._file = file

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._file.size_bytes

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        self._file.write(buffers)

    def publish(self, key: str) -> None:
        """Make the object durable, then visible under ``key``, read-only."""
        check_key(key)
        self._storage._publish(self._file, key)  # noqa: SLF001  two halves of one class

    def abort(self) -> None:
        """Forget everything written; harmless after ``publish``."""
        self._file.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.abort()


def _walk(folder: Path, prefix: str) -> Iterator[ObjectInfo]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        key = prefix + entry.name
        if entry.name.endswith(fs.TEMP_SUFFIX) or not is_key(key):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, f"{key}/")
        elif entry.is_file(follow_symlinks=False):
            try:
                stat = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed between the listing and the look at it
            yield ObjectInfo(key, stat.st_size, stat.st_mtime)
