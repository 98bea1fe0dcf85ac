"""Reading what needs other chunks: chains, roundings, lost bases, hostile packs."""

import threading
from itertools import pairwise

import numpy as np
import pytest

from mvc.chunkstore import chains
from mvc.chunkstore.chains import Buffers, ReadSlot
from mvc.chunkstore.store import ChunkStore
from mvc.dtypes import get_dtype
from mvc.errors import CorruptionError, FormatError, StorageError
from mvc.formats.pack import MAX_DEPTH, RECORD_BYTES
from mvc.ids import ChunkId, hash_chunk
from support.cases import for_each
from support.chunks import (
    WatchedStorage,
    find_missing,
    flip,
    objects,
    overwrite,
    read_back,
    read_one,
)
from support.forged import cast, delta, put_pack, rounded, whole
from support.memory_storage import MemoryStorage

RANDOM = np.random.default_rng(5)


def make_chain(length, size_bytes=3000):
    """Chunks of which each resembles the one before."""
    chunk = RANDOM.integers(0, 256, size_bytes, np.uint8)
    chunks = [chunk.tobytes()]
    for _ in range(length):
        chunk = chunk.copy()
        chunk[RANDOM.integers(0, size_bytes, 20)] += 1
        chunks.append(chunk.tobytes())
    return chunks


def chain_records(chunks):
    pairs = zip(chunks[1:], chunks, strict=False)
    return [whole(chunks[0]), *(delta(chunk, base) for chunk, base in pairs)]


def read(store, plain):
    """Read a chunk in both ways; both must agree, and return its error if there is one."""
    errors = []
    for ask in (
        lambda: read_one(store, plain),
        lambda: read_back(store, [hash_chunk(plain)], [plain])[0],
    ):
        try:
            assert ask() == plain
        except CorruptionError as error:
            errors.append(error)
    if not errors:
        return None
    assert errors[0].message.replace(" of chunk 0", "") == errors[-1].message.replace(
        " of chunk 0", ""
    )
    assert len(errors) == 2
    return errors[0]


def decode_at_once(store, storage, plain):
    """Decode a chunk without the second try that reads every base by itself."""
    place = store.find(hash_chunk(plain))
    data = bytearray(place.end - place.offset)
    storage.read_into(f"packs/{place.pack}.pack", place.offset, memoryview(data))
    buffer = bytearray(len(plain))
    body = memoryview(data)[RECORD_BYTES:]
    store._reader.chains.decode(place, body, memoryview(buffer), ReadSlot())
    return bytes(buffer) == plain


def damage(storage, store, plain, pack=None, at=5):
    """Flip a bit in the body of a chunk; return where it lies."""
    places = store.find_all(hash_chunk(plain))
    place = next(place for place in places if pack in (None, place.pack))
    key = f"packs/{place.pack}.pack"
    flip(storage, key, place.offset + RECORD_BYTES + at)
    return place


def test_memory_is_kept_though_every_body_is_a_little_longer():
    buffers = Buffers()
    places = [
        np.frombuffer(buffers.buffer("stored", size_bytes), np.uint8).ctypes.data
        for size_bytes in range(2_700_000, 2_800_000, 1000)
    ]
    assert len(set(places)) == 1
    assert len(buffers.buffer("stored", 0)) == 0


@for_each("spread", [False, True])
@for_each("length", [1, 2, 3, 5, MAX_DEPTH])
def test_chains_up_to_the_limit(length, spread):
    chunks = make_chain(length)
    records = chain_records(chunks)
    storage = MemoryStorage()
    for pack in [[one] for one in records] if spread else [records]:
        put_pack(storage, pack)
    store = ChunkStore(storage, threads=2)
    ids = [hash_chunk(chunk) for chunk in chunks]
    assert find_missing(store, ids) == []
    assert read_back(store, ids, chunks) == chunks
    assert [read(store, chunk) for chunk in chunks] == [None] * len(chunks)
    assert all(decode_at_once(store, storage, chunk) for chunk in chunks)
    assert list(store.check(data=True)) == []


@pytest.mark.parametrize(
    "length", [MAX_DEPTH + 1, pytest.param(MAX_DEPTH + 20, marks=pytest.mark.slow)]
)
def test_a_longer_chain_is_refused(length):
    chunks = make_chain(length)
    storage = MemoryStorage()
    put_pack(storage, chain_records(chunks))
    store = ChunkStore(storage, threads=1)
    missing = find_missing(store, [hash_chunk(chunk) for chunk in chunks])
    assert missing == [hash_chunk(chunk) for chunk in chunks[MAX_DEPTH + 1 :]]
    for number, chunk in enumerate(chunks):
        error = read(store, chunk)
        assert (error is None) == (number <= MAX_DEPTH)
        if error is not None:
            assert "readers follow at most 100 references in a row" in error.message
            assert error.message.count("based on") == 1
    problems = list(store.check(data=True))
    assert [problem.kind for problem in problems] == ["lost-base"] * (length - MAX_DEPTH)


@pytest.mark.parametrize("links", [0, 1, 4])
def test_roundings_of_chunks_that_are_differences(links):
    firsts, seconds = make_chain(links, 4096), make_chain(links, 2048)
    storage = MemoryStorage()
    put_pack(storage, chain_records(firsts))
    put_pack(storage, chain_records(seconds))
    plain = rounded(firsts[-1], seconds[-1])
    half = rounded(seconds[-1])
    ids = [hash_chunk(firsts[-1]), hash_chunk(seconds[-1])]
    put_pack(storage, [cast(plain, ids), cast(half, ids[1:])])
    after = make_chain(1, len(plain))[0]
    put_pack(storage, [delta(after, plain)])
    store = ChunkStore(storage, threads=1)
    assert [read(store, chunk) for chunk in (plain, half, after)] == [None] * 3
    assert all(decode_at_once(store, storage, chunk) for chunk in (plain, half, after))
    assert list(store.check(data=True)) == []


def test_the_same_chunk_twice_is_rounded():
    master = make_chain(0, 2048)[0]
    storage = MemoryStorage()
    plain = rounded(master, master)
    put_pack(storage, [whole(master), cast(plain, [hash_chunk(master)] * 2)])
    assert read(ChunkStore(storage), plain) is None


def test_what_the_words_of_a_chunk_are():
    master, later = make_chain(1, 2048)
    storage = MemoryStorage()
    put_pack(
        storage, [whole(master), cast(rounded(master), [hash_chunk(master)]), delta(later, master)]
    )
    reader = ChunkStore(storage)._reader.chains
    dtypes = [
        reader.find_dtype(hash_chunk(chunk), ReadSlot())
        for chunk in (master, rounded(master), later)
    ]
    assert dtypes == [None, get_dtype("BF16"), get_dtype("U8")]


@pytest.mark.parametrize("at", [5, 2900])
def test_another_copy_of_a_damaged_base_will_do(at):
    chunks = make_chain(3)
    records = chain_records(chunks)
    storage = MemoryStorage()
    first = put_pack(storage, records[:1])
    put_pack(storage, records[1:])
    store = ChunkStore(storage, threads=1)
    damage(storage, store, chunks[0], first, at)
    error = read(store, chunks[3])
    assert f"chunk {hash_chunk(chunks[0]).hex()[:12]} in pack {first[:12]}" in error.message
    assert "at offset 16: the bytes there do not match" in error.message
    assert error.message.startswith(f"chunk {hash_chunk(chunks[3]).hex()[:12]} in pack ")
    for number in range(20):  # whichever of the two comes first
        put_pack(storage, [whole(chunks[0]), whole(bytes([number]))])
        assert read(store, chunks[3]) is None, "a reader looks again"
        assert read(ChunkStore(storage, threads=1), chunks[3]) is None


def test_damage_in_the_middle_of_a_chain_is_named():
    chunks = make_chain(4)
    storage = MemoryStorage()
    put_pack(storage, chain_records(chunks))
    store = ChunkStore(storage, threads=1)
    place = damage(storage, store, chunks[2], at=60)
    for number, chunk in enumerate(chunks):
        error = read(store, chunk)
        assert (error is None) == (number < 2)
        if error is not None:
            assert f"chunk {hash_chunk(chunks[2]).hex()[:12]} in pack" in error.message
            assert f"at offset {place.offset:,}:" in error.message
    kinds = {(item.kind, item.chunk) for item in store.check(data=True) if item.chunk}
    assert kinds == {
        ("bad-chunk", hash_chunk(chunks[2])),
        ("lost-base", hash_chunk(chunks[3])),
        ("lost-base", hash_chunk(chunks[4])),
    }


def test_a_delta_with_a_damaged_body_and_a_whole_copy_elsewhere():
    chunks = make_chain(1)
    storage = MemoryStorage()
    name = put_pack(storage, chain_records(chunks))
    put_pack(storage, [whole(chunks[1])])
    store = ChunkStore(storage)
    for at in (2, 20, 45):
        damage(storage, store, chunks[1], name, at)
    assert read(store, chunks[1]) is None


def test_a_missing_base_is_named_and_the_chunk_counts_as_missing():
    chunks = make_chain(2)
    storage = MemoryStorage()
    put_pack(storage, chain_records(chunks)[1:])
    store = ChunkStore(storage, threads=1)
    assert find_missing(store, map(hash_chunk, chunks)) == [hash_chunk(chunk) for chunk in chunks]
    error = read(store, chunks[2])
    assert hash_chunk(chunks[0]).hex()[:12] in error.message
    assert "in no pack" in error.message
    put_pack(storage, [whole(chunks[0])])
    assert read(store, chunks[2]) is None
    store.refresh()
    assert find_missing(store, map(hash_chunk, chunks)) == []


@pytest.mark.parametrize("keep_index", [False, True])
def test_every_record_is_checked_where_the_pack_of_a_base_is_gone(keep_index):
    """A lost pack must not hide damage in those that depend on it."""
    chunks, other = make_chain(2), make_chain(0)[0]
    records = chain_records(chunks)
    storage = MemoryStorage()
    first = put_pack(storage, records[:1])
    name = put_pack(storage, [*records[1:], whole(other)])
    store = ChunkStore(storage, threads=1)
    damage(storage, store, other, name)
    storage.delete(f"packs/{first}.pack")
    if not keep_index:
        storage.delete(f"packs/{first}.idx")
    for reader in (store, ChunkStore(storage, threads=1)):
        found = [(item.kind, item.chunk) for item in reader.check(data=True)]
        assert ("lost-base", hash_chunk(chunks[1])) in found
        assert ("lost-base", hash_chunk(chunks[2])) in found
        assert ("bad-chunk", hash_chunk(other)) in found
        assert "the pack is missing" in read(reader, chunks[2]).message or not keep_index
    done = store.salvage(name)
    assert (done.kept, done.lost) == (2, 1)


class MovingStorage(WatchedStorage):
    """Runs something before a read, once."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.before_read = None
        self.on_missing = None

    def read_into(self, key, offset, buffer):
        if self.before_read is not None and self.before_read[0] in key:
            _, act = self.before_read
            self.before_read = None
            act()
        try:
            super().read_into(key, offset, buffer)
        except FileNotFoundError:
            if self.on_missing is not None:
                act, self.on_missing = self.on_missing, None
                act()
            raise


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("also_seen", [False, True], ids=["alone", "another thread sees it first"])
def test_the_pack_of_a_base_moves_during_a_read(small, also_seen):
    size = 3000 if small else 300_000
    chunks = make_chain(3, size)
    records = chain_records(chunks)
    other = make_chain(0)[0]
    for ask in ("one", "many"):
        storage = MovingStorage(MemoryStorage())
        first = put_pack(storage, records[:2])
        put_pack(storage, records[2:])
        store = ChunkStore(storage, threads=1)
        assert read(store, chunks[3]) is None
        store._idle_slots.clear()  # a window there may still hold the base

        def move(storage=storage, first=first):
            put_pack(storage, [whole(other), *records[:2]])
            storage.inner.delete(f"packs/{first}.idx")
            storage.inner.delete(f"packs/{first}.pack")

        storage.before_read = (first, move)
        storage.on_missing = store.refresh if also_seen else None
        if ask == "one":
            store.read_into(hash_chunk(chunks[3]), memoryview(bytearray(size)))
        else:
            assert read_back(store, [hash_chunk(chunks[3])], chunks[3:]) == chunks[3:]
        assert storage.before_read is None


def test_a_chunk_itself_moves_while_another_thread_looks():
    """The other thread has refreshed already, so that nothing changes any more: look anyway."""
    storage = MovingStorage(MemoryStorage())
    plain = make_chain(0)[0]
    first = put_pack(storage, [whole(plain)])
    store = ChunkStore(storage, threads=1)
    assert read(store, plain) is None
    put_pack(storage, [whole(b"other"), whole(plain)])
    storage.inner.delete(f"packs/{first}.pack")
    storage.inner.delete(f"packs/{first}.idx")
    storage.on_missing = store.refresh
    store.read_into(hash_chunk(plain), memoryview(bytearray(len(plain))))


class FaultyStorage(WatchedStorage):
    """A disk with places that cannot be read."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.bad = {}

    def read_into(self, key, offset, buffer):
        place = self.bad.get(key)
        if place is not None and offset <= place < offset + len(buffer):
            raise StorageError(f"{key}: input/output error")
        super().read_into(key, offset, buffer)


def test_a_bad_place_behind_a_small_base_costs_nothing():
    chunks, other = make_chain(2), make_chain(0)[0]
    storage = FaultyStorage(MemoryStorage())
    name = put_pack(storage, [*chain_records(chunks), whole(other)])
    store = ChunkStore(storage, threads=1)
    storage.bad[f"packs/{name}.pack"] = store.find(hash_chunk(other)).offset + 100
    assert read(store, chunks[2]) is None
    assert decode_at_once(store, storage, chunks[2])
    with pytest.raises(StorageError, match="input/output"):
        store.read_into(hash_chunk(other), memoryview(bytearray(len(other))))


def test_another_copy_of_a_base_that_the_disk_refuses():
    chunks = make_chain(2)
    records = chain_records(chunks)
    storage = FaultyStorage(MemoryStorage())
    names = [put_pack(storage, [whole(bytes([n])), records[0]]) for n in range(2)]
    put_pack(storage, records[1:])
    for name in names:
        storage.bad = {f"packs/{name}.pack": 300}
        assert read(ChunkStore(storage, threads=1), chunks[2]) is None
    storage.bad = {f"packs/{name}.pack": 300 for name in names}
    with pytest.raises(StorageError, match="input/output"):
        store = ChunkStore(storage, threads=1)
        store.read_into(hash_chunk(chunks[2]), memoryview(bytearray(3000)))


def test_small_bases_are_read_through_a_window():
    bases = [make_chain(0)[0] for _ in range(60)]
    chunks = [bytes([base[0] ^ 1]) + base[1:] for base in bases]
    inner = MemoryStorage()
    first = put_pack(inner, [whole(base) for base in bases])
    put_pack(inner, [delta(*pair) for pair in zip(chunks, bases, strict=True)])
    storage = WatchedStorage(inner)
    store = ChunkStore(storage, threads=1)
    ids = [hash_chunk(chunk) for chunk in chunks]
    assert find_missing(store, ids) == []
    storage.reads.clear()
    assert read_back(store, ids, chunks) == chunks
    assert len([key for key, *_ in storage.reads if first in key]) < 15
    size_bytes = len(inner.read(f"packs/{first}.pack"))
    assert all(offset + size <= size_bytes for key, offset, size in storage.reads if first in key)


def test_windows_are_right_at_every_edge():
    """Records of sizes around that of the window, read in every order, each from one slot."""
    limit = chains._WINDOW_RECORD_BYTES - RECORD_BYTES
    sizes = [6, limit - 1, limit, limit + 1, 5, chains._WINDOW_BYTES, 7, limit, 8, 900]
    storage = MemoryStorage()
    bases = [RANDOM.integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    for number in range(12):  # more packs than windows
        put_pack(storage, [whole(base) for base in [*bases, bytes([number])]])
    store = ChunkStore(storage)
    slot = ReadSlot()
    for number in RANDOM.permutation(np.repeat(np.arange(len(sizes)), 20)).tolist():
        base = bases[number]
        places = list(store.find_all(hash_chunk(base)))
        place = places[RANDOM.integers(len(places))]
        body = store._reader.chains._read_body(place, slot)
        assert body == base
        assert len(slot.windows) <= chains._WINDOWS
        assert sum(len(window) for _, window in slot.windows.values()) <= 8 * 2**18


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_record_that_ends_about_where_a_window_does(over):
    quarter = chains._WINDOW_BYTES // 4
    sizes = [quarter, quarter, quarter, quarter // 2, quarter // 2 + over, 500]
    chunks = [RANDOM.integers(0, 256, size - RECORD_BYTES, np.uint8).tobytes() for size in sizes]
    storage = WatchedStorage(MemoryStorage())
    put_pack(storage, list(map(whole, chunks)))
    store = ChunkStore(storage)
    places = [store.find(hash_chunk(chunk)) for chunk in chunks]
    slot = ReadSlot()
    storage.reads.clear()
    for number in (0, 4):
        body = store._reader.chains._read_body(places[number], slot)
        assert body == chunks[number]
    assert len(storage.reads) == 1 + (over > 0)


def test_many_threads_read_chains_while_packs_move():
    sets = [make_chain(4, 20_000) for _ in range(6)]
    chunks = [chunk for one in sets for chunk in one]
    records = [record for one in sets for record in chain_records(one)]
    storage = MemoryStorage()
    names = [put_pack(storage, records)]
    store = ChunkStore(storage, threads=3)
    ids = [hash_chunk(chunk) for chunk in chunks]
    problems = []

    def run(number):
        order = np.random.default_rng(number).permutation(len(chunks)).tolist()
        try:
            for _ in range(6):
                found = read_back(store, [ids[i] for i in order], [chunks[i] for i in order])
                assert found == [chunks[i] for i in order]
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(12):
        cut = 1 + number * 2
        names += [put_pack(storage, records[cut:]), put_pack(storage, records[:cut])]
        for suffix in ("idx", "pack"):
            storage.delete(f"packs/{names[0]}.{suffix}")
        for name in names[1:-2]:
            storage.delete(f"packs/{name}.idx")
            storage.delete(f"packs/{name}.pack")
    for thread in threads:
        thread.join()
    assert problems == []


# --- hostile packs -----------------------------------------------------------------------------


def refuse(storage, *chunks):
    store = ChunkStore(storage, threads=1)
    errors = [read(store, chunk) for chunk in chunks]
    assert None not in errors
    list(store.check(data=True))
    return [error.message for error in errors]


def test_a_chunk_based_on_itself():
    plain = make_chain(0)[0]
    storage = MemoryStorage()
    put_pack(storage, [delta(plain, plain)])
    refuse(storage, plain)
    assert find_missing(ChunkStore(storage), [hash_chunk(plain)]) == [hash_chunk(plain)]


@pytest.mark.parametrize("length", [2, 3, 8, pytest.param(20, marks=pytest.mark.slow)])
def test_a_circle(length):
    chunks = make_chain(length - 1)
    pairs = list(zip(chunks, [*chunks[1:], chunks[0]], strict=True))
    storage = MemoryStorage()
    put_pack(storage, [delta(*pair) for pair in pairs])
    messages = refuse(storage, *chunks)
    assert all("at most 100 references in a row" in message for message in messages)
    assert len(find_missing(ChunkStore(storage), map(hash_chunk, chunks))) == length
    put_pack(storage, [whole(chunks[0])])
    store = ChunkStore(storage, threads=1)
    good = min(length, MAX_DEPTH + 1)
    assert len(find_missing(store, map(hash_chunk, chunks))) == length - good
    assert sum(read(store, chunk) is None for chunk in chunks) == good


def test_copies_in_both_directions_with_one_way_out():
    chunks = make_chain(2)
    a, b, c = chunks
    for number in range(12):
        storage = MemoryStorage()
        filler = whole(bytes([number]))
        put_pack(storage, [filler, delta(a, b)])
        put_pack(storage, [delta(b, a)])
        put_pack(storage, [delta(a, c)])
        put_pack(storage, [whole(c)])
        store = ChunkStore(storage, threads=1)
        assert [read(store, chunk) for chunk in chunks] == [None] * 3
        assert find_missing(store, map(hash_chunk, chunks)) == []
        assert list(store.check(data=True)) == [], "each copy can be decoded with another"


@pytest.mark.slow
def test_a_circle_with_many_copies_ends_soon():
    """Every copy leads to all the others: a search that tried them all would never end."""
    chunks = make_chain(7, 200)
    inner = MemoryStorage()
    for number in range(9):
        others = chunks[number % 8 :] + chunks[: number % 8]
        put_pack(inner, [whole(bytes([number])), *(delta(*p) for p in zip(chunks, others[1:]))])  # noqa: B905  the last is left out
    storage = WatchedStorage(inner)
    store = ChunkStore(storage, threads=1)
    find_missing(store, [])
    storage.reads.clear()
    refused = sum(read(store, chunk) is not None for chunk in chunks)
    assert refused
    assert len(storage.reads) < 30_000


def test_many_damaged_copies_of_every_link_end_soon():
    chunks = make_chain(8, 200)
    records = chain_records(chunks)
    inner = MemoryStorage()
    for number in range(8):
        put_pack(inner, [whole(bytes([number])), *records[1:]])
    name = put_pack(inner, records[:1])
    store = ChunkStore(inner, threads=1)
    damage(inner, store, chunks[0], name)
    storage = WatchedStorage(inner)
    store = ChunkStore(storage, threads=1)
    with pytest.raises(CorruptionError, match=hash_chunk(chunks[0]).hex()[:12]):
        store.read_into(hash_chunk(chunks[8]), memoryview(bytearray(200)))
    assert len(storage.reads) < 5_000


def test_roundings_of_roundings_are_not_followed_far():
    """Two masters each, eight deep, would be decoded 256 times."""
    size = 2**16
    levels = [RANDOM.normal(0, 1, size // 4).astype("<f4").tobytes()]
    for _ in range(8):
        levels.append(rounded(levels[-1], levels[-1]))
    inner = MemoryStorage()
    casts = [cast(b, [hash_chunk(a)] * 2) for a, b in pairwise(levels)]
    put_pack(inner, [whole(levels[0]), *casts])
    storage = WatchedStorage(inner)
    store = ChunkStore(storage, threads=1)
    assert [read(store, level) is None for level in levels] == [True] * 3 + [False] * 6
    assert all(decode_at_once(store, inner, level) for level in levels[:3])
    assert len(storage.reads) < 2000


def test_bases_of_wrong_lengths():
    a, b = make_chain(0, 400)[0], make_chain(0, 200)[0]
    storage = MemoryStorage()
    wrong = delta(bytes(200), b, hash_chunk(a))
    put_pack(storage, [whole(a), whole(b), wrong])
    half, quarter = rounded(a), rounded(b)
    bad = [
        cast(half, [hash_chunk(a), hash_chunk(b)]),
        cast(quarter, [hash_chunk(a)]),
        cast(bytes(100), [hash_chunk(a), hash_chunk(a)]),
        cast(bytes(101), [hash_chunk(a)]),
        cast(b"", [hash_chunk(a)]),
        cast(bytes(9), [hash_chunk(b), hash_chunk(a)]),
    ]
    put_pack(storage, bad)
    refuse(storage, bytes(200), half, quarter, bytes(100), bytes(101), b"", bytes(9))


def test_a_delta_with_two_bases_and_a_cast_with_a_payload():
    a, b = make_chain(1, 400)
    storage = MemoryStorage()
    two = cast(b, [hash_chunk(a), hash_chunk(a)])
    put_pack(storage, [whole(a), (two[0], 4, two[2], two[3])])
    refuse(storage, b)
    half = rounded(a)
    put_pack(storage, [(*cast(half, [hash_chunk(a)])[:3], cast(half, [hash_chunk(a)])[3] + b"x")])
    refuse(storage, half)


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_a_cast_of_an_unknown_kind(kind):
    a = make_chain(0, 400)[0]
    storage = MemoryStorage()
    put_pack(storage, [whole(a), cast(rounded(a), [hash_chunk(a)], kind)])
    assert "unknown cast" in refuse(storage, rounded(a))[0]


def test_an_index_with_other_bases_than_the_pack():
    chunks = make_chain(2)
    storage = MemoryStorage()
    put_pack(storage, [whole(chunk) for chunk in chunks[:2]])
    honest = put_pack(storage, [delta(chunks[2], chunks[1])])
    lie = MemoryStorage()
    other = put_pack(lie, [delta(chunks[2], chunks[1], hash_chunk(chunks[0]))])
    data = storage.read(f"packs/{honest}.pack")
    storage.delete(f"packs/{honest}.pack")
    storage.delete(f"packs/{honest}.idx")
    overwrite(storage, f"packs/{other}.pack", data)
    overwrite(storage, f"packs/{other}.idx", lie.read(f"packs/{other}.idx"))
    assert "not those in the pack index" in refuse(storage, chunks[2])[0]


def test_every_damaged_byte_of_a_chain_is_noticed():
    chunks = make_chain(2, 100)
    storage = MemoryStorage()
    name = put_pack(storage, chain_records(chunks))
    key, data = f"packs/{name}.pack", storage.read(f"packs/{name}.pack")
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        overwrite(storage, key, damaged)
        store = ChunkStore(storage, threads=1)
        kinds = {problem.kind for problem in store.check(data=True)}
        assert kinds, place
        for chunk in chunks:
            buffer = bytearray(100)
            try:
                store.read_into(hash_chunk(chunk), memoryview(buffer))
            except FormatError:
                continue
            assert buffer == chunk


def test_an_index_that_got_lost_is_made_again_with_its_bases():
    chunks = make_chain(3)
    storage = MemoryStorage()
    name = put_pack(storage, chain_records(chunks))
    index = storage.read(f"packs/{name}.idx")
    storage.delete(f"packs/{name}.idx")
    store = ChunkStore(storage, threads=1)
    assert read(store, chunks[3]) is None
    store.rebuild_index(name)
    assert objects(storage)[f"packs/{name}.idx"] == index


def test_an_id_that_is_nowhere():
    store = ChunkStore(MemoryStorage())
    with pytest.raises(CorruptionError, match="in no pack"):
        store.read_into(ChunkId(bytes(32)), memoryview(bytearray(3)))
