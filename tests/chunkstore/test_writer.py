import contextlib
import os
import signal
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.chunkstore.relatives import DeltaMode
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkSpan, WriteCounts
from mvc.chunkstore.writer import BATCH_BYTES, BATCH_SPANS, plan_batches
from mvc.dtypes import get_dtype
from mvc.errors import StorageError, UsageError
from mvc.formats.pack import MAX_PLAIN_BYTES
from mvc.ids import hash_chunk
from mvc.progress import reporting
from mvc.storage.local import LocalStorage
from support.chunks import (
    BytesSource,
    ViewSource,
    WatchedStorage,
    add_chunks,
    cut,
    find_missing,
    objects,
    read_back,
    read_one,
)
from support.memory_storage import MemoryStorage

BF16 = get_dtype("BF16")
LARGE = BATCH_BYTES + 16


def weights(size_bytes, seed):
    values = np.random.default_rng(seed).normal(0, 0.02, size_bytes // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


small_chunks = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.builds(lambda word, n: word * n, st.binary(min_size=1, max_size=8), st.integers(0, 300)),
    ),
    max_size=30,
)


@given(small_chunks, st.sampled_from([None, "BF16", "F32", "U8", "I64"]), st.integers(1, 400))
def test_any_chunks_come_back(chunks, dtype, target):
    storage = MemoryStorage()
    store = ChunkStore(storage, threads=2, target_pack_bytes=target)
    ids, counts = add_chunks(store, chunks, dtype and get_dtype(dtype))
    assert ids == [hash_chunk(chunk) for chunk in chunks]
    unique = set(chunks)
    assert counts == WriteCounts(
        chunks=len(chunks),
        new_chunks=len(unique),
        plain_bytes=sum(map(len, chunks)),
        new_plain_bytes=sum(map(len, unique)),
        stored_bytes=sum(map(len, objects(storage).values())),
        packs=sum(key.endswith(".pack") for key in objects(storage)),
    )
    for reader in (store, ChunkStore(storage, threads=1)):
        assert read_back(reader, ids, chunks) == chunks
        assert list(reader.check(data=True)) == []
        assert find_missing(reader, ids) == []


def test_known_data_writes_nothing():
    storage = MemoryStorage()
    chunks = [weights(LARGE, 1), weights(500, 2), b"x", b"x", weights(LARGE, 1)]
    ids, _ = add_chunks(ChunkStore(storage, threads=2), chunks, BF16)
    before = objects(storage)
    watched = WatchedStorage(storage)
    again, counts = add_chunks(ChunkStore(watched, threads=2), chunks, BF16)
    assert again == ids
    assert counts == WriteCounts(chunks=5, plain_bytes=2 * LARGE + 502)
    assert watched.steps == 0
    assert objects(storage) == before


def test_a_session_without_chunks_publishes_nothing():
    storage = MemoryStorage()
    store = ChunkStore(storage)
    with store.writer() as writer:
        assert writer.add(BytesSource(b""), []) == []
    assert writer.counts == WriteCounts()
    with store.writer():
        pass
    assert objects(storage) == {}


def test_one_session_over_many_sources():
    storage = MemoryStorage()
    store = ChunkStore(storage, threads=2)
    with store.writer() as writer:
        first = writer.add(*cut([b"one", weights(LARGE, 1)]))
        second = writer.add(*cut([b"two", b"one", weights(LARGE, 1), weights(LARGE, 3)]))
        assert objects(storage) == {}
    assert second[1] == first[0]
    assert second[2] == first[1]
    assert writer.counts.new_chunks == 4
    assert len(objects(storage)) == 2


class OutOfOrderSource(BytesSource):
    """Lets the first read return only once all others that can be in flight have been read."""

    def __init__(self, data, ahead):
        super().__init__(data)
        self.ahead = ahead
        self.lock = threading.Condition()
        self.others = 0

    def read_into(self, offset, buffer):
        with self.lock:
            if offset == 0:
                assert self.lock.wait_for(lambda: self.others >= self.ahead, timeout=300)
            else:
                self.others += 1
                self.lock.notify_all()
        super().read_into(offset, buffer)


def test_the_same_input_makes_the_same_packs_whatever_the_threads_do():
    parts = [weights(LARGE, seed) for seed in range(4)]
    chunks = [parts[i] for i in (0, 1, 0, 2, 0, 1, 3, 2, 0)] + [b"a", b"b", b"a"] * 20
    expected = None
    for threads, ahead in ((1, 0), (2, 3), (3, 4), (4, 5)):
        storage = MemoryStorage()
        store = ChunkStore(storage, threads=threads, target_pack_bytes=2**21)
        source, spans = cut(chunks, BF16)
        with store.writer() as writer:
            ids = writer.add(OutOfOrderSource(source.data, ahead), spans)
        assert ids == [hash_chunk(chunk) for chunk in chunks]
        assert writer.counts.new_chunks == 6
        expected = expected or objects(storage)
        assert objects(storage) == expected


def test_chunks_in_flight_are_bounded():
    chunks = [os.urandom(LARGE) for _ in range(20)]
    in_flight, lock, most = [0], threading.Lock(), [0]

    class Source(BytesSource):
        def read_into(self, offset, buffer):
            with lock:
                in_flight[0] += 1
                most[0] = max(most[0], in_flight[0])
            super().read_into(offset, buffer)

    def progress(size_bytes):
        with lock:
            in_flight[0] -= 1

    source, spans = cut(chunks)
    with ChunkStore(MemoryStorage(), threads=3).writer() as writer:
        with reporting(progress):
            writer.add(Source(source.data), spans)
    assert most[0] <= 3 + 2
    assert in_flight[0] == 0


def test_progress_comes_in_the_calling_thread_and_adds_up():
    chunks = [os.urandom(LARGE), *([b"abc"] * 50), os.urandom(LARGE)]
    seen = []
    with ChunkStore(MemoryStorage(), threads=2).writer() as writer:
        with reporting(lambda size: seen.append((size, threading.get_ident()))):
            writer.add(*cut(chunks))
    assert sum(size for size, _ in seen) == sum(map(len, chunks))
    assert {thread for _, thread in seen} == {threading.get_ident()}


def test_small_chunks_are_read_together():
    chunks = [i.to_bytes(2, "little") * 50 for i in range(30_000)]
    source, spans = cut(chunks)
    store = ChunkStore(MemoryStorage(), threads=2)
    batches = []
    with store.writer() as writer, reporting(batches.append):
        ids = writer.add(source, spans)
    assert len(source.reads) == len(batches) == -(-30_000 // BATCH_SPANS)
    assert writer.counts.new_chunks == 30_000
    assert ids[12345] == hash_chunk(chunks[12345])
    assert read_one(store, chunks[29_999]) == chunks[29_999]


def test_spans_may_lie_anywhere_in_the_source():
    data = os.urandom(5000)
    spans = [ChunkSpan(o, s, None) for o, s in ((4000, 1000), (0, 10), (10, 90), (50, 60), (9, 0))]
    source = BytesSource(data)
    store = ChunkStore(MemoryStorage(), threads=2)
    with store.writer() as writer:
        ids = writer.add(source, spans)
    assert ids == [hash_chunk(data[s.offset : s.offset + s.size_bytes]) for s in spans]
    assert source.reads == [(4000, 1000), (0, 100), (50, 60)]


def test_batches_keep_order_and_stay_small():
    sizes = [5, BATCH_BYTES, 1, 2, BATCH_BYTES - 3, 1, LARGE, LARGE, 7]
    spans = [ChunkSpan(0, size, None) for size in sizes]
    batches = list(plan_batches(spans, 100))
    assert [[s.size_bytes for s in b.spans] for b in batches] == [
        [5],
        [BATCH_BYTES],
        [1, 2, BATCH_BYTES - 3],
        [1],
        [LARGE],
        [LARGE],
        [7],
    ]
    assert [b.first for b in batches] == [100, 101, 102, 105, 106, 107, 108]
    assert [b.size_bytes for b in batches] == [sum(s.size_bytes for s in b.spans) for b in batches]


@pytest.mark.parametrize("unseen", [None, 0])
def test_what_a_source_shows_is_not_copied(unseen):
    class Source(ViewSource):
        def view(self, offset, size_bytes):
            return None if offset == unseen else super().view(offset, size_bytes)

    chunks = [weights(LARGE, 1), b"small", b"smaller"]
    _, spans = cut(chunks, BF16)
    source = Source(b"".join(chunks))
    store = ChunkStore(MemoryStorage(), threads=2)
    with store.writer() as writer:
        ids = writer.add(source, spans)
    assert [offset for offset, _ in source.reads] == ([] if unseen is None else [unseen])
    assert read_back(store, ids, chunks) == chunks


class BreakingSource(BytesSource):
    """Raises at one offset; notices use after the call that it broke."""

    def __init__(self, data, breaks_at):
        super().__init__(data)
        self.breaks_at = breaks_at
        self.error = OSError("source broke")
        self.is_closed = False
        self.used_late = False

    def read_into(self, offset, buffer):
        self.used_late |= self.is_closed
        if offset == self.breaks_at:
            raise self.error
        super().read_into(offset, buffer)


def add_and_close(store, source, spans):
    with store.writer() as writer:
        try:
            writer.add(source, spans)
        finally:
            source.is_closed = True


@pytest.mark.parametrize("broken", [0, 3, 9])
@pytest.mark.parametrize("count", [1, 10])
def test_an_error_of_the_source_surfaces_as_it_is(broken, count, tmp_path):
    chunks = [os.urandom(LARGE) for _ in range(count)]
    broken = min(broken, count - 1)
    source, spans = cut(chunks)
    source = BreakingSource(source.data, spans[broken].offset)
    store = ChunkStore(LocalStorage(tmp_path), threads=2)
    with pytest.raises(OSError, match="source broke") as caught:
        add_and_close(store, source, spans)
    assert caught.value is source.error
    assert not source.used_late
    assert len(source.reads) <= broken + 4
    assert not (tmp_path / "packs").exists() or os.listdir(tmp_path / "packs") == []
    ids, _ = add_chunks(store, chunks)
    assert read_back(store, ids, chunks) == chunks


def test_a_session_that_failed_takes_nothing_more():
    storage = MemoryStorage()
    store = ChunkStore(storage, threads=2)
    writer = store.writer()
    with pytest.raises(OSError, match="broke"):
        writer.add(BreakingSource(b"abc", 0), [ChunkSpan(0, 3, None)])
    with pytest.raises(StorageError, match="failed before"):
        writer.add(BytesSource(b"abc"), [ChunkSpan(0, 3, None)])
    with pytest.raises(StorageError, match="failed before"):
        writer.close()
    writer.close()
    assert objects(storage) == {}
    with store.writer() as writer:
        pass
    with pytest.raises(StorageError):
        writer.add(BytesSource(b"abc"), [ChunkSpan(0, 3, None)])


def test_an_error_in_the_block_forgets_what_was_added(tmp_path):
    store = ChunkStore(LocalStorage(tmp_path), threads=2)
    with contextlib.suppress(KeyError), store.writer() as writer:
        writer.add(*cut([b"abc", os.urandom(LARGE)]))
        raise KeyError
    assert os.listdir(tmp_path / "packs") == []
    assert store.find(hash_chunk(b"abc")) is None


def test_an_error_in_progress_ends_the_session():
    def progress(size_bytes):
        raise KeyError

    storage = MemoryStorage()
    with pytest.raises(KeyError), ChunkStore(storage, threads=2).writer() as writer:
        with reporting(progress):
            writer.add(*cut([os.urandom(LARGE) for _ in range(5)]))
    assert objects(storage) == {}


class InterruptedStorage(MemoryStorage):
    """Ctrl-C comes while its ``number``-th write is under way, or its ``number``-th publication."""

    def __init__(self, call, number):
        super().__init__()
        self._call, self._left = call, number

    def create(self, prefix=""):
        pending = super().create(prefix)
        act = getattr(pending, self._call)

        def interrupted(*arguments):
            is_main = threading.current_thread() is threading.main_thread()
            if is_main == (self._call == "write"):  # another thread writes indexes, and publishes
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGINT)
            act(*arguments)

        setattr(pending, self._call, interrupted)
        return pending


@pytest.mark.parametrize(
    ("call", "number", "stored"),
    [
        ("write", 1, 1),
        ("write", 4, 3),
        ("write", 10, None),
        ("write", 14, None),
        ("publish", 1, None),
    ],
)
def test_after_ctrl_c_all_that_was_written_stays(call, number, stored):
    """A write is a chunk, but for the header and footer of packs, of three chunks each.

    Once a pack is full, its index is written by another thread, sooner or later.
    """
    chunks = [os.urandom(LARGE) for _ in range(8)]
    storage = InterruptedStorage(call, number)
    store = ChunkStore(storage, threads=2, target_pack_bytes=3 * LARGE)
    with pytest.raises(KeyboardInterrupt) as caught, store.writer() as writer:
        writer.add(*cut(chunks))
    size_mib = writer.counts.plain_bytes / 2**20
    assert caught.value.__notes__ == [
        f"{size_mib:,.1f} MiB of it are stored; adding it again goes on from there"
    ]
    kept = [chunk for chunk in chunks if ChunkStore(storage).find(hash_chunk(chunk)) is not None]
    assert len(kept) * LARGE == writer.counts.plain_bytes
    assert chunks[: len(kept)] == kept
    assert stored in (None, len(kept))
    _, counts = add_chunks(ChunkStore(storage), chunks)
    assert counts.new_chunks == len(chunks) - len(kept)


def test_after_ctrl_c_a_rewrite_leaves_nothing():
    storage = MemoryStorage()
    store = ChunkStore(storage)
    with pytest.raises(KeyboardInterrupt), store._new_writer(DeltaMode.NEVER, rewrite=True) as one:
        one.add(*cut([b"abc"]))
        raise KeyboardInterrupt
    assert objects(storage) == {}


def test_chunks_of_other_sessions_are_seen():
    storage = MemoryStorage()
    first, second = ChunkStore(storage), ChunkStore(storage)
    assert first.find(hash_chunk(b"abc")) is None
    add_chunks(second, [b"abc"])
    assert first.find(hash_chunk(b"abc")) is None
    _, counts = add_chunks(first, [b"abc"])
    assert counts.new_chunks == 0


def test_packs_are_closed_at_the_target():
    storage = MemoryStorage()
    store = ChunkStore(storage, threads=2, target_pack_bytes=3 * LARGE)
    add_chunks(store, [os.urandom(LARGE) for _ in range(8)])
    sizes = sorted(size for size in (len(d) for d in objects(storage).values()) if size > LARGE)
    assert [round(size / LARGE) for size in sizes] == [2, 3, 3]


@pytest.mark.parametrize("target", [2**30, LARGE])
def test_a_failing_storage_leaves_a_usable_store(target):
    chunks = [weights(LARGE, 1), os.urandom(LARGE), *(bytes([i]) * 20 for i in range(20))]

    def run(storage):
        store = ChunkStore(storage, threads=2, target_pack_bytes=target)
        return store, add_chunks(store, chunks, BF16)

    healthy = WatchedStorage(MemoryStorage())
    run(healthy)
    assert healthy.pending == 0
    for step in range(1, healthy.steps + 1):
        storage = WatchedStorage(MemoryStorage(), fail_at=step)
        store = ChunkStore(storage, threads=2, target_pack_bytes=target)
        with pytest.raises(StorageError, match="no space left"):
            add_chunks(store, chunks, BF16)
        assert storage.pending == 0
        for problem in store.check(data=True):
            assert problem.kind == "missing-index"
        if target == 2**30:
            published = [key for key in objects(storage) if key.endswith(".pack")]
            assert len(published) == (step > healthy.steps - 3)
        ids, counts = add_chunks(store, chunks, BF16)
        assert read_back(store, ids, chunks) == chunks
        assert counts.chunks == 22
        fresh = ChunkStore(storage, threads=1)
        assert read_back(fresh, ids, chunks) == chunks


@pytest.mark.parametrize(("offset", "size"), [(0, MAX_PLAIN_BYTES + 1), (0, -1), (-1, 5)])
def test_spans_that_cannot_be_chunks_are_refused(offset, size):
    storage = MemoryStorage()
    with ChunkStore(storage).writer() as writer:
        with pytest.raises(UsageError):
            writer.add(BytesSource(b"x"), [ChunkSpan(0, 1, None), ChunkSpan(offset, size, None)])
        writer.add(BytesSource(b"good"), [ChunkSpan(0, 4, None)])
    assert writer.counts.chunks == 1
