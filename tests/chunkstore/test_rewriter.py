"""Writing packs anew: carried bit by bit, encoded again, and nothing at all from a damaged one."""

import numpy as np
import pytest

from mvc.chunkstore import rewriter
from mvc.chunkstore.relatives import DeltaMode
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.sweep_plan import Reencode, SweepBatch, Wanted, plan_sweep
from mvc.dtypes import get_dtype
from mvc.errors import CorruptionError, StorageError
from mvc.formats.decoding import Encoding
from mvc.formats.pack import FOOTER_BYTES, HEADER_BYTES, RECORD_BYTES
from mvc.ids import hash_chunk
from mvc.progress import reporting
from mvc.storage.local import LocalStorage
from support.chunks import (
    BytesSource,
    WatchedStorage,
    find_missing,
    flip,
    ids_of,
    objects,
    overwrite,
    packs,
    read_back,
)
from support.forged import delta, put_pack, whole
from support.memory_storage import MemoryStorage

F32 = get_dtype("F32")
RANDOM = np.random.default_rng(11)
SMALL = [RANDOM.integers(0, 256, 100 + i, np.uint8).tobytes() for i in range(30)]


def needed_of(copies, chunks):
    return copies.mask(np.frombuffer(b"".join(ids_of(chunks)), "S32"))


def batch_of(*packs, encode=(), remove=None):
    """A batch that carries rows of packs, given as (pack, rows)."""
    carry = {pack: tuple(rows) for pack, rows in packs}
    return SweepBatch(tuple(encode), carry, tuple(carry if remove is None else remove), 0)


def row_of(store, pack, chunk):
    (index,) = (index for index in store.copies().indexes if index.pack == pack)
    return next(row for row in range(len(index)) if index.chunk_id(row) == hash_chunk(chunk))


def raw_body(storage, store, chunk, pack):
    place = next(p for p in store.find_all(hash_chunk(chunk)) if p.pack == pack)
    data = storage.read(f"packs/{pack}.pack")
    return data[place.offset : place.offset + RECORD_BYTES + place.stored_size_bytes]


def test_records_are_carried_bit_by_bit_in_their_order():
    storage = MemoryStorage()
    chunks = [SMALL[0], SMALL[1], SMALL[3][:100]]
    pack = put_pack(storage, [*map(whole, chunks[:2]), delta(chunks[2], chunks[0])])
    store = ChunkStore(storage)
    rows = [row_of(store, pack, chunk) for chunk in (chunks[0], chunks[2])]
    bodies = [raw_body(storage, store, chunk, pack) for chunk in chunks]
    counts = store.write_batch(batch_of((pack, rows)), {})
    (new,) = {index.pack for index in store.copies().indexes} - {pack}
    data = storage.read(f"packs/{new}.pack")
    assert data[HEADER_BYTES:-FOOTER_BYTES] == bodies[0] + bodies[2]
    assert counts.packs == 1
    assert counts.stored_bytes == len(data) + len(storage.read(f"packs/{new}.idx"))
    assert store.remove_packs([pack]) > 0
    assert read_back(store, ids_of([chunks[0], chunks[2]]), [chunks[0], chunks[2]])
    assert store.find(hash_chunk(chunks[1])) is None
    assert list(ChunkStore(storage).check(data=True)) == []


@pytest.mark.parametrize("read_bytes", [1, 300, 2**22])
@pytest.mark.parametrize("target", [1, 1000, 2**26])
def test_any_selection_from_many_packs(monkeypatch, read_bytes, target):
    monkeypatch.setattr(rewriter, "_READ_BYTES", read_bytes)
    storage = MemoryStorage()
    names = [put_pack(storage, list(map(whole, SMALL[i : i + 10]))) for i in (0, 10, 20)]
    store = ChunkStore(storage, target_pack_bytes=target)
    kept = [SMALL[i] for i in RANDOM.permutation(30)[:17]]
    copies = store.copies()
    plan = plan_sweep(copies, Wanted(needed_of(copies, kept)))
    seen = []
    for batch in plan.batches:
        with reporting(seen.append):
            store.write_batch(batch, {})
        store.remove_packs(batch.remove)
    assert sum(seen) == sum(index.pack_size_bytes for index in copies.indexes)
    assert not set(packs(storage)) & {f"packs/{name}.pack" for name in names}
    fresh = ChunkStore(storage, threads=1)
    assert read_back(fresh, ids_of(kept), kept) == kept
    assert len(fresh.copies()) == 17
    assert list(fresh.check(data=True)) == []


@pytest.mark.parametrize("target", [1, 2**26])
def test_nothing_is_published_of_a_damaged_pack(target):
    """Wherever the damage is, and though its packs fill up before all of it was read."""
    storage = MemoryStorage()
    pack = put_pack(storage, list(map(whole, SMALL[:4])))
    key, data = f"packs/{pack}.pack", storage.read(f"packs/{pack}.pack")
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 16
        overwrite(storage, key, damaged)
        before = objects(storage)
        store = ChunkStore(storage, target_pack_bytes=target)
        with pytest.raises(CorruptionError, match=pack[:12]):
            store.write_batch(batch_of((pack, range(3))), {})
        assert objects(storage) == before
    overwrite(storage, key, data)
    store = ChunkStore(storage, target_pack_bytes=target)
    store.write_batch(batch_of((pack, range(3))), {})
    assert len(packs(storage)) > 1


def test_a_pack_that_is_gone_or_cut_short():
    storage = MemoryStorage()
    pack = put_pack(storage, list(map(whole, SMALL[:4])))
    key, data = f"packs/{pack}.pack", storage.read(f"packs/{pack}.pack")
    for act in (lambda: overwrite(storage, key, data[:-50]), lambda: storage.delete(key)):
        store = ChunkStore(storage)
        assert store.contains_all(ids_of(SMALL[:4]))
        act()
        for _ in range(2):
            with pytest.raises(CorruptionError, match=r"damaged|expected|gone"):
                store.write_batch(batch_of((pack, range(3))), {})
            store.refresh()
        overwrite(storage, key, data)


def make_series(length, size_bytes=32768):
    chunk = RANDOM.normal(0, 0.02, size_bytes // 4).astype("<f4")
    chunks = [chunk.tobytes()]
    for _ in range(length):
        chunk = chunk + RANDOM.normal(0, 1e-6, chunk.size).astype("<f4")
        chunks.append(chunk.tobytes())
    return chunks


def test_chunks_are_encoded_again():
    storage = MemoryStorage()
    a, b, c = make_series(2)
    put_pack(storage, [whole(a), whole(b), delta(c, b)])
    store = ChunkStore(storage, threads=1)
    batch = batch_of(encode=[Reencode(hash_chunk(b), hash_chunk(a)), Reencode(hash_chunk(c), None)])
    counts = store.write_batch(batch, dict.fromkeys(ids_of([a, b]), F32))
    assert counts.new_chunks == 2
    (old, new) = sorted(store.copies().indexes, key=len, reverse=True)
    found = {record.chunk_id: record for record in new.records()}
    assert found[hash_chunk(b)].encoding == Encoding.DELTA
    assert found[hash_chunk(b)].bases == (hash_chunk(a),)
    assert not found[hash_chunk(c)].bases
    assert list(store.check(data=True)) == []
    assert store.find_unsafe([old.pack], np.frombuffer(b"".join(ids_of([b])), "S32"))
    assert not store.find_unsafe([old.pack], np.frombuffer(b"".join(ids_of([c])), "S32"))


def test_a_chunk_that_cannot_be_had_is_not_encoded_again():
    a, b, c = make_series(2)
    for gone in (True, False):
        storage = MemoryStorage()
        pack = put_pack(storage, [whole(a), delta(b, a)])
        store = ChunkStore(storage, threads=1)
        if not gone:
            place = store.find(hash_chunk(a))
            flip(storage, f"packs/{pack}.pack", place.offset + RECORD_BYTES + 99)
        before = objects(storage)
        with pytest.raises(CorruptionError, match=hash_chunk(c if gone else b).hex()[:12]):
            store.write_batch(batch_of(encode=[Reencode(hash_chunk(c if gone else b), None)]), {})
        assert objects(storage) == before


def test_a_damaged_copy_beside_a_sound_one_is_passed_by():
    a, b = make_series(1)
    for number in range(6):
        storage = MemoryStorage()
        pack = put_pack(storage, [whole(bytes([number])), delta(b, a)])
        put_pack(storage, [whole(a), whole(bytes([9, number]))])
        put_pack(storage, [delta(b, a), whole(bytes([8, number]))])
        flip(
            storage, f"packs/{pack}.pack", HEADER_BYTES + 2 * RECORD_BYTES + 1 + 9
        )  # in the reference block
        store = ChunkStore(storage, threads=1)
        store.write_batch(batch_of(encode=[Reencode(hash_chunk(b), None)]), {})
        found = ChunkStore(storage).find(hash_chunk(b))
        assert not found.bases
        assert read_back(store, [hash_chunk(b)], [b]) == [b]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_packs_do_not_depend_on_threads(threads):
    random = np.random.default_rng(3)
    chunks = [random.normal(0, 0.02, 8192).astype("<f4").tobytes() for _ in range(12)]
    later = [(np.frombuffer(c, "<f4") + np.float32(1e-6)).tobytes() for c in chunks]
    found = []
    for number in (1, threads):
        storage = MemoryStorage()
        pack = put_pack(storage, list(map(whole, chunks)))
        other = put_pack(storage, list(map(whole, later)))
        store = ChunkStore(storage, threads=number, target_pack_bytes=100_000)
        pairs = zip(ids_of(later), ids_of(chunks), strict=True)
        encode = [Reencode(*pair) for pair in pairs]
        batch = batch_of((pack, range(12)), encode=encode, remove=[pack, other])
        store.write_batch(batch, dict.fromkeys(ids_of(later), F32))
        needed = np.frombuffer(b"".join(ids_of([*chunks, *later])), "S32")
        assert store.find_unsafe(batch.remove, needed) == []
        store.remove_packs(batch.remove)
        assert read_back(store, ids_of(later), later) == later
        found.append(objects(storage))
    assert found[0] == found[1]


def test_a_failing_disk_leaves_what_there_was():
    a, b = make_series(1)
    for step in range(1, 40):
        inner = MemoryStorage()
        pack = put_pack(inner, [whole(a), whole(b), whole(SMALL[0])])
        before = objects(inner)
        storage = WatchedStorage(inner, fail_at=step)
        store = ChunkStore(storage, threads=1, target_pack_bytes=1)
        batch = batch_of((pack, range(3)), encode=[Reencode(hash_chunk(b), hash_chunk(a))])
        try:
            store.write_batch(batch, {})
        except StorageError:
            assert storage.pending == 0
            assert {key: data for key, data in objects(inner).items() if key in before} == before
            assert read_back(ChunkStore(inner, threads=1), ids_of([a, b]), [a, b]) == [a, b]
        else:
            break
    assert 8 < step < 39


def test_removing_packs_says_what_it_freed(tmp_path):
    storage = LocalStorage(tmp_path)
    names = [put_pack(storage, [whole(SMALL[i])]) for i in range(3)]
    store = ChunkStore(storage)
    size_bytes = sum(info.size_bytes for info in storage.list("packs/"))
    assert store.contains_all(ids_of(SMALL[:3]))
    assert store.remove_packs(names) == size_bytes
    assert list(storage.list("packs/")) == []
    assert find_missing(store, ids_of(SMALL[:3])) == ids_of(SMALL[:3])
    assert store.remove_packs(names) == 0


def test_packs_that_were_just_written_are_not_removed():
    storage = MemoryStorage()
    pack = put_pack(storage, list(map(whole, sorted(SMALL[:3], key=hash_chunk))))
    store = ChunkStore(storage)
    store.copies()
    counts = store.write_batch(batch_of((pack, [0, 1, 2])), {})
    assert counts.packs == 1
    needed = np.frombuffer(b"".join(ids_of(SMALL[:3])), "S32")
    assert store.find_unsafe([pack], needed) == []
    assert store.remove_packs([pack]) == 0, "what was written is the very same pack"
    assert read_back(store, ids_of(SMALL[:3]), SMALL[:3]) == SMALL[:3]
    store.copies()
    assert store.find_unsafe([pack], needed) != []


def test_a_writer_beside_a_sweep_finds_what_it_needs():
    """A commit that begins while packs are written anew, and one that begins after."""
    storage = MemoryStorage()
    a, b = make_series(1)
    pack = put_pack(storage, [whole(a), whole(SMALL[0])])
    sweeper, committer = ChunkStore(storage), ChunkStore(storage)
    assert committer.contains_all(ids_of([a]))
    rows = [row_of(sweeper, pack, a)]
    sweeper.write_batch(batch_of((pack, rows)), {})
    sweeper.remove_packs([pack])
    with committer.writer(DeltaMode.ALWAYS) as writer:
        span = rewriter.ChunkSpan(0, len(b), F32, base=hash_chunk(a))
        writer.add(BytesSource(b), [span])
    assert committer.find(hash_chunk(b)).encoding == Encoding.DELTA
    assert list(ChunkStore(storage).check(data=True)) == []
