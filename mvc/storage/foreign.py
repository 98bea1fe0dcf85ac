"""Objects of others in a bucket: whatever their keys are, listed and read, never written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions as failures

from mvc.errors import ConflictError, StorageError
from mvc.sources import ByteSource
from mvc.storage.object_store import translate_failures
from mvc.storage.opening import open_objects
from mvc.storage.urls import StoreOptions, StoreUrl

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore


RANGE_BYTES = 8 << 20
"""What one request reads of an object."""
_REQUESTS_AT_ONCE = 4
_PAGE = 1000
_WEAK = "W/"
"""How a tag begins that no condition holds for, as HTTP has it."""


@dataclass(frozen=True, slots=True)
class ForeignObject:
    """An object as its store lists it; ``tag`` is its ETag, or None where the store has none."""

    key: str
    size_bytes: int
    tag: str | None


class ForeignObjects:
    """All objects below the prefix of a bucket; safe for many threads."""

    def __init__(self, url: StoreUrl, options: StoreOptions | None = None) -> None:
        self._store = open_objects(url, options or StoreOptions())
        self._name = str(url)

    def list(self) -> Iterator[ForeignObject]:
        """Yield the objects, in the order of the store."""
        with translate_failures("list the store", self._name):
            for page in obstore.list(self._store, chunk_size=_PAGE):
                for meta in page:
                    yield ForeignObject(meta["path"], meta["size"], meta["e_tag"])

    def find(self, key: str) -> ForeignObject | None:
        """Return an object, whether it is listed or not; None if there is none."""
        try:
            with translate_failures(f"look at {key}", self._name):
                meta = obstore.head(self._store, key)
        except FileNotFoundError:
            return None
        return ForeignObject(key, meta["size"], meta["e_tag"])

    def open(self, version: ForeignObject) -> ObjectSource:
        """Return the bytes of this version of an object; nothing is asked for yet."""
        return ObjectSource(self._store, version, self._name)


class ObjectSource(ByteSource):
    """One version of an object."""

    def __init__(self, store: ObjectStore, version: ForeignObject, name: str) -> None:
        self._store, self._object, self._name = store, version, name
        self._versions: dict[str, object] = {}  # key → what its first answer said of it

    @property
    def size_bytes(self) -> int:
        """Length as listed."""
        return self._object.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on, with one request."""
        if len(buffer):
            buffer[:] = self._read(offset, len(buffer))

    def read_ahead(self) -> Iterator[bytes]:
        """Yield all bytes in order; some ranges are under way at once."""
        size = self.size_bytes
        starts = iter(range(0, size, RANGE_BYTES))
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            waiting = deque(
                pool.submit(self._read, start, min(RANGE_BYTES, size - start))
                for start, _ in zip(starts, range(_REQUESTS_AT_ONCE), strict=False)
            )
            try:
                while waiting:
                    data = waiting.popleft().result()
                    for start in starts:
                        read_bytes = min(RANGE_BYTES, size - start)
                        waiting.append(pool.submit(self._read, start, read_bytes))
                        break
                    yield data
            finally:
                for request in waiting:
                    request.cancel()

    def _read(self, offset: int, size_bytes: int) -> bytes:
        key, tag = self._object.key, self._object.tag
        options: GetOptions = {"range": (offset, offset + size_bytes)}
        if tag is not None and not tag.startswith(_WEAK):
            options["if_match"] = tag
        try:
            with translate_failures(f"read {key}", self._name):
                try:
                    answer = obstore.get(self._store, key, options=options)
                    data = answer.bytes()
                except failures.PreconditionError:
                    raise _changed(key) from None
        except FileNotFoundError:
            raise FileNotFoundError(key) from None
        # All ranges must be of one version: some stores have no tags, or take no conditions.
        version = answer.meta["e_tag"] or answer.meta["last_modified"]
        first = self._versions.setdefault(key, version)  # whichever thread is the first
        if version != first or answer.meta["size"] != self.size_bytes:
            raise _changed(key)
        if len(data) != size_bytes:
            raise StorageError(f"cannot read {key}: the store sent less than was asked for")
        return bytes(data)


def _changed(key: str) -> ConflictError:
    hint = "try again once nothing writes to it"
    return ConflictError(f"{key} changed while it was read", hint=hint)
