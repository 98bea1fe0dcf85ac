"""Sweeping random stores: what is needed stays readable, whatever happens and whenever it ends."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mvc.chunkstore import sweep_plan
from mvc.chunkstore.copies import NONE, StoredCopies
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.sweep_plan import Wanted, plan_sweep
from mvc.dtypes import get_dtype
from mvc.formats.pack import FOOTER_BYTES, HEADER_BYTES
from mvc.ids import hash_chunk
from support.bounds import on_disk
from support.chunks import find_missing, objects, read_one
from support.forged import cast, delta, find_decodable, put_pack, rounded, whole
from support.memory_storage import MemoryStorage

COUNT = 6
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
BF16 = get_dtype("BF16")


def make_chunks(size_bytes):
    """Chunks that resemble each other, and one more that is the rounding of the first."""
    random = np.random.default_rng(size_bytes)
    first = random.normal(0, 0.02, size_bytes // 4).astype("<f4").view(np.uint8)
    chunks = []
    for number in range(COUNT):
        chunk = first.copy()
        chunk[number :: 40 - number] += number
        chunks.append(chunk.tobytes())
    return [*chunks, rounded(chunks[0])]


CHUNKS = {size: make_chunks(size) for size in (64, 16384)}
SIZES = st.sampled_from(sorted(CHUNKS))
NUMBERS = st.integers(0, COUNT - 1)
LAYOUTS = st.lists(
    st.dictionaries(
        st.integers(0, COUNT), st.one_of(st.none(), NUMBERS), min_size=1, max_size=COUNT + 1
    ),
    min_size=1,
    max_size=5,
)


def make_record(chunks, number, base):
    if base is None or base == number:
        return whole(chunks[number])
    if number == COUNT:
        return cast(chunks[number], [hash_chunk(chunks[0])])
    return delta(chunks[number], chunks[base])


def array(ids):
    return np.frombuffer(b"".join(ids), "S32") if ids else np.empty(0, "S32")


class Case:
    """A store, what is needed of it, and how it is swept."""

    def __init__(self, size_bytes, layout, needed, wishes, *, gather=False, min_waste=0.05):
        chunks = CHUNKS[size_bytes]
        packs = [[make_record(chunks, *item) for item in pack.items()] for pack in layout]
        self.storage = MemoryStorage()
        for records in packs:
            put_pack(self.storage, records)
        depths = find_decodable(packs)
        self.plain = {hash_chunk(chunk): chunk for chunk in chunks}
        self.needed = sorted(hash_chunk(chunks[n]) for n in needed)
        self.needed = [chunk_id for chunk_id in self.needed if chunk_id in depths]
        self.wishes = {hash_chunk(chunks[a]): hash_chunk(chunks[b]) for a, b in wishes.items()}
        self.gather, self.min_waste = gather, min_waste

    def plan(self, store, batch_bytes=2**30):
        copies = store.copies()
        needed = copies.mask(array(self.needed)) & (copies.chosen != NONE)
        gather = self.gather and batch_bytes > 1  # one by one, nothing is gathered
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep_plan, "BATCH_BYTES", batch_bytes)
            return plan_sweep(
                copies, Wanted(needed, self._bases(copies, needed), gather, self.min_waste)
            )

    def _bases(self, copies, needed):
        """Of the wishes those that a caller may have: whole chunks, no circle, short chains."""
        base_of = {}
        for chunk_id, base_id in sorted(self.wishes.items()):
            chunk, base = copies.find(array([chunk_id, base_id])).tolist()
            if NONE in (chunk, base) or not (needed[chunk] and needed[base]):
                continue
            if (copies.bases[copies.chosen[chunk]] >= 0).any():
                continue
            below, seen = base, {chunk}
            while below >= 0 and below not in seen:
                seen.add(below)
                below = base_of.get(below, int(copies.bases[copies.chosen[below], 0]))
            if below < 0 and len(seen) <= 3:
                base_of[chunk] = base
        return base_of

    def steps(self, store, plan):
        """Carry out a plan; yields whenever it could be killed."""
        dtypes = dict.fromkeys(self.plain, BF16)
        for batch in plan.batches:
            if batch.encode or batch.carry:
                store.write_batch(batch, dtypes)
                yield
            assert store.find_unsafe(batch.remove, array(self.needed)) == []
            store.remove_packs(batch.remove)
            yield
        self.wishes = {}  # whoever looks for differences looks once

    def check(self):
        """Everything that is needed is there, for a reader that knows nothing."""
        store = ChunkStore(self.storage, threads=1)
        assert find_missing(store, self.needed) == []
        for chunk_id in self.needed:
            assert read_one(store, self.plain[chunk_id]) == self.plain[chunk_id]
        for problem in store.check(data=True):
            assert problem.kind == "lost-base", "garbage may refer to what is gone, nothing else"

    def pack_bytes(self):
        data = objects(self.storage)
        return sum(len(data[key]) for key in data if key.endswith(".pack"))

    def there(self):
        copies = StoredCopies(ChunkStore(self.storage)._catalog.sound_indexes())
        return {copies.chunk_id(chunk) for chunk in range(len(copies))}


cases = st.builds(
    Case,
    SIZES,
    LAYOUTS,
    st.sets(st.integers(0, COUNT)),
    st.dictionaries(NUMBERS, NUMBERS, max_size=COUNT),
    gather=st.booleans(),
    min_waste=st.sampled_from([0.0, 0.05, 0.6]),
)


@on_disk
@given(cases, st.sampled_from([1, 2**30]))
@example(Case(64, [{0: 2, 1: None, 2: 0}], {0, 1}, {}, min_waste=0.6), 1)
def test_a_sweep_keeps_what_is_needed_and_comes_to_an_end(case, batch_bytes):
    store = ChunkStore(case.storage, threads=1)
    for _ in range(5):  # each round a base may lose users, until it is held no more
        plan = case.plan(store, batch_bytes)
        if plan.is_empty:
            break
        before, were = case.pack_bytes(), case.there()
        for _ in case.steps(store, plan):
            case.check()
        assert case.there() <= were
        assert len(were - case.there()) == plan.dropped_chunks
        assert before == plan.pack_bytes
        if not any(batch.encode for batch in plan.batches):
            packs = len([key for key in objects(case.storage) if key.endswith(".pack")])
            frames = plan.packs - plan.removed_packs - packs
            assert before - case.pack_bytes() == plan.freed_bytes + FRAME_BYTES * frames
    case.check()
    if not case.min_waste:  # else garbage may stay, and with it what refers to what is gone
        assert list(store.check(data=True)) == []
    assert plan.is_empty, "a sweep must come to an end"
    assert plan.freed_bytes == 0
    assert plan.dropped_chunks == 0


@on_disk
@given(cases, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.sampled_from([1, 2**30]))
def test_a_sweep_may_be_killed_at_any_time(case, kills, batch_bytes):
    for kill in kills:
        store = ChunkStore(case.storage, threads=1)
        for _, _ in zip(
            range(kill), case.steps(store, case.plan(store, batch_bytes)), strict=False
        ):
            pass
        case.check()
    for _ in range(5):  # each round a base may lose users, until it is held no more
        store = ChunkStore(case.storage, threads=1)
        plan = case.plan(store, batch_bytes)
        if plan.is_empty:
            break
        for _ in case.steps(store, plan):
            case.check()
    assert plan.is_empty, "a sweep must come to an end"


@on_disk
@given(SIZES, LAYOUTS, st.sets(st.integers(0, COUNT)))
def test_nothing_that_is_not_needed_stays_for_good(size_bytes, layout, needed):
    """Without a threshold for waste, what remains is what is needed and their bases."""
    case = Case(size_bytes, layout, needed, {}, min_waste=0.0)
    for _ in range(5):  # each round a base may lose users, until it is held no more
        store = ChunkStore(case.storage, threads=1)
        plan = case.plan(store)
        for _ in case.steps(store, plan):
            pass
    copies = ChunkStore(case.storage).copies()
    kept = copies.close(copies.mask(array(case.needed)))
    assert kept.all()
    assert len(copies.chunks) == len(copies), "each once"


def test_a_pack_that_would_be_written_as_it_is_is_not_removed():
    """Killed before the removal, a sweep plans to write a pack that is already there."""
    a, b, garbage = (bytes([i]) * 5000 for i in (1, 2, 3))
    for swapped in (False, True):
        storage = MemoryStorage()
        one, two = (b, a) if swapped else (a, b)
        put_pack(storage, [whole(one), whole(garbage)])
        put_pack(storage, [whole(garbage), whole(two)])
        needed = array(sorted([hash_chunk(a), hash_chunk(b)]))
        for killed in (True, True, False, False):
            store = ChunkStore(storage, threads=1)
            copies = store.copies()
            for batch in plan_sweep(copies, Wanted(copies.mask(needed))).batches:
                store.write_batch(batch, {})
                if killed:
                    break
                assert store.find_unsafe(batch.remove, needed) == []
                store.remove_packs(batch.remove)
            for chunk in (a, b):
                store.read_into(hash_chunk(chunk), memoryview(bytearray(5000)))
        store = ChunkStore(storage)
        copies = store.copies()
        assert plan_sweep(copies, Wanted(copies.mask(needed))).is_empty
        assert len(copies.indexes) == 1


def test_an_empty_store_needs_no_sweep():
    copies = ChunkStore(MemoryStorage()).copies()
    plan = plan_sweep(copies, Wanted(np.zeros(0, np.bool_), gather_small=True))
    assert plan.is_empty
    assert plan.packs == plan.pack_bytes == plan.freed_bytes == 0


def test_a_base_that_only_a_little_needs_is_not_held():
    chunks = CHUNKS[16384]
    storage = MemoryStorage()
    put_pack(storage, [whole(chunks[1])])
    put_pack(storage, [delta(chunks[0], chunks[1])])
    store = ChunkStore(storage)
    copies = store.copies()
    plan = plan_sweep(copies, Wanted(copies.mask(array([hash_chunk(chunks[0])]))))
    assert plan.held_chunks == 0
    assert plan.dropped_chunks == 1
    assert [item.base for batch in plan.batches for item in batch.encode] == [None]


def test_a_base_that_many_need_is_held():
    chunks = CHUNKS[16384]
    storage = MemoryStorage()
    put_pack(storage, [whole(chunks[0])])
    put_pack(storage, [delta(chunk, chunks[0]) for chunk in chunks[1:COUNT]])
    store = ChunkStore(storage)
    copies = store.copies()
    needed = copies.mask(array([hash_chunk(chunk) for chunk in chunks[1:COUNT]]))
    plan = plan_sweep(copies, Wanted(needed))
    assert plan.is_empty
    assert plan.held_chunks == 1


def test_what_was_freed_of_its_base_does_not_stay_behind():
    """Else the garbage in a pack that is nearly all needed would refer to what is gone."""
    chunks = CHUNKS[16384]
    storage = MemoryStorage()
    others = [np.random.default_rng(n).bytes(2**16) for n in range(8)]
    put_pack(storage, [whole(chunks[1])])
    put_pack(storage, [delta(chunks[0], chunks[1]), *map(whole, others)])
    store = ChunkStore(storage, threads=1)
    copies = store.copies()
    needed = array(sorted(hash_chunk(chunk) for chunk in [chunks[0], *others]))
    for batch in plan_sweep(copies, Wanted(copies.mask(needed))).batches:
        if batch.encode or batch.carry:
            store.write_batch(batch, {})
        store.remove_packs(batch.remove)
    assert list(ChunkStore(storage).check(data=True)) == []
    assert find_missing(store, [hash_chunk(chunks[1])])
    assert len(store.copies()) == len(needed)
