"""Sources, storages and stores for tests of the chunk store."""

from __future__ import annotations

import threading
from itertools import accumulate, pairwise

from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkSpan, ReadRequest
from mvc.errors import StorageError
from mvc.ids import hash_chunk
from mvc.sources import ByteSource
from support.memory_storage import MemoryStorage


class BytesSource(ByteSource):
    """Bytes that are read by copying; counts the reads."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.reads = []

    @property
    def size_bytes(self):
        return len(self.data)

    def read_into(self, offset, buffer):
        self.reads.append((offset, len(buffer)))
        buffer[:] = self.data[offset : offset + len(buffer)]


class ViewSource(BytesSource):
    """Bytes that can be seen without a copy."""

    def view(self, offset, size_bytes):
        return self.data[offset : offset + size_bytes]


def cut(chunks, dtype=None):
    """Return a source of the chunks behind one another, and their spans."""
    ends = list(accumulate(map(len, chunks)))
    spans = [
        ChunkSpan(end - len(chunk), len(chunk), dtype)
        for end, chunk in zip(ends, chunks, strict=True)
    ]
    return BytesSource(b"".join(chunks)), spans


def add_chunks(store: ChunkStore, chunks, dtype=None):
    """Store chunks in one session; return their ids and the counts."""
    with store.writer() as writer:
        ids = writer.add(*cut(chunks, dtype))
    return ids, writer.counts


def read_back(store: ChunkStore, ids, chunks) -> list[bytes]:
    """Read chunks through ``read_many`` into one destination, then cut it."""
    starts = [0, *accumulate(map(len, chunks))]
    out = bytearray(starts[-1])
    lock = threading.Lock()

    def sink(request, plain):
        with lock:
            out[request.offset : request.offset + len(plain)] = plain

    requests = [
        ReadRequest(chunk_id, len(chunk), start, f"chunk {number}")
        for number, (chunk_id, chunk, start) in enumerate(zip(ids, chunks, starts, strict=False))
    ]
    store.read_many(requests, sink)
    return [bytes(out[a:b]) for a, b in pairwise(starts)]


def read_one(store: ChunkStore, plain: bytes) -> bytes:
    """Read one chunk by ``read_into``, given by what it should be."""
    buffer = bytearray(len(plain))
    store.read_into(hash_chunk(plain), memoryview(buffer))
    return bytes(buffer)


def ids_of(chunks) -> list:
    """Return the ids of chunks."""
    return [hash_chunk(chunk) for chunk in chunks]


def packs(storage) -> list[str]:
    """Return the keys of all packs."""
    return [info.key for info in storage.list("") if info.key.endswith(".pack")]


def find_missing(store: ChunkStore, ids) -> list:
    """Return those of the ids that no sound pack holds, in their order."""
    wanted = list(ids)
    found = store._catalog.contains_each(wanted).tolist()
    return [chunk_id for chunk_id, known in zip(wanted, found, strict=True) if not known]


def objects(storage) -> dict[str, bytes]:
    """Return all keys and bytes of a storage."""
    return {info.key: storage.read(info.key) for info in storage.list("")}


def overwrite(storage: MemoryStorage, key: str, data: bytes) -> None:
    """Damage an object behind the storage's back."""
    storage._objects[key] = bytes(data)


def flip(storage: MemoryStorage, key: str, at: int, bits: int = 1) -> None:
    """Damage a byte of an object behind the storage's back."""
    data = bytearray(storage.read(key))
    data[at] ^= bits
    overwrite(storage, key, data)


class WatchedStorage:
    """Passes everything on; counts reads, and fails the n-th create, write or publish."""

    def __init__(self, inner, fail_at: int | None = None) -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.steps = 0
        self.pending = 0
        self.reads = []

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.fail_at:
            raise StorageError("no space left on device")

    def create(self, prefix=""):
        self.step()
        self.pending += 1
        return _WatchedPending(self, self.inner.create(prefix))

    def read_into(self, key, offset, buffer):
        self.reads.append((key, offset, len(buffer)))
        self.inner.read_into(key, offset, buffer)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class _WatchedPending:
    def __init__(self, storage, inner) -> None:
        self.storage = storage
        self.inner = inner
        self.is_open = True

    @property
    def size_bytes(self):
        return self.inner.size_bytes

    def write(self, buffers):
        self.storage.step()
        self.inner.write(buffers)

    def publish(self, key):
        self.storage.step()
        self.inner.publish(key)

    def abort(self):
        if self.is_open:
            self.is_open = False
            self.storage.pending -= 1
        self.inner.abort()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.abort()
