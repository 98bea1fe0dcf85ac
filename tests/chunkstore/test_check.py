import os

import pytest

from mvc.chunkstore.store import ChunkStore
from mvc.errors import CorruptionError, FormatError
from mvc.progress import reporting
from support.chunks import WatchedStorage, add_chunks, flip, overwrite, packs
from support.memory_storage import MemoryStorage

CHUNKS = [os.urandom(2**20 + 1) for _ in range(6)]


@pytest.fixture
def storage():
    storage = MemoryStorage()
    add_chunks(ChunkStore(storage, target_pack_bytes=2**21), CHUNKS)
    return storage


def test_a_sound_store_has_no_problems(storage):
    done = []
    with reporting(done.append):
        assert list(ChunkStore(storage, threads=2).check(data=True)) == []
    assert done == [len(storage.read(key)) for key in packs(storage)]
    assert len(done) == 3


def test_without_data_no_body_is_read(storage):
    watched = WatchedStorage(storage)
    assert list(ChunkStore(watched).check(data=False)) == []
    assert sum(size for _, _, size in watched.reads) < 20 * 2**16
    watched.reads.clear()
    assert list(ChunkStore(watched).check(data=True)) == []
    assert sum(size for _, _, size in watched.reads) > sum(map(len, CHUNKS))


def test_a_pack_that_is_deleted_while_it_is_listed_is_not_missing(storage, monkeypatch):
    pack, *_ = packs(storage)
    listed = [entry for entry in storage.list("") if entry.key != pack]
    monkeypatch.setattr(
        storage, "list", lambda prefix: (entry for entry in listed if entry.key.startswith(prefix))
    )
    storage.delete(pack)
    assert [problem.kind for problem in ChunkStore(storage).check(data=False)] == ["missing-pack"]
    storage.delete(pack.replace(".pack", ".idx"))
    assert list(ChunkStore(storage).check(data=False)) == []


def test_one_bad_pack_does_not_hide_the_others(storage):
    first, second, third = packs(storage)
    overwrite(storage, first, b"")
    flip(storage, second, 1000)
    storage.delete(third.replace(".pack", ".idx"))
    overwrite(storage, "packs/notes.txt", b"x")
    found = {}
    for problem in ChunkStore(storage, threads=2).check(data=True):
        assert problem.detail
        found.setdefault(problem.pack, set()).add(problem.kind)
    assert found == {
        "packs/notes.txt": {"stray-file"},
        first[6:-5]: {"bad-pack", "bad-chunk"},
        second[6:-5]: {"bad-chunk", "bad-pack-hash"},
        third[6:-5]: {"missing-index"},
    }


def test_the_check_may_be_given_up(storage):
    for key in packs(storage):
        overwrite(storage, key, b"")
    check = ChunkStore(storage, threads=2).check(data=True)
    next(check)
    check.close()


def test_an_index_of_a_pack_with_fewer_records(storage):
    """An index and a pack, both sound, that do not belong together."""
    key = packs(storage)[0]
    other = MemoryStorage()
    add_chunks(ChunkStore(other), [CHUNKS[0]])
    (foreign,) = packs(other)
    overwrite(storage, key, other.read(foreign))
    problems = list(ChunkStore(storage).check(data=False))
    assert [(p.kind, p.pack) for p in problems] == [("bad-pack", key[6:-5])]


def test_an_index_is_not_rebuilt_from_a_damaged_pack(storage):
    key = packs(storage)[1]
    good = storage.read(key.replace(".pack", ".idx"))
    flip(storage, key, 20)
    with pytest.raises(FormatError):
        ChunkStore(storage).rebuild_index(key[6:-5])
    assert storage.read(key.replace(".pack", ".idx")) == good
    with pytest.raises(CorruptionError, match="is missing"):
        ChunkStore(storage).rebuild_index("0" * 64)
