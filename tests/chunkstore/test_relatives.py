"""Writing with bases and masters: never wrong, never slow for nothing, the same for any threads."""

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.chunkstore.relatives import MAX_CHAIN, DeltaMode, RelativeEncoder
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.sweep_plan import Wanted, plan_sweep
from mvc.chunkstore.transfer_plan import plan_transfer
from mvc.chunkstore.values import ChunkSpan
from mvc.dtypes import get_dtype
from mvc.errors import StorageError
from mvc.formats.decoding import Encoding
from mvc.formats.deltas import ESTIMATE_BYTES, MIN_DELTA_BYTES
from mvc.formats.encoding import EncodeScratch
from mvc.formats.pack import MAX_DEPTH, RECORD_BYTES
from mvc.ids import ChunkId, hash_chunk
from support.bounds import bounded, on_disk
from support.cases import for_each
from support.chunks import (
    BytesSource,
    WatchedStorage,
    find_missing,
    flip,
    ids_of,
    objects,
    packs,
    read_back,
)
from support.forged import delta, put_pack, rounded, whole
from support.memory_storage import MemoryStorage

BF16, F32 = get_dtype("BF16"), get_dtype("F32")
SIZE = 2 * MIN_DELTA_BYTES
NEVER, AUTO, ALWAYS = DeltaMode.NEVER, DeltaMode.AUTO, DeltaMode.ALWAYS


def weights(seed, size_bytes=SIZE, scale=0.02):
    return np.random.default_rng(seed).normal(0, scale, size_bytes // 4).astype("<f4").tobytes()


TINY = 1e-9
"""A step after which most words are as they were: differences promise much."""


def step(chunk, seed=1, size=1e-6):
    """The same F32 weights a little later."""
    words = np.frombuffer(chunk, "<f4")
    noise = np.random.default_rng(seed).normal(0, size, words.size).astype("<f4")
    return (words + noise).astype("<f4").tobytes()


def spans_of(chunks, dtype=F32, **per_chunk):
    """Return spans of chunks behind one another; keywords give a list of values, one per chunk."""
    starts = [0, *accumulate(map(len, chunks))]
    return [
        ChunkSpan(
            start, len(chunk), dtype, **{name: values[i] for name, values in per_chunk.items()}
        )
        for i, (start, chunk) in enumerate(zip(starts, chunks, strict=False))
    ]


def add(store, chunks, mode=ALWAYS, *, dtype=F32, at_hand=None, **per_chunk):
    """Store chunks in one session; return their encodings."""
    with store.writer(mode) as writer:
        writer.at_hand.update(at_hand or {})
        ids = writer.add(BytesSource(b"".join(chunks)), spans_of(chunks, dtype, **per_chunk))
    assert ids == [hash_chunk(chunk) for chunk in chunks]
    return encodings(store, chunks)


def encodings(store, chunks):
    return [Encoding(store.find(hash_chunk(chunk)).encoding) for chunk in chunks]


def check(store, storage, chunks):
    fresh = ChunkStore(storage, threads=1)
    for reader in (store, fresh):
        assert read_back(reader, ids_of(chunks), chunks) == chunks
    assert list(fresh.check(data=True)) == []


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def store(storage):
    return ChunkStore(storage, threads=2)


def watched(chunks, threads=2):
    """Return a store of chunks that knows its packs, and its storage, of which nothing was read."""
    inner = MemoryStorage()
    add(ChunkStore(inner), chunks)
    storage = WatchedStorage(inner)
    store = ChunkStore(storage, threads=threads)
    find_missing(store, [])
    storage.reads.clear()
    return store, storage


# --- differences -------------------------------------------------------------------------------


def test_modes(store, storage):
    olds = [weights(seed) for seed in range(3)]
    add(store, olds)
    news = [step(old) for old in olds]
    assert add(store, news, NEVER, base=ids_of(olds)) == [Encoding.PLANES] * 3
    later = [step(new) for new in news]
    assert add(store, later, ALWAYS, base=ids_of(news)) == [Encoding.DELTA] * 3
    far = [weights(seed + 10) for seed in range(3)]
    assert add(store, far, ALWAYS, base=ids_of(olds)) == [Encoding.PLANES] * 3
    last = [step(new, 7, TINY) for new in news]
    assert add(store, last, AUTO, base=ids_of(news)) == [Encoding.DELTA] * 3
    noise = [weights(seed + 20) for seed in range(3)]
    assert add(store, noise, AUTO, base=ids_of(news)) == [Encoding.PLANES] * 3
    check(store, storage, [*olds, *news, *later, *far, *last, *noise])


def test_short_chunks_are_never_differences(store):
    for size, expected in ((MIN_DELTA_BYTES - 4, Encoding.PLANES), (MIN_DELTA_BYTES, 4)):
        old = weights(1, size)
        add(store, [old])
        assert add(store, [step(old)], base=ids_of([old])) == [expected]


@pytest.mark.parametrize("mode", [AUTO, ALWAYS])
def test_bases_that_are_not_what_they_should_be(store, storage, mode):
    old = weights(1)
    new = step(old)
    other = weights(2, 3 * SIZE)
    half = rounded(old)
    add(store, [old, other])
    add(store, [half], dtype=BF16)
    missing, ids = ChunkId(bytes(32)), ids_of([other, half])
    for number, base in enumerate([missing, *ids]):
        chunk = step(new, number)
        assert add(store, [chunk], mode, base=[base]) == [Encoding.PLANES]
    chunk = step(new, 10)
    assert add(store, [chunk], mode, dtype=None, base=ids_of([old]))[0] != Encoding.DELTA
    same = add(store, [old], mode, base=ids_of([old]))
    assert same == [Encoding.PLANES], "a chunk that is there is not stored again"
    check(store, storage, [old, other, half])


@pytest.mark.parametrize("mode", [AUTO, ALWAYS])
def test_a_damaged_base_is_not_built_upon(storage, mode):
    old = weights(1)
    add(ChunkStore(storage), [old])
    (key,) = packs(storage)
    flip(storage, key, 5000)
    store = ChunkStore(storage, threads=1)
    new = step(old)
    assert add(store, [new], mode, base=ids_of([old])) == [Encoding.PLANES]
    assert read_back(store, ids_of([new]), [new]) == [new]


class Liar(BytesSource):
    """Has other bytes than it should, or none."""

    def __init__(self, data, error=None):
        super().__init__(data)
        self.error = error

    def read_into(self, offset, buffer):
        if self.error is not None:
            raise self.error
        super().read_into(offset, buffer)


def test_a_base_at_hand_is_not_read_from_the_store():
    olds = [weights(seed) for seed in range(20)]
    store, storage = watched(olds)
    hand = BytesSource(b"xyz" + b"".join(olds))
    at_hand = {chunk_id: (hand, 3 + i * SIZE) for i, chunk_id in enumerate(ids_of(olds))}
    for mode in (ALWAYS, AUTO):
        storage.reads.clear()
        chunks = [step(old, mode is AUTO, TINY) for old in olds]
        found = add(store, chunks, mode, at_hand=at_hand, base=ids_of(olds))
        assert found == [Encoding.DELTA] * 20
        assert storage.reads == []
    check(store, storage, [*olds, *chunks])


@pytest.mark.parametrize(
    "hand",
    [
        Liar(weights(99)),
        Liar(bytes(2 * SIZE)),
        Liar(b"", StorageError("gone")),
        Liar(b"", FileNotFoundError("gone")),
        Liar(b"", OSError(5, "input/output error")),
    ],
    ids=["other bytes", "short", "mvc error", "no file", "input/output"],
)
def test_a_base_at_hand_that_is_not_is_read_from_the_store(store, storage, hand):
    old = weights(1)
    add(store, [old])
    new = step(old)
    at_hand = {hash_chunk(old): (hand, 0)}
    assert add(store, [new], at_hand=at_hand, base=ids_of([old])) == [Encoding.DELTA]
    assert add(store, [step(new)], AUTO, at_hand=at_hand, base=ids_of([old])) == [Encoding.DELTA]
    check(store, storage, [old, new])


def test_a_look_is_bounded_and_decides_group_by_group():
    olds = [weights(seed) for seed in range(96)]
    store, storage = watched(olds, threads=1)
    groups = [i % 4 for i in range(96)]
    news = [step(old, size=TINY) if i % 4 < 2 else weights(1000 + i) for i, old in enumerate(olds)]
    source = BytesSource(b"".join(news))
    with store.writer(AUTO) as writer:
        storage.reads.clear()
        spans = spans_of(news, base=ids_of(olds), group=groups)
        writer._relatives.look(source, spans, writer._crew)
        looked = [key for key, *_ in storage.reads if key.endswith(".pack")]
        assert 4 <= len(source.reads) <= 96 // 20
        assert len(looked) <= len(source.reads)
        ids = writer.add(source, spans_of(news, base=ids_of(olds), group=groups))
    assert ids == ids_of(news)
    found = encodings(store, news)
    assert [one == Encoding.DELTA for one in found] == [group < 2 for group in groups]


def moved(masters, share, dtype=BF16):
    """Weights as ``dtype``, and as they are after moving by a share of their size."""
    later = [step(one, 500 + number, 0.02 * share) for number, one in enumerate(masters)]
    if dtype == F32:
        return masters, later
    kind = 1 if dtype == BF16 else 2
    return tuple([rounded(one, kind=kind) for one in many] for many in (masters, later))


def stored_bytes(store, chunks):
    return sum(store.find(chunk_id).stored_size_bytes for chunk_id in ids_of(chunks))


@for_each(
    ("dtype", "share", "expected"),
    [
        (BF16, 0.02, Encoding.DELTA),  # takes 0.54 of what the chunk takes whole
        (BF16, 0.5, Encoding.PLANES),  # 1.00
        (get_dtype("F16"), 0.02, Encoding.DELTA),  # 0.69
        (F32, 0.02, Encoding.PLANES),  # 0.82: less than a quarter is saved
        (F32, 0.001, Encoding.DELTA),  # 0.67
    ],
)
@for_each("groups", [1, 6, 24])
def test_a_difference_is_stored_by_default_if_it_saves_a_quarter(dtype, share, expected, groups):
    """Whether a look saw the group of a chunk or not."""
    olds, news = moved([weights(seed, 2 * SIZE) for seed in range(24)], share, dtype)
    stored = {}
    for mode in (AUTO, ALWAYS):
        storage = MemoryStorage()
        store = ChunkStore(storage, threads=2)
        add(store, olds, dtype=dtype)
        group = [i % groups for i in range(24)]
        found = add(store, news, mode, dtype=dtype, base=ids_of(olds), group=group)
        assert mode is ALWAYS or found == [expected] * 24
        stored[mode] = stored_bytes(store, news)
        check(store, storage, [*olds, *news])
    if expected == Encoding.DELTA:
        assert stored[AUTO] == stored[ALWAYS] < 0.75 * stored_bytes(store, olds)


def test_what_no_look_saw_change_is_tried_chunk_by_chunk(store, storage):
    """One layer of many was trained: the looks meet those that were not."""
    olds, news = moved([weights(seed) for seed in range(24)], 0.02)
    chunks = [*olds[:7], news[7], *olds[8:20], weights(99, SIZE // 2), *olds[21:]]
    add(store, olds, dtype=BF16)
    found = add(store, chunks, AUTO, dtype=BF16, base=ids_of(olds))
    assert found[7] == Encoding.DELTA
    assert found[20] == Encoding.PLANES
    check(store, storage, [*olds, *chunks])


def test_little_is_tried_where_nothing_is_gained(monkeypatch):
    """Of each twenty chunks one base is read, and no difference is encoded but of samples."""
    tried = []
    olds, news = ([weights(seed + i, 8 * SIZE) for i in range(48)] for seed in (0, 1000))
    store, storage = watched(olds)
    split = EncodeScratch.split_difference
    monkeypatch.setattr(
        EncodeScratch,
        "split_difference",
        lambda self, plain, *rest: tried.append(plain.size) or split(self, plain, *rest),
    )
    groups = [i % 12 for i in range(48)]
    assert add(store, news, AUTO, base=ids_of(olds), group=groups) == [Encoding.PLANES] * 48
    assert tried == [ESTIMATE_BYTES] * 2
    assert len([key for key, *_ in storage.reads if key.endswith(".pack")]) <= 2 * len(tried)


def test_chains_stay_short(storage):
    store = ChunkStore(storage, threads=1)
    chunks = [weights(1)]
    add(store, chunks)
    for number in range(12):
        chunks.append(step(chunks[-1], number))
        assert add(store, chunks[-1:], base=ids_of(chunks[-2:-1])) == [Encoding.DELTA]
    depths = store.copies().depths()
    assert depths.max() == MAX_CHAIN <= MAX_DEPTH // 2
    assert (depths == 0).sum() == 1
    check(store, storage, chunks)


LIGHT_BYTES = 2**16


def train(chunks, random, places=None):
    """One percent of the BF16 words move by little, as in a step of reinforcement learning."""
    news = []
    for number, chunk in enumerate(chunks):
        words = np.frombuffer(chunk, "<u2").copy()
        spots = random.choice(words.size, words.size // 100, replace=False)
        spots = spots if places is None else places.setdefault(number, spots)
        words[spots] += random.choice(np.array([1, 2, 0xFFFE, 0xFFFF], "<u2"), spots.size)
        news.append(words.tobytes())
    return news


def series(storage, count, steps, places=None):
    """Return versions of some chunks, and what share of them each took."""
    random = np.random.default_rng(0)
    words = random.normal(0, 0.02, (count, LIGHT_BYTES // 2)).astype("<f4").view("<u2")[:, 1::2]
    versions, shares = [[row.tobytes() for row in words]], []
    store = ChunkStore(storage, threads=1)
    add(store, versions[0], AUTO, dtype=BF16)
    for _ in range(steps):
        old, before = versions[-1], storage_bytes(storage)
        versions.append(train(old, random, places))
        add(store, versions[-1], AUTO, dtype=BF16, base=ids_of(old))
        shares.append((storage_bytes(storage) - before) / (count * LIGHT_BYTES))
    return versions, shares


def storage_bytes(storage):
    return sum(len(storage.read(key)) for key in packs(storage))


def as_ids(chunks):
    return np.unique(np.frombuffer(b"".join(ids_of(chunks)), "S32"))


def test_each_step_of_a_series_takes_what_it_changed(storage):
    """And who has the third version and goes to the last needs little of what lies between."""
    steps = bounded(40, 300)
    versions, shares = series(storage, 16, steps)
    assert max(shares) <= 0.015
    source = ChunkStore(storage).copies()
    assert 8 < source.depths().max() <= 40
    has = MemoryStorage()
    for old, new in pairwise([[None] * 16, *versions[:4]]):
        add(ChunkStore(has), new, AUTO, dtype=BF16, base=[one and hash_chunk(one) for one in old])
    plan = plan_transfer(source, ChunkStore(has).copies(), as_ids(versions[-1]))
    records = sum(map(len, plan.whole)) + sum(len(rows) for _, rows in plan.parts)
    assert 16 < records <= 16 * 20
    assert plan.size_bytes < 0.4 * 16 * LIGHT_BYTES
    sweep = plan_sweep(source, Wanted(source.mask(as_ids(versions[-1]))))
    assert {(one.chunk_id, one.base) for batch in sweep.batches for one in batch.encode} == {
        (chunk_id, None) for chunk_id in ids_of(versions[-1])
    }, "gc ends the rows of which only the last versions are needed"
    check(ChunkStore(storage), storage, [*versions[3], *versions[-2], *versions[-1]])


def test_what_changes_again_at_the_same_places_stays_near_the_beginning(storage):
    versions, shares = series(storage, 16, 30, places={})
    assert max(shares) <= 0.015
    assert ChunkStore(storage).copies().depths().max() <= 15
    check(ChunkStore(storage), storage, versions[-1])


@pytest.mark.slow
def test_a_row_that_is_full_begins_anew(storage):
    """A series of a hundred steps has room even if there is nothing to fold."""
    versions, shares = series(storage, 1, MAX_DEPTH + 3)
    assert [number for number, share in enumerate(shares, 1) if share > 0.015] == [MAX_DEPTH + 1]
    assert ChunkStore(storage).copies().depths().max() == MAX_DEPTH
    check(ChunkStore(storage), storage, versions[-1])


def test_a_large_change_ends_a_row(storage):
    versions, _ = series(storage, 16, 12)
    store = ChunkStore(storage, threads=1)
    random = np.random.default_rng(5)
    far = []
    for chunk in versions[-1]:
        words = np.frombuffer(chunk, "<u2").copy()
        words[::3] += random.integers(1, 9, words[::3].size).astype("<u2")
        far.append(words.tobytes())
    assert set(add(store, far, AUTO, dtype=BF16, base=ids_of(versions[-1]))) == {Encoding.DELTA}
    copies = store.copies()
    assert copies.depths()[copies.find(as_ids(far))].max() <= MAX_CHAIN
    check(store, storage, far)


@pytest.mark.parametrize("count", [1, 24])
def test_a_row_begins_on_large_changes(storage, count):
    """Fine-tuning that moves all words, then steps that move few."""
    random = np.random.default_rng(0)
    old = [rounded(weights(seed, 2 * LIGHT_BYTES)) for seed in range(count)]
    news = []
    for number in range(9):
        before, store = storage_bytes(storage), ChunkStore(storage, threads=1)
        add(store, old, AUTO, dtype=BF16, base=ids_of(news) or [None] * count)
        news = old
        share = (storage_bytes(storage) - before) / (count * LIGHT_BYTES)
        assert (share <= 0.015) == (number > 3)
        old = train(news, random) if number > 2 else [shifted(chunk, random) for chunk in news]
    check(ChunkStore(storage), storage, news)


def shifted(chunk, random):
    words = np.frombuffer(chunk, "<u2").copy()
    words += random.integers(0, 4, words.size).astype("<u2")
    return words.tobytes()


def test_a_chunk_that_changed_alone_is_compared_with_two_bases_at_most(storage, monkeypatch):
    """As before there were rows: looks met chunks that did not change."""
    random = np.random.default_rng(0)
    versions = [[rounded(weights(seed, 2 * LIGHT_BYTES)) for seed in range(24)]]
    compared = []
    compare = RelativeEncoder._compare_with
    for _ in range(4):
        store = ChunkStore(storage, threads=1)
        base = ids_of(versions[-2]) if len(versions) > 1 else [None] * 24
        add(store, versions[-1], AUTO, dtype=BF16, base=base)
        versions.append([*versions[-1][:3], shifted(versions[-1][3], random), *versions[-1][4:]])
    monkeypatch.setattr(
        RelativeEncoder,
        "_compare_with",
        lambda self, span, plain, bases: (
            compared.append(bases) or compare(self, span, plain, bases)
        ),
    )
    add(ChunkStore(storage), versions[-1], AUTO, dtype=BF16, base=ids_of(versions[-2]))
    assert [len(bases) for bases in compared] == [MAX_CHAIN]


def test_no_row_stands_on_a_rounding(storage):
    store = ChunkStore(storage, threads=1)
    master = weights(1, 2 * LIGHT_BYTES)
    add(store, [master])
    chunks, random = [rounded(master)], np.random.default_rng(0)
    masters = [((hash_chunk(master), 2 * LIGHT_BYTES),)]
    assert add(store, chunks, AUTO, dtype=BF16, masters=masters, cast=[1]) == [Encoding.CAST]
    for _ in range(6):
        chunks += train(chunks[-1:], random)
        add(store, chunks[-1:], AUTO, dtype=BF16, base=ids_of(chunks[-2:-1]))
    assert store.copies().depths().max() == 1 + MAX_CHAIN
    check(store, storage, chunks)


@pytest.mark.parametrize("mode", [AUTO, ALWAYS])
@pytest.mark.parametrize("count", [1, 24])
def test_a_difference_is_to_what_it_resembles_most(store, storage, mode, count):
    """To the parent commit's chunk, or, where a detour led there, to what that is based on."""
    first, detour = moved([weights(seed) for seed in range(count)], 0.02)
    add(store, first, dtype=BF16)
    add(store, detour, mode, dtype=BF16, base=ids_of(first))
    made = []
    for like in (first, detour):
        words = [np.frombuffer(chunk, "<u2").copy() for chunk in like]
        for one in words:
            one[::50] += 1
        made.append([one.tobytes() for one in words])
        add(store, made[-1], mode, dtype=BF16, base=ids_of(detour))
        bases = [store.find(chunk_id).bases for chunk_id in ids_of(made[-1])]
        assert bases == [(chunk_id,) for chunk_id in ids_of(like)]
    check(store, storage, [*first, *detour, *made[0], *made[1]])


def test_unchanged_chunks_cost_no_look():
    """Rows were appended to an embedding: no base of what stayed is read; nor where none may be."""
    olds = [weights(seed) for seed in range(36)]
    store, storage = watched(olds)
    add(store, [*olds, weights(99, 4096)], AUTO, base=[*ids_of(olds), None])
    add(store, [step(old) for old in olds[:3]], NEVER, base=ids_of(olds[:3]))
    assert storage.reads == []


def test_a_base_that_is_broken_or_too_deep_is_not_taken(storage):
    chunks = [weights(1)]
    for number in range(MAX_DEPTH + 2):
        chunks.append(step(chunks[-1], number))
    put_pack(storage, [delta(*pair) for pair in zip(chunks[1:], chunks, strict=False)])
    store = ChunkStore(storage, threads=1)
    new = step(chunks[-1], 99)
    assert add(store, [new], base=ids_of(chunks[-1:])) == [Encoding.PLANES], "nothing below"
    put_pack(storage, [whole(chunks[0])])
    after = step(new)
    add(store, [after], base=ids_of(chunks[5:6]))
    assert store.copies().depths().max() > MAX_DEPTH, "the last two are out of reach"
    near = [new, after, *chunks[: MAX_DEPTH + 1]]
    assert read_back(store, ids_of(near), near) == near


DTYPES = ["F64", "F32", "BF16", "F16", "I64", "I32", "I16", "U8", "I8", "F8_E4M3", None]


@st.composite
def histories(draw):
    """Several versions of a few tensors; each version with its dtype, mode and chunk size."""
    seed, name = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(DTYPES))
    size = draw(st.sampled_from([8, 16384, 16392, 65536, 70_000 // 8 * 8]))
    random = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["noise", "weights", "constant"]))
    if kind == "weights":
        first = random.normal(0, 0.02, size // 4).astype("<f4").view(np.uint8)
    else:
        first = random.integers(0, 256 if kind == "noise" else 1, size, np.uint8)
    tensors = [first, np.roll(first, 8), random.permutation(first)]
    versions = [tensors]
    for _ in range(draw(st.integers(1, 4))):
        rate = draw(st.sampled_from([0.0, 0.001, 0.02, 0.5]))
        versions.append([_mutate(random, tensor, rate) for tensor in versions[-1]])
    dtype = name and get_dtype(name)
    modes = [draw(st.sampled_from(list(DeltaMode))) for _ in versions]
    shift = draw(st.integers(0, 2))
    return dtype, modes, [[t.tobytes() for t in version] for version in versions], shift


def _mutate(random, tensor, rate):
    chosen = random.random(tensor.size) < rate
    changed = tensor.copy()
    changed[chosen] += random.integers(-3, 4, int(chosen.sum())).astype(np.uint8)
    return changed


@on_disk
@given(histories(), st.integers(1, 3), st.sampled_from([1, 100_000, 2**26]))
def test_any_history_comes_back_bit_by_bit(history, threads, target):
    dtype, modes, versions, shift = history
    storage = MemoryStorage()
    for number, (mode, version) in enumerate(zip(modes, versions, strict=True)):
        store = ChunkStore(storage, threads=threads, target_pack_bytes=target)
        old = versions[max(0, number - 1)]
        bases = ids_of(old[shift:] + old[:shift])
        add(store, version, mode, dtype=dtype, base=bases, group=[0, 1, 0])
        assert read_back(store, ids_of(version), version) == version
    check(ChunkStore(storage, threads=1), storage, [chunk for v in versions for chunk in v])
    assert ChunkStore(storage).copies().depths().max() <= len(versions)


@pytest.mark.parametrize("target", [1, 200_000, 2**26])
def test_packs_do_not_depend_on_threads(target):
    """With differences, roundings of what the same session wrote, and chunks that come twice."""
    olds = [weights(seed) for seed in range(24)]
    masters = [step(old, i) for i, old in enumerate(olds)]
    twice = [*masters[:4], *masters]
    halves = [rounded(master) for master in masters]
    pairs = [((chunk_id, SIZE),) for chunk_id in ids_of(masters)]
    found = []
    for threads in (1, 2, 8, 3):
        storage = MemoryStorage()
        add(ChunkStore(storage, threads=1), olds)
        store = ChunkStore(storage, threads=threads, target_pack_bytes=target)
        with store.writer(ALWAYS) as writer:
            source = BytesSource(b"".join(twice))
            bases = ids_of([*olds[:4], *olds])
            writer.add(source, spans_of(twice, base=bases))
            for i, chunk_id in enumerate(ids_of(masters)[:18]):
                writer.at_hand[chunk_id] = (source, (4 + i) * SIZE)
            spans = spans_of(halves, BF16, masters=pairs, cast=[1] * 24, base=bases[4:])
            writer.add(BytesSource(b"".join(halves)), spans)
        found.append(objects(storage))
        kinds = encodings(store, halves)
        assert kinds == [Encoding.CAST] * 18 + [Encoding.PLANES] * 6
    assert found.count(found[0]) == len(found)
    check(store, storage, [*olds, *twice, *halves])


# --- roundings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [(1, "BF16"), (2, "F16")])
def test_a_rounding_takes_no_space(store, storage, kind, name):
    values = np.frombuffer(weights(3), "<f4").copy()
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 6e-8, 65519.9, 65520, 3e38]
    values[: len(special)] = special
    bits = values.view("<u4")
    bits[20:24] = [0x7F800001, 0xFFC12345, 0x7FBFFFFF, 0xFF800001]
    chunks = [values.tobytes(), weights(4), weights(5, 4096)]
    add(store, chunks)
    plains = [rounded(*chunks[:2], kind=kind), rounded(chunks[2], kind=kind)]
    pairs = [(chunk_id, len(chunk)) for chunk_id, chunk in zip(ids_of(chunks), chunks, strict=True)]
    masters = [tuple(pairs[:2]), tuple(pairs[2:])]
    found = add(store, plains, NEVER, dtype=get_dtype(name), masters=masters, cast=[kind] * 2)
    assert found == [Encoding.CAST] * 2
    assert store.find(hash_chunk(plains[0])).stored_size_bytes < 100
    check(store, storage, [*chunks, *plains])


@pytest.mark.parametrize("place", [0, 1, SIZE // 4, SIZE // 2 - 1])
def test_one_other_bit_is_no_rounding(store, storage, place):
    master = weights(3)
    add(store, [master])
    plain = bytearray(rounded(master))
    plain[place] ^= 1
    pairs = [((hash_chunk(master), SIZE),)]
    assert add(store, [bytes(plain)], dtype=BF16, masters=pairs, cast=[1]) != [Encoding.CAST]
    check(store, storage, [master, bytes(plain)])


def test_masters_that_do_not_fit(store, storage):
    chunks = [weights(3), weights(4), weights(5), weights(6, 4098 // 2 * 2 + 2)]
    add(store, chunks)
    ids = ids_of(chunks)
    one, two, three = ((chunk_id, SIZE) for chunk_id in ids[:3])
    odd = (ids[3], len(chunks[3]))
    plain, longer = rounded(chunks[0]), rounded(*chunks[:3])
    empty = b""
    for number, (chunk, masters) in enumerate(
        [
            (plain, (two,)),
            (plain, ()),
            (plain, (one, two)),
            (plain, (replace_size(one, SIZE // 2),)),
            (plain, (replace_size(one, SIZE + 2),)),
            (plain, (replace_size(one, 0), one)),
            (plain, (odd,)),
            (plain, ((ChunkId(bytes(32)), SIZE),)),
            (longer, (one, two, three)),
            (longer, (one, two)),
            (empty, ()),
        ]
    ):
        other = MemoryStorage()
        fresh = ChunkStore(other)
        add(fresh, chunks)
        found = add(fresh, [chunk], dtype=BF16, masters=[masters], cast=[1])
        assert found != [Encoding.CAST], number
        check(fresh, other, [*chunks, chunk])


def replace_size(master, size_bytes):
    return master[0], size_bytes


def test_masters_of_the_same_session_are_read_where_they_are_at_hand(storage):
    """Their pack may not be published yet, so that is the only place."""
    masters = [weights(seed) for seed in range(4)]
    halves = [rounded(master) for master in masters]
    pairs = [((chunk_id, SIZE),) for chunk_id in ids_of(masters)]
    store = ChunkStore(storage, threads=2)
    source = BytesSource(b"".join(masters))
    with store.writer() as writer:
        writer.add(source, spans_of(masters))
        for i, chunk_id in enumerate(ids_of(masters)[:2]):
            writer.at_hand[chunk_id] = (source, i * SIZE)
        writer.at_hand[hash_chunk(masters[2])] = (Liar(weights(9)), 0)
        spans = spans_of(halves, BF16, masters=pairs, cast=[1] * 4)
        writer.add(BytesSource(b"".join(halves)), spans)
    assert encodings(store, halves) == [Encoding.CAST] * 2 + [Encoding.PLANES] * 2
    check(store, storage, [*masters, *halves])


def test_a_master_of_the_same_call_may_come_too_late(storage):
    master = weights(1)
    half = rounded(master)
    store = ChunkStore(storage, threads=1)
    source = BytesSource(half + master)
    spans = [
        ChunkSpan(0, len(half), BF16, masters=((hash_chunk(master), SIZE),), cast=1),
        ChunkSpan(len(half), SIZE, F32),
    ]
    with store.writer() as writer:
        writer.at_hand[hash_chunk(master)] = (source, len(half))
        writer.add(source, spans)
    assert encodings(store, [half]) == [Encoding.PLANES]
    check(store, storage, [master, half])


@pytest.mark.parametrize("one_session", [False, True])
def test_roundings_are_not_built_upon_roundings(storage, one_session):
    """Zeros are the rounding of zeros of twice the length, and so on without end."""
    sizes = [2**n for n in range(20, 8, -1)]
    chunks = [bytes(size) for size in sizes]
    store = ChunkStore(storage, threads=1)
    sessions = [sizes] if one_session else [[size] for size in sizes]
    for session in sessions:
        with store.writer() as writer:
            for size in session:
                source = BytesSource(bytes(2 * size))
                writer.at_hand[hash_chunk(bytes(2 * size))] = (source, 0)
                master = ((hash_chunk(bytes(2 * size)), 2 * size),) if size < sizes[0] else ()
                span = ChunkSpan(0, size, BF16, masters=master, cast=1 if master else None)
                writer.add(source, [span])
    check(store, storage, chunks)
    depths = store.copies().depths()
    assert depths.max() <= 1


def test_a_difference_to_a_rounding(storage):
    """A rounding may be a base like any other: of an odd step that is no rounding itself."""
    store = ChunkStore(storage, threads=1)
    masters = [weights(1, 2 * SIZE)]
    for number in range(3):
        masters.append(step(masters[-1], number))
        add(store, masters[-1:], base=ids_of(masters[-2:-1]))
    half = rounded(masters[-1])
    pair = ((hash_chunk(masters[-1]), 2 * SIZE),)
    assert add(store, [half], dtype=BF16, masters=[pair], cast=[1]) == [Encoding.CAST]
    chunks = [half]
    for number in range(4):
        words = np.frombuffer(chunks[-1], "<u2").copy()
        words[number::50] += 1
        chunks.append(words.tobytes())
        found = add(store, chunks[-1:], dtype=BF16, base=ids_of(chunks[-2:-1]))
        assert found == [Encoding.DELTA]
    check(store, storage, [*masters[1:], *chunks])
    assert store.copies().depths().max() <= MAX_DEPTH - 2


def test_slots_are_reused_without_a_trace(storage):
    """Chunks of many sizes and kinds through one slot: what one leaves must not show in the next."""
    random = np.random.default_rng(7)
    olds, news, masters, casts, dtypes = [], [], [], [], []
    for number in range(40):
        size = int(random.choice([16384, 20480, 65536, 131072, 300_000]))
        old = weights(number, size)
        kind = number % 4
        new = [step(old), weights(number + 500, size), rounded(old), old[::-1]][kind]
        olds.append(old)
        news.append(new)
        is_cast = kind == 2 and number % 8 == 2
        masters.append(((hash_chunk(old), size),) if kind == 2 else ())
        casts.append(1 if is_cast else None)
        dtypes.append(BF16 if kind == 2 else F32)
    store = ChunkStore(storage, threads=1)
    add(store, olds)
    spans = spans_of(news, F32, base=ids_of(olds), masters=masters, cast=casts)
    spans = [replace(span, dtype=dtype) for span, dtype in zip(spans, dtypes, strict=True)]
    with store.writer(ALWAYS) as writer:
        writer.add(BytesSource(b"".join(news)), spans)
    assert {Encoding.DELTA, Encoding.CAST, Encoding.PLANES} <= set(encodings(store, news))
    check(store, storage, [*olds, *news])
    for chunk in news:
        place = store.find(hash_chunk(chunk))
        assert place.stored_size_bytes <= len(chunk) + RECORD_BYTES
