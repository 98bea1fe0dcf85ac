"""Objects of others in a bucket: whatever their keys are, listed and read, never written."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions as failures

from mvc.errors import ConflictError, StorageError
from mvc.sources import ByteSource
from mvc.storage.object_store import translate_failures
from mvc.storage.opening import open_objects
from mvc.storage.options import StoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

    from mvc.storage.urls import StoreUrl

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
                for one in page:
                    yield ForeignObject(one["path"], one["size"], one["e_tag"])

    def find(self, key: str) -> ForeignObject | None:
        """Return an object, whether it is listed or not; None if there is none."""
        try:
            with translate_failures(f"look at {key}", self._name):
                found = obstore.head(self._store, key)
        except FileNotFoundError:
            return None
        return ForeignObject(key, found["size"], found["e_tag"])

    def open(self, one: ForeignObject) -> ObjectSource:
        """Return the bytes of this version of an object; nothing is asked for yet."""
        return ObjectSource(self._store, one, self._name)


class ObjectSource(ByteSource):
    """One version of an object."""

    def __init__(self, store: ObjectStore, one: ForeignObject, name: str) -> None:
        self._store, self._object, self._name = store, one, name
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
                for one in waiting:
                    one.cancel()

    def _read(self, offset: int, size_bytes: int) -> bytes:
        one = self._object
        options: GetOptions = {"range": (offset, offset + size_bytes)}
        if one.tag is not None and not one.tag.startswith(_WEAK):
            options["if_match"] = one.tag
        try:
            with translate_failures(f"read {one.key}", self._name):
                try:
                    found = obstore.get(self._store, one.key, options=options)
                    data = found.bytes()
                except failures.PreconditionError:
                    raise _changed(one.key) from None
        except FileNotFoundError:
            raise FileNotFoundError(one.key) from None
        self._check_version(found.meta)
        if len(data) != size_bytes:
            raise StorageError(f"cannot read {one.key}: the store sent less than was asked for")
        return bytes(data)

    def _check_version(self, meta: ObjectMeta) -> None:
        """Check that all ranges are of one version: some stores have no tags, or take no conditions."""
        one = self._object
        version = meta["e_tag"] or meta["last_modified"]
        first = self._versions.setdefault(one.key, version)  # whichever thread is the first
        if version != first or meta["size"] != one.size_bytes:
            raise _changed(one.key)


def _changed(key: str) -> ConflictError:
    hint = "try again once nothing writes to it"
    return ConflictError(f"{key} changed while it was read", hint=hint)
