"""Packs on their way out: closed at their target, and a failing disk leaves a usable store."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.writer import BATCH_BYTES
from mvc.dtypes import get_dtype
from mvc.errors import StorageError
from support.chunks import WatchedStorage, add_chunks, objects, read_back
from support.memory_storage import MemoryStorage

BF16 = get_dtype("BF16")


LARGE = BATCH_BYTES + 16


def weights(size_bytes, seed):
    values = np.random.default_rng(seed).normal(0, 0.02, size_bytes // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


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
