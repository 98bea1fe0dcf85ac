import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.chunkstore.catalog import PackCatalog
from mvc.chunkstore.copies import ChunkTable
from mvc.chunkstore.listing import index_key, pack_key
from mvc.chunkstore.store import ChunkStore
from mvc.formats.pack import PackRecord
from mvc.formats.pack_index import index_records
from mvc.ids import hash_chunk
from support.chunks import (
    WatchedStorage,
    add_chunks,
    find_missing,
    flip,
    objects,
    overwrite,
    read_back,
    read_one,
)
from support.memory_storage import MemoryStorage

# Few different bytes, in front or at the end: equal prefixes and trailing zeros are common.
hard_ids = st.builds(
    lambda front, back: bytes(8 - len(front)) + front + back + bytes(24 - len(back)),
    st.binary(max_size=1),
    st.binary(max_size=2),
)


def make_index(number, ids):
    records, offset = [], 16
    for i, chunk_id in enumerate(ids):
        records.append(PackRecord(chunk_id, i % 5, 100 + i, 50 + i, offset))
        offset = records[-1].end
    return index_records(f"{number:064x}", offset + 32, records)


@given(
    st.lists(st.lists(hard_ids, min_size=1, max_size=8, unique=True), max_size=6),
    st.lists(hard_ids, max_size=10),
)
def test_a_table_is_a_dictionary_of_lists(packs, others):
    indexes = [make_index(number, ids) for number, ids in enumerate(packs)]
    model = {}
    for index in indexes:
        for record in index.records():
            model.setdefault(record.chunk_id, []).append((index.pack, record))
    table = ChunkTable(indexes)
    assert len(table) == sum(map(len, packs))
    wanted = [*model, *others]
    for chunk_id in wanted:
        found = [
            (
                p.pack,
                PackRecord(chunk_id, p.encoding, p.plain_size_bytes, p.stored_size_bytes, p.offset),
            )
            for p in table.find_all(chunk_id)
        ]
        assert found == model.get(chunk_id, [])
    if wanted:
        known = table.contains_each(np.frombuffer(b"".join(wanted), "S32"))
        assert known.tolist() == [chunk_id in model for chunk_id in wanted]


def test_many_ids_are_looked_up_at_once():
    ids = [hash_chunk(i.to_bytes(4, "little")) for i in range(20_000)]
    store = ChunkStore(MemoryStorage())
    for index in (make_index(n, ids[n * 500 : n * 500 + 500]) for n in range(20)):
        store._catalog.add(index)
    assert find_missing(store, ids) == ids[10_000:]
    assert find_missing(store, iter(reversed(ids))) == ids[:9_999:-1]
    assert store.contains_all(ids[:10_000])
    assert not store.contains_all(ids[:10_001])
    assert store.contains_all([])
    assert find_missing(store, []) == []
    assert store.find(ids[7_777]).pack == f"{7_777 // 500:064x}"
    assert len(store._catalog._tables) <= 2


def test_nothing_is_read_before_it_is_needed():
    storage = MemoryStorage()
    add_chunks(ChunkStore(storage), [b"abc"])

    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(name)

    ChunkStore(Untouchable())
    watched = WatchedStorage(storage)
    ChunkStore(watched).find(hash_chunk(b"abc"))
    assert watched.reads == []


def test_refresh_sees_new_and_removed_packs():
    storage = MemoryStorage()
    ours, theirs = ChunkStore(storage), ChunkStore(storage)
    assert not ours.contains_all([hash_chunk(b"a")])
    for name in (b"a", b"b", b"c"):
        add_chunks(theirs, [name])
    assert ours.refresh() is True
    assert ours.refresh() is False
    assert ours.contains_all([hash_chunk(b"a"), hash_chunk(b"b"), hash_chunk(b"c")])
    location = ours.find(hash_chunk(b"b"))
    storage.delete(pack_key(location.pack))
    storage.delete(index_key(location.pack))
    assert ours.refresh() is True
    assert ours.find(hash_chunk(b"b")) is None
    assert ours.contains_all([hash_chunk(b"a"), hash_chunk(b"c")])


CHUNKS = [os.urandom(400), b"second chunk" * 20, b"", b"x"]


@pytest.fixture
def storage():
    storage = MemoryStorage()
    add_chunks(ChunkStore(storage), CHUNKS)
    return storage


def only_pack(storage):
    (key,) = (key for key in objects(storage) if key.endswith(".pack"))
    return key, key.replace(".pack", ".idx")


IDS = [hash_chunk(chunk) for chunk in CHUNKS]


@pytest.mark.parametrize("damage", ["missing", "flipped", "foreign", "huge"])
def test_reading_goes_on_without_an_index(storage, damage, monkeypatch):
    pack, index = only_pack(storage)
    if damage == "missing":
        storage.delete(index)
    elif damage == "flipped":
        flip(storage, index, 60)
    elif damage == "foreign":
        overwrite(storage, index, encode_foreign_index())
    else:
        monkeypatch.setattr("mvc.chunkstore.catalog.MAX_INDEX_BYTES", 10)
    store = ChunkStore(storage)
    assert read_back(store, IDS, CHUNKS) == CHUNKS
    (repair,) = store.repairs
    assert repair.kind == ("missing-index" if damage == "missing" else "bad-index")
    assert repair.pack in pack
    if damage != "huge":
        assert [problem.kind for problem in store.check(data=True)] == [repair.kind]
        store.rebuild_index(repair.pack)
        assert list(store.check(data=True)) == store.repairs == []
        fresh = ChunkStore(storage)
        assert read_back(fresh, IDS, CHUNKS) == CHUNKS
        assert fresh.repairs == []


def encode_foreign_index():
    other = MemoryStorage()
    add_chunks(ChunkStore(other), [b"other"])
    return other.read(only_pack(other)[1])


def test_what_is_left_of_a_damaged_pack_is_found_without_its_index(storage):
    pack, index = only_pack(storage)
    storage.delete(index)
    data = storage.read(pack)
    location = ChunkStore(storage).find(IDS[1])
    overwrite(storage, pack, data[: location.offset + 70])
    store = ChunkStore(storage)
    assert find_missing(store, IDS) == IDS[1:]
    assert read_one(store, CHUNKS[0]) == CHUNKS[0]


def test_garbage_as_a_pack_is_no_obstacle(storage):
    for name, data in (("a" * 64, b""), ("b" * 64, os.urandom(500)), ("c" * 64, b"mvcpack\0")):
        overwrite(storage, f"packs/{name}.pack", data)
    for name in ("readme.txt", "d" * 63 + ".pack", "D" * 64 + ".pack", "e" * 64 + ".pack.bak"):
        overwrite(storage, f"packs/{name}", b"x")
    store = ChunkStore(storage)
    assert read_back(store, IDS, CHUNKS) == CHUNKS
    assert sorted(p.kind for p in store.check(data=True)).count("stray-file") == 4


def test_chunks_of_a_shortened_pack_are_stored_again(storage):
    pack, _ = only_pack(storage)
    whole = storage.read(pack)
    overwrite(storage, pack, whole[:-40])
    store = ChunkStore(storage)
    assert find_missing(store, IDS) == IDS
    assert store.find(IDS[0]) is not None
    assert read_one(store, CHUNKS[0]) == CHUNKS[0]
    _, counts = add_chunks(store, CHUNKS)
    assert counts.new_chunks == 4
    assert storage.read(pack) == whole
    assert read_back(store, IDS, CHUNKS) == CHUNKS
    assert list(store.check(data=True)) == []


def test_an_index_without_its_pack_is_no_promise(storage):
    pack, _ = only_pack(storage)
    storage.delete(pack)
    store = ChunkStore(storage)
    assert find_missing(store, IDS) == IDS
    assert [problem.kind for problem in store.check(data=False)] == ["missing-pack"]
    add_chunks(store, CHUNKS)
    assert read_back(store, IDS, CHUNKS) == CHUNKS
    assert list(store.check(data=True)) == []


def test_sound_packs_come_before_damaged_ones(storage):
    pack, _ = only_pack(storage)
    overwrite(storage, pack, storage.read(pack)[:-1])
    scratch = MemoryStorage()
    add_chunks(ChunkStore(scratch), [b"another first", *CHUNKS])
    for key, data in objects(scratch).items():
        overwrite(storage, key, data)
    catalog = PackCatalog(storage)
    places = list(catalog.find_all(IDS[0]))
    assert [pack_key(place.pack) == pack for place in places] == [False, True]
    assert catalog.find(IDS[0]) == places[0]


def test_an_index_appearing_later_is_not_a_repair():
    storage = MemoryStorage()
    ours, theirs = ChunkStore(storage), ChunkStore(storage)
    seen = []

    class Slow(WatchedStorage):
        def step(self):
            super().step()
            ours.refresh()
            seen.append(len(ours.repairs))

    ours._catalog.storage = storage
    store = ChunkStore(Slow(storage))
    add_chunks(store, [b"abc"])
    assert max(seen) == 1
    assert store.repairs == []
    assert theirs.repairs == []
    assert ours.contains_all([hash_chunk(b"abc")])


def test_the_generation_changes_only_once_the_new_tables_are_there(monkeypatch):
    """A reader that sees the new number and misses in the old tables would give up too early."""
    storage = MemoryStorage()
    catalog = PackCatalog(storage)
    before = catalog.generation
    chunk = os.urandom(100)
    add_chunks(ChunkStore(storage), [chunk])
    seen = []

    class Watched(ChunkTable):
        def __init__(self, packs):
            seen.append((catalog._generation, catalog.find(hash_chunk(chunk))))
            super().__init__(packs)

    monkeypatch.setattr("mvc.chunkstore.catalog.ChunkTable", Watched)
    assert catalog.refresh()
    assert seen
    assert set(seen) == {(before, None)}
    assert catalog.generation > before
    assert catalog.find(hash_chunk(chunk)) is not None
