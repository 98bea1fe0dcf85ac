import os
import threading

import pytest

from mvc.chunkstore.reader import GROUP_BYTES, plan_reads
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkLocation, ReadRequest
from mvc.errors import CorruptionError, StorageError, UnsupportedError
from mvc.formats.pack import RECORD_BYTES
from mvc.formats.pack_index import parse_pack_index
from mvc.ids import hash_chunk
from support.chunks import (
    WatchedStorage,
    add_chunks,
    find_missing,
    flip,
    objects,
    packs,
    read_back,
    read_one,
)
from support.forged import put_pack, whole
from support.memory_storage import MemoryStorage


def request(chunk, offset=0, context=""):
    return ReadRequest(hash_chunk(chunk), len(chunk), offset, context)


def collect(store, requests, progress=None):
    seen, lock = {}, threading.Lock()

    def sink(request, plain):
        with lock:
            seen[request.offset] = bytes(plain)

    store.read_many(requests, sink, progress)
    return seen


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_chunk_of_another_length_is_corruption(size):
    store = ChunkStore(MemoryStorage())
    chunk = os.urandom(100)
    add_chunks(store, [chunk])
    with pytest.raises(CorruptionError, match=f"100 bytes, not {size}"):
        store.read_into(hash_chunk(chunk), memoryview(bytearray(size)))
    with pytest.raises(CorruptionError, match=f"100 bytes, not {size}"):
        collect(store, [ReadRequest(hash_chunk(chunk), size, 0)])


def test_a_missing_chunk_says_what_it_is_part_of():
    store = ChunkStore(MemoryStorage())
    add_chunks(store, [b"abc"])
    for read in (
        lambda: store.read_into(hash_chunk(b"x"), memoryview(bytearray(1)), context="tensor 'w'"),
        lambda: collect(store, [request(b"abc"), request(b"x", context="tensor 'w'")]),
    ):
        with pytest.raises(CorruptionError) as caught:
            read()
        assert caught.value.message == (
            f"chunk {hash_chunk(b'x').hex()[:12]} of tensor 'w': it is in no pack"
        )
        assert "mvc fsck --data" in caught.value.hint


def test_a_chunk_may_be_wanted_many_times():
    store = ChunkStore(MemoryStorage(), threads=2)
    add_chunks(store, [b"abc", b"def"])
    requests = [request(b"abc", 0), request(b"def", 1), request(b"abc", 2), request(b"abc", 3)]
    progress = []
    assert collect(store, requests, progress.append) == {0: b"abc", 1: b"def", 2: b"abc", 3: b"abc"}
    assert sum(progress) == 12


def test_nothing_wanted():
    storage = WatchedStorage(MemoryStorage())
    assert collect(ChunkStore(storage), []) == {}
    assert storage.reads == []


def test_neighbours_are_read_in_one_go():
    storage = WatchedStorage(MemoryStorage())
    store = ChunkStore(storage, threads=2)
    chunks = [os.urandom(1000) for _ in range(10_000)]
    ids, _ = add_chunks(store, chunks)
    storage.reads.clear()
    wanted = list(range(10_000))
    wanted.sort(key=lambda i: i * 7919 % 10_000)
    requests = [ReadRequest(ids[i], 1000, i) for i in wanted]
    seen = collect(store, requests)
    assert [seen[i] for i in range(10_000)] == chunks
    per_read = GROUP_BYTES // (1000 + RECORD_BYTES)
    assert len(storage.reads) == -(-10_000 // per_read)
    storage.reads.clear()
    collect(store, [ReadRequest(ids[i], 1000, i) for i in range(0, 10, 2)])
    assert len(storage.reads) == 5


def test_reads_are_planned_by_pack_and_offset():
    def locate(pack, offset, stored):
        return ChunkLocation(b"", 0, stored, stored, offset, pack=pack)

    half = GROUP_BYTES // 2 - RECORD_BYTES
    places = {
        b"a": locate("p1", 16, 10),
        b"b": locate("p1", 90, 10),
        b"c": locate("p1", 164 + 1, 10),
        b"d": locate("p2", 16, half),
        b"e": locate("p2", 16 + GROUP_BYTES // 2, half),
        b"f": locate("p2", 16 + GROUP_BYTES, 1),
        b"g": locate("p3", 16, 5 * GROUP_BYTES),
        b"h": locate("p3", 16 + 64 + 5 * GROUP_BYTES, 1),
        b"i": None,
    }
    requests = [ReadRequest(name, 1, 0) for name in [b"h", b"e", b"b", b"i", *reversed(places)]]
    groups = plan_reads(requests, places.get)
    found = [
        (
            group.pack,
            group.offset,
            group.size_bytes,
            b"".join(chunk.requests[0].chunk_id for chunk in group.chunks),
        )
        for group in groups
    ]
    assert found == [
        (None, 0, 0, b"i"),
        ("p1", 16, 148, b"ab"),
        ("p1", 165, 74, b"c"),
        ("p2", 16, GROUP_BYTES, b"de"),
        ("p2", 16 + GROUP_BYTES, 65, b"f"),
        ("p3", 16, 64 + 5 * GROUP_BYTES, b"g"),
        ("p3", 80 + 5 * GROUP_BYTES, 65, b"h"),
    ]
    assert [len(group.chunks[0].requests) for group in groups] == [2, 1, 1, 1, 1, 1, 2]


def test_an_error_of_the_sink_surfaces_as_it_is():
    store = ChunkStore(MemoryStorage(), threads=2, target_pack_bytes=1)
    chunks = [os.urandom(2**20 + 1) for _ in range(6)]
    add_chunks(store, chunks)
    error = StorageError("destination is full")

    def sink(request, plain):
        if request.offset == 3:
            raise error

    with pytest.raises(StorageError) as caught:
        store.read_many([request(chunk, i) for i, chunk in enumerate(chunks)], sink)
    assert caught.value is error


def test_plain_bytes_cannot_be_written_to_by_the_sink():
    store = ChunkStore(MemoryStorage())
    add_chunks(store, [os.urandom(100)])
    (index,) = (parse_pack_index(d) for k, d in objects(store.storage).items() if k.endswith("x"))
    flags = []
    requests = [ReadRequest(index.chunk_id(0), 100, 0)]
    store.read_many(requests, lambda request, plain: flags.append(plain.readonly))
    assert flags == [True]


def test_a_pack_that_was_removed_is_looked_for_again():
    storage = MemoryStorage()
    chunks = [os.urandom(2000), os.urandom(3000)]
    store = ChunkStore(storage, threads=2)
    ids, _ = add_chunks(store, chunks)
    old = list(objects(storage))
    put_pack(storage, map(whole, [b"other", *chunks]))
    for key in old:
        storage.delete(key)

    assert read_back(store, ids, chunks) == chunks
    assert store.find(ids[0]).offset > 16
    assert find_missing(ChunkStore(storage), ids) == []


def test_a_removed_pack_is_named_when_nothing_else_has_the_chunk():
    storage = MemoryStorage()
    store = ChunkStore(storage)
    chunk = os.urandom(100)
    add_chunks(store, [chunk])
    location = store.find(hash_chunk(chunk))
    storage.delete(f"packs/{location.pack}.pack")
    said = f"in pack {location.pack[:12]} at offset 16: the pack"
    with pytest.raises(CorruptionError, match=said):
        read_one(store, chunk)
    with pytest.raises(CorruptionError, match=said):
        collect(ChunkStore(storage), [request(chunk)])


def twins(storage, chunk):
    """Put a chunk into two packs; return their keys."""
    for other in (b"one", b"two"):
        put_pack(storage, [whole(other), whole(chunk)])
    return packs(storage)


@pytest.mark.parametrize("which", [0, 1])
def test_another_copy_of_a_damaged_chunk_is_taken(which):
    storage = MemoryStorage()
    chunk = os.urandom(500)
    keys = twins(storage, chunk)
    assert len(keys) == 2
    flip(storage, keys[which], -100)
    store = ChunkStore(storage)
    assert read_one(store, chunk) == chunk
    assert collect(store, [request(chunk)]) == {0: chunk}
    assert [problem.kind for problem in store.check(data=True)] == ["bad-chunk", "bad-pack-hash"]


class Failing(WatchedStorage):
    """Cannot read some of its objects."""

    def __init__(self, inner, keys):
        super().__init__(inner)
        self.keys = keys

    def read_into(self, key, offset, buffer):
        if key in self.keys:
            raise StorageError("cannot read: connection lost")
        super().read_into(key, offset, buffer)


@pytest.mark.parametrize("alone", [True, False])
def test_what_cannot_be_read_now_may_be_sound(alone):
    """Though another copy is damaged: nobody may take the chunk for lost."""
    storage = MemoryStorage()
    chunk = os.urandom(500)
    if alone:
        put_pack(storage, [whole(chunk)])
    else:
        flip(storage, twins(storage, chunk)[0], -100)
    store = ChunkStore(Failing(storage, packs(storage)[-1:]))
    with pytest.raises(StorageError, match="connection lost"):
        read_one(store, chunk)
    with pytest.raises(StorageError, match="connection lost"):
        collect(store, [request(chunk)])
    kinds = {problem.kind for problem in store.check(data=True)}
    assert kinds - {"bad-chunk", "bad-pack-hash"} == {"unreadable"}


def test_an_encoding_of_a_newer_mvc_says_so(monkeypatch):
    storage = MemoryStorage()
    chunk = os.urandom(100)
    with monkeypatch.context() as patch:
        from mvc.chunkstore import relatives
        from mvc.formats.encoding import EncodedChunk
        from mvc.formats.pack import References, encode_references

        block = encode_references(References((b"b" * 32,), 0, 0))
        patch.setattr(relatives, "encode_chunk", lambda *_: EncodedChunk(6, (block,), (b"b" * 32,)))
        add_chunks(ChunkStore(storage), [chunk])
    store = ChunkStore(storage)
    with pytest.raises(UnsupportedError):
        store.read_into(hash_chunk(chunk), memoryview(bytearray(100)))
    with pytest.raises(UnsupportedError):
        collect(store, [request(chunk)])
    assert [problem.kind for problem in store.check(data=True)] == ["unsupported"]
    assert list(store.check(data=False)) == []
