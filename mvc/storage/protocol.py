"""The contract of a storage: dumb keys, dumb bytes.

A key is a relative path of ASCII letters, digits, ``-``, ``_`` and ``.`` joined by ``/``. Objects
are immutable once published: a storage never appends to or rewrites an object that has a name.
An implementation must pass ``tests/support/storage_contract.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mvc.errors import CorruptionError, UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from mvc.progress import ByteProgress

Buffer = bytes | bytearray | memoryview
MAX_KEY_CHARS = 512
MAX_WHOLE_BYTES = 128 * 2**20
"""Nothing longer is read as a whole: the index of the largest pack has 114 MiB."""
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")


def is_key(key: str) -> bool:
    """Return whether ``key`` is a relative path of plain names: no ``..``, no hidden name."""
    return 0 < len(key) <= MAX_KEY_CHARS and all(_PART.match(part) for part in key.split("/"))


def check_key(key: str) -> None:
    """Refuse a key that is empty, absolute, too long, or has a part that is hidden or not plain."""
    if not is_key(key):
        raise UsageError(f"{key!r} is not a storage key")


def check_prefix(prefix: str) -> None:
    """Refuse what is not a folder prefix: empty, or a key followed by ``/``."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise UsageError(f"{prefix!r} is not a storage prefix")


def check_whole(key: str, size_bytes: int) -> None:
    """Refuse to read an object as a whole that is longer than any such object is."""
    if size_bytes > MAX_WHOLE_BYTES:
        raise CorruptionError(f"{key} has {size_bytes:,} bytes, over {MAX_WHOLE_BYTES:,}")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A published object: its key, its length in bytes, when it was made (seconds since 1970).

    ``is_far``: reading it takes a request, so what is near is read first.
    """

    key: str
    size_bytes: int
    made_s: float = field(default=0.0, compare=False)
    is_far: bool = field(default=False, compare=False)


class PendingObject(Protocol):
    """Bytes on their way into a storage; nothing is visible before ``publish`` returns.

    After any failure every further call but ``abort`` raises StorageError: a half-written object
    can never be published by mistake. Leaving the ``with`` block unpublished aborts.
    """

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        ...

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers; they may be reused once the call returns."""
        ...

    def publish(self, key: str) -> None:
        """Make the object durable, then visible under ``key``.

        An object that already has that key and length stays as it is: keys are content ids, so
        the bytes are the same. One of another length was torn, and is replaced. May be called
        from another thread than ``write``.
        """
        ...

    def abort(self) -> None:
        """Forget everything written; harmless after ``publish``."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...


class Storage(Protocol):
    """Where packs and pack indexes live: a local folder, memory, later an object store."""

    def create(self, prefix: str = "") -> PendingObject:
        """Begin a new object.

        ``prefix``, such as ``packs/``, is only a hint that lets a folder write the object where it
        will stay.
        """
        ...

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on; may be called from many threads at once.

        Raises:
            FileNotFoundError: no such key.
            CorruptionError: the object ends before the buffer is full.
            StorageError: the machine failed.
        """
        ...

    def read(self, key: str) -> bytes:
        """Return a whole (small) object.

        Raises:
            FileNotFoundError: there is none.
            CorruptionError: it is longer than ``MAX_WHOLE_BYTES``; nothing of it was read.
        """
        ...

    def find_size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or None if there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the published objects below a folder prefix such as ``packs/``, sorted by key."""
        ...

    def sync(self, prefix: str) -> None:
        """Make the names of all objects below a folder prefix durable, by whatever process.

        A process that died in ``publish`` may have left an object that is visible but would not
        survive a loss of power; a process that builds on such an object calls this first.
        """
        ...

    def delete(self, *keys: str) -> None:
        """Remove objects, in any order, all durably gone once this returns.

        Removing one that is not there is not an error.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object that can be replaced, and the tag of this version of it, opaque."""

    data: bytes
    tag: str


@runtime_checkable
class Forgetting(Protocol):
    """A storage that keeps what it has read, and can forget it."""

    def forget(self, key: str) -> None:
        """Read an object again when it is next asked for: it was not what it should be."""
        ...


class SharedStorage(Storage, Protocol):
    """A storage that many machines write at once: one more kind of object, for refs.

    Such an object is small, is replaced as a whole, and only if no other writer has replaced it.
    """

    def read_tagged(self, key: str) -> Tagged | None:
        """Return a small object with its tag, or None if there is none; errors as of ``read``."""
        ...

    def is_current(self, key: str, tag: str) -> bool:
        """Return whether the version of an object with a tag is still there; reads no content."""
        ...

    def replace(self, key: str, data: bytes, tag: str | None) -> None:
        """Put an object in the place of the version with a tag; None: if there is none yet.

        Raises:
            ConflictError: another version is there. It may be this one: an answer that got lost
                makes a client ask again, and hear that the tag is gone.
            StorageError: it is not known whether the object was replaced.
        """
        ...

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Return (offset, length) runs of one object; neighbours travel in one request.

        Raises:
            FileNotFoundError: no such key.
            CorruptionError: the object ends before one of them does.
        """
        ...

    def upload(self, key: str, path: Path, progress: ByteProgress = None) -> None:
        """Make a file an object, whatever was there; in parts, with little memory."""
        ...
