"""The store as its callers see it: several processes on one folder, and what rewriting spares."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from mvc.chunkstore.store import THREAD_BYTES, ChunkStore
from mvc.dtypes import get_dtype
from mvc.ids import hash_chunk
from mvc.storage.local import LocalStorage
from support.chunks import add_chunks, objects, read_back, read_one
from support.memory_storage import MemoryStorage

WRITER = """
import sys
from pathlib import Path
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkSpan
from mvc.sources import ByteSource
from mvc.storage.local import LocalStorage

class Source(ByteSource):
    def read_into(self, offset, buffer):
        number, inside = divmod(offset, 50_000)
        buffer[:] = bytes([number, number ^ 0x55]) * (len(buffer) // 2)

store = ChunkStore(LocalStorage(Path(sys.argv[1])), threads=2, target_pack_bytes=60_000)
sys.stdin.readline()
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    with store.writer() as writer:
        writer.add(Source(), [ChunkSpan(50_000 * number, 50_000, None)])
    print(number, flush=True)
"""


def start_writer(root, first, last):
    command = [sys.executable, "-c", WRITER, str(root), str(first), str(last)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def chunk(number):
    return bytes([number, number ^ 0x55]) * 25_000


def test_two_writers_of_the_same_chunks_and_a_reader(tmp_path):
    writers = [start_writer(tmp_path, 0, 30), start_writer(tmp_path, 0, 30)]
    store = ChunkStore(LocalStorage(tmp_path), threads=2)
    assert not store.contains_all([hash_chunk(chunk(0))])
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for number in range(30):
        assert writers[number % 2].stdout.readline() == f"{number}\n"  # published from here on
        if number % 2 == 0:
            writers[1].stdout.readline()
        else:
            writers[0].stdout.readline()
        assert read_one(store, chunk(number)) == chunk(number)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    ids = [hash_chunk(chunk(number)) for number in range(30)]
    fresh = ChunkStore(LocalStorage(tmp_path))
    assert read_back(fresh, ids, [chunk(number) for number in range(30)])
    assert list(fresh.check(data=True)) == []
    assert len(list(Path(tmp_path, "packs").glob("*.pack"))) == 30


def test_a_killed_writer_leaves_a_sound_store(tmp_path):
    for last in (3, 6, 9):
        writer = start_writer(tmp_path, 0, 200)
        writer.stdin.write("go\n")
        writer.stdin.flush()
        for _ in range(last):
            writer.stdout.readline()
        writer.kill()
        writer.communicate()
        store = ChunkStore(LocalStorage(tmp_path))
        assert {problem.kind for problem in store.check(data=True)} <= {"missing-index"}
        assert store.contains_all([hash_chunk(chunk(number)) for number in range(last)])
    chunks = [chunk(number) for number in range(20)]
    ids, _ = add_chunks(store, chunks)
    assert read_back(store, ids, chunks) == chunks


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
