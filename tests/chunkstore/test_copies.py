"""The graph of copies against brute force: what can be decoded, and by which copies."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mvc.chunkstore.copies import NONE, StoredCopies
from mvc.chunkstore.rewriter import find_unsafe
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkSpan
from mvc.formats.pack import MAX_DEPTH, RECORD_BYTES
from mvc.formats.pack_index import PackIndex, parse_pack_index
from mvc.ids import PackId, hash_chunk, split_ids
from mvc.sources import MemorySource
from support.chunks import find_missing
from support.forged import delta, find_decodable, put_pack, whole
from support.memory_storage import MemoryStorage

CHUNKS = [bytes([number]) * (20 + number) for number in range(12)]
IDS = [hash_chunk(chunk) for chunk in CHUNKS]
EVEN = [bytes([number]) * 40 for number in range(12)]


def record(number, base):
    """A record with a size that depends on its base, so that choosing by size matters."""
    if base is None:
        return whole(EVEN[number])
    chunk_id, encoding, size, body = delta(EVEN[number], EVEN[base % 12])
    return chunk_id, encoding, size, body + bytes(base)


packs_of_records = st.lists(
    st.dictionaries(
        st.integers(0, 11), st.one_of(st.none(), st.integers(0, 11)), min_size=1, max_size=8
    ),
    max_size=6,
).map(lambda packs: [[record(*item) for item in pack.items()] for pack in packs])


def indexes_of(packs):
    storage = MemoryStorage()
    names = dict.fromkeys(put_pack(storage, records) for records in packs)
    return [parse_pack_index(storage.read(f"packs/{name}.idx")) for name in names]


@given(packs_of_records)
def test_chosen_copies_decode_exactly_what_can_be_decoded(packs):
    copies = StoredCopies(indexes_of(packs))
    depths = find_decodable(packs)
    assert {copies.chunk_id(n) for n in np.flatnonzero(copies.chosen != NONE)} == depths.keys()
    ids = [hash_chunk(chunk) for chunk in EVEN]
    wanted = np.frombuffer(b"".join(ids), "S32")
    assert copies.decodes(wanted).tolist() == [one in depths for one in ids]
    assert set(split_ids(wanted[copies.decodes(wanted)].tobytes())) == depths.keys() & set(ids)
    found = copies.depths()
    for chunk in range(len(copies)):
        copy = copies.chosen[chunk]
        if copy == NONE:
            assert found[chunk] > MAX_DEPTH
            continue
        assert copies.chunks[copy] == chunk
        assert depths[copies.chunk_id(chunk)] <= found[chunk] <= MAX_DEPTH
        chain = chunk
        for _ in range(found[chunk]):
            chain = copies.bases[copies.chosen[chain]].max()
        assert (copies.bases[copies.chosen[chain]] < 0).all(), "the chain ends at whole bytes"
        index = copies.indexes[copies.packs[copy]]
        row = copies.row_of(copy)
        assert index.chunk_id(row) == copies.chunk_id(chunk)
        assert copies.sizes[copy] == index.stored_sizes[row] + RECORD_BYTES


@given(packs_of_records)
def test_catalog_and_copies_agree_on_what_is_broken(packs):
    storage = MemoryStorage()
    for records in packs:
        put_pack(storage, records)
    depths = find_decodable(packs)
    there = {chunk_id for records in packs for chunk_id, *_ in records}
    ids = [hash_chunk(chunk) for chunk in EVEN]
    for store in (ChunkStore(storage), ChunkStore(storage)):
        assert set(find_missing(store, ids)) == set(ids) - depths.keys()
    assert StoredCopies(indexes_of(packs)).find_lost() == there - depths.keys()


@given(packs_of_records, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 11)))
def test_find_unsafe_agrees_with_brute_force(packs, leaving, needed):
    storage = MemoryStorage()
    names = [put_pack(storage, records) for records in packs]
    gone = {names[number] for number in leaving if number < len(names)}
    rest = [records for name, records in zip(names, packs, strict=True) if name not in gone]
    ids = sorted(hash_chunk(EVEN[number]) for number in needed)
    wanted = np.frombuffer(b"".join(ids), "S32") if ids else np.empty(0, "S32")
    unsafe = find_unsafe(indexes_of(packs), gone, wanted)
    assert set(unsafe) == (find_decodable(packs).keys() - find_decodable(rest).keys()) & set(ids)
    assert set(ChunkStore(storage).find_unsafe(gone, wanted)) == set(unsafe)


@given(packs_of_records, st.sets(st.integers(0, 11)))
def test_a_closed_set_needs_nothing_outside(packs, numbers):
    copies = StoredCopies(indexes_of(packs))
    ids = [hash_chunk(EVEN[number]) for number in sorted(numbers)]
    mask = copies.mask(np.frombuffer(b"".join(ids), "S32") if ids else np.empty(0, "S32"))
    assert {copies.chunk_id(n) for n in np.flatnonzero(mask)} == {
        copies.chunk_id(n) for n in range(len(copies))
    } & set(ids)
    closed = copies.close(mask)
    assert (closed >= (mask & (copies.chosen != NONE))).all()
    bases = copies.bases[copies.chosen[closed]]
    assert closed[bases[bases >= 0]].all()
    heights = copies.heights()
    for chunk in np.flatnonzero(copies.chosen != NONE):
        for base in copies.bases[copies.chosen[chunk]]:
            assert base < 0 or heights[base] > heights[chunk] or heights[base] >= MAX_DEPTH


def test_nothing_is_no_problem():
    copies = StoredCopies([])
    assert len(copies) == 0
    assert len(copies.chosen) == len(copies.depths()) == len(copies.heights()) == 0
    assert copies.find(np.frombuffer(IDS[0], "S32")).tolist() == [NONE]


def test_the_smaller_copy_is_preferred_unless_it_leads_round():
    a, b = bytes(range(200)), bytes(range(1, 201))
    both_ways = [[delta(a, b), delta(b, a)]]
    assert find_decodable(both_ways) == {}
    assert (StoredCopies(indexes_of(both_ways)).chosen == NONE).all()
    copies = StoredCopies(indexes_of([[whole(a), whole(b)], *both_ways]))
    assert sorted(copies.depths().tolist()) == [0, 0], "the small copies lead round"
    copies = StoredCopies(indexes_of([[whole(a), whole(b)], [delta(a, b)]]))
    a_row = int(copies.find(np.frombuffer(hash_chunk(a), "S32"))[0])
    assert copies.depths()[a_row] == 1
    assert (copies.sizes[copies.chosen] <= RECORD_BYTES + 200).all()


def test_a_hostile_chain_of_many_records_takes_no_time():
    """One record based on the next, a hundred thousand of them, with nothing below the last."""
    count = 100_000
    ids = np.random.default_rng(1).integers(0, 256, (count, 32), np.uint8)
    ids = np.sort(ids.view("S32").ravel())
    order = np.random.default_rng(2).permutation(count)
    bases = np.empty(count, "S32")
    bases[order[:-1]], bases[order[-1]] = ids[order[1:]], b"\xff" * 32
    index = PackIndex(
        PackId("0" * 64),
        16 + 32 + count * 140,
        ids,
        np.arange(count, dtype="<u8") * 140 + 16,
        np.full(count, 76, "<u4"),
        np.full(count, 100, "<u4"),
        np.full(count, 4, "u1"),
        np.arange(count + 1),
        bases,
    )
    assert len(StoredCopies([index]).find_lost()) == count, "one by one it would take a day"


class Joining(MemoryStorage):
    """A folder that is listed while its packs are joined: neither the old ones nor the new one."""

    is_joining = False

    def list(self, prefix):
        if not self.is_joining:
            return super().list(prefix)
        self.is_joining = False
        before = {info.key for info in super().list(prefix)}
        other = ChunkStore(self)
        other.gather(other.packs())
        after = list(super().list(prefix))
        return iter([info for info in after if info.key in before])


def test_packs_that_are_joined_meanwhile_are_not_missed():
    storage, ids = Joining(), []
    for number in range(3):
        with ChunkStore(storage).writer() as writer:
            plain = bytes([number]) * 100
            ids += writer.add(MemorySource(plain), [ChunkSpan(0, len(plain), None)])
    store = ChunkStore(storage)
    storage.is_joining = True
    copies = store.copies()
    assert {bytes(one) for one in copies.ids} == {bytes(one) for one in ids}
