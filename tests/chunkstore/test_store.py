"""The store as its callers see it: several processes on one folder, and what rewriting spares."""

import multiprocessing
import threading
import time
from functools import partial

import numpy as np

from mvc.chunkstore.store import THREAD_BYTES, ChunkStore
from mvc.dtypes import get_dtype
from mvc.storage.local import LocalStorage
from support.chunks import add_chunks, ids_of, objects, read_back, read_one
from support.machine import forked
from support.memory_storage import MemoryStorage

CHUNKS = [bytes([number, number ^ 0x55]) * 25_000 for number in range(200)]


def write(root, chunks):
    """Store each chunk in a session and a pack of its own."""
    store = ChunkStore(LocalStorage(root), threads=2, target_pack_bytes=60_000)
    for chunk in chunks:
        add_chunks(store, [chunk])


def test_two_writers_of_the_same_chunks_and_a_reader(tmp_path):
    store, chunks = ChunkStore(LocalStorage(tmp_path), threads=2), CHUNKS[:30]
    assert not store.contains_all(ids_of(chunks[:1]))
    with forked(*[partial(write, tmp_path, chunks)] * 2) as at_work:
        while at_work():
            for chunk in chunks[: len(list(tmp_path.glob("packs/*.pack")))]:
                assert read_one(store, chunk) == chunk
    fresh = ChunkStore(LocalStorage(tmp_path))
    assert read_back(fresh, ids_of(chunks), chunks) == chunks
    assert list(fresh.check(data=True)) == []
    assert len(list(tmp_path.glob("packs/*.pack"))) == 30


def test_a_killed_writer_leaves_a_sound_store(tmp_path):
    for last in (3, 6, 9):
        writer = multiprocessing.get_context("fork").Process(target=write, args=(tmp_path, CHUNKS))
        writer.start()
        while not ChunkStore(LocalStorage(tmp_path)).contains_all(ids_of(CHUNKS[:last])):
            time.sleep(0.001)
        writer.kill()
        writer.join()
        store = ChunkStore(LocalStorage(tmp_path))
        assert {problem.kind for problem in store.check(data=True)} <= {"missing-index"}
        assert store.contains_all(ids_of(CHUNKS[:last]))
    ids, _ = add_chunks(store, CHUNKS[:20])
    assert read_back(store, ids, CHUNKS[:20]) == CHUNKS[:20]


def test_a_lost_index_is_written_again_by_the_next_writer():
    storage = MemoryStorage()
    ids, _ = add_chunks(ChunkStore(storage, threads=1), [b"one"])
    (index,) = [key for key in objects(storage) if key.endswith(".idx")]
    before = objects(storage)[index]
    storage.delete(index)
    store = ChunkStore(storage, threads=1)
    assert store.contains_all(ids)
    assert [problem.kind for problem in store.repairs] == ["missing-index"]
    add_chunks(store, [b"one"])
    assert objects(storage)[index] == before
    assert store.repairs == []


def test_a_difference_is_estimated_from_samples():
    store = ChunkStore(MemoryStorage(), threads=1)
    old = np.random.default_rng(0).bytes(2**20)
    new = bytearray(old)
    new[::9999] = b"\xff" * len(new[::9999])
    (near, base), _ = add_chunks(store, [bytes(new), old])
    as_delta, whole = store.estimate_delta(near, base, get_dtype("U8"))
    assert as_delta < whole / 10


def test_threads_are_started_only_for_much(monkeypatch):
    started = []
    monkeypatch.setattr(
        threading.Thread,
        "start",
        lambda thread, start=threading.Thread.start: (started.append(thread), start(thread)),
    )
    parts = [b"a" * THREAD_BYTES, b"b" * THREAD_BYTES, b"less"]
    store = ChunkStore(MemoryStorage(), threads=2)
    ids, _ = add_chunks(store, parts)
    started.clear()
    for wanted, threads in (([0, 2], 0), ([0, 1], 2)):
        plains = [bytearray(len(parts[number])) for number in wanted]
        store.read_each(
            [(ids[number], memoryview(plain)) for number, plain in zip(wanted, plains, strict=True)]
        )
        assert plains == [parts[number] for number in wanted]
        assert len(started) == threads
