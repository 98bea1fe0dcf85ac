"""The cache in front of a storage: what it asks for, what it keeps, and what it does not trust."""

import os
import random
import threading

import pytest

from mvc.errors import CorruptionError
from mvc.storage.cached import CachedStorage
from support.memory_storage import MemoryStorage
from support.storage_contract import StorageContract, put

KEY = "packs/a.pack"
BLOCK = 1000


class Asked(MemoryStorage):
    """A storage that notes which runs are read."""

    def __init__(self):
        super().__init__()
        self.runs = []
        self.gate = None

    def read_into(self, key, offset, buffer):
        self.runs.append((offset, len(buffer)))
        if self.gate is not None:
            self.gate.wait(10)
        super().read_into(key, offset, buffer)


class TestCachedStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return CachedStorage(MemoryStorage(), tmp_path / "cache", 10_000, block_bytes=64)


@pytest.fixture
def inner():
    inner = Asked()
    put(inner, KEY, random.Random(0).randbytes(10_500))
    return inner


@pytest.fixture
def data(inner):
    return inner.read(KEY)


def open_cache(inner, tmp_path, limit_bytes=10**6):
    return CachedStorage(inner, tmp_path / "cache", limit_bytes, block_bytes=BLOCK)


def read(storage, offset, length):
    buffer = bytearray(length)
    storage.read_into(KEY, offset, memoryview(buffer))
    return bytes(buffer)


def used_bytes(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_neighbours_come_with_one_request_and_once(inner, data, tmp_path):
    cache = open_cache(inner, tmp_path)
    assert read(cache, 1500, 3000) == data[1500:4500]
    assert inner.runs == [(1000, 4000)]
    assert read(cache, 2000, 1000) == data[2000:3000]
    assert read(open_cache(inner, tmp_path), 1000, 4000) == data[1000:5000]
    assert len(inner.runs) == 1
    assert read(cache, 0, 10_500) == data
    assert inner.runs[1:] == [(0, 1000), (5000, 5500)]


def test_random_reads_are_right_and_nothing_is_asked_for_twice(inner, data, tmp_path):
    cache, seeded = open_cache(inner, tmp_path), random.Random(1)
    for _ in range(200):
        start = seeded.randrange(len(data))
        length = seeded.randrange(1, len(data) - start + 1)
        assert read(cache, start, length) == data[start : start + length]
    asked = [at for start, length in inner.runs for at in range(start, start + length, BLOCK)]
    assert len(asked) == len(set(asked)) <= 11


def test_the_cache_stays_below_its_limit_and_keeps_what_was_used_last(inner, data, tmp_path):
    cache = open_cache(inner, tmp_path, limit_bytes=5000)
    for start in range(0, 10_000, BLOCK):
        assert read(cache, start, BLOCK) == data[start : start + BLOCK]
        os.utime(tmp_path / "cache" / KEY / f"{start // BLOCK:07}", ns=(start, start))
        read(cache, 0, 10)
        assert used_bytes(tmp_path) <= 5000
    inner.runs.clear()
    read(cache, 0, 10)
    read(cache, 9000, 10)
    assert inner.runs == []
    read(cache, 1000, 10)
    assert inner.runs == [(1000, 1000)]


@pytest.mark.parametrize("harm", ["flipped", "short", "empty", "of another"])
def test_a_damaged_block_is_fetched_again(inner, data, tmp_path, harm):
    cache = open_cache(inner, tmp_path)
    read(cache, 0, 3000)
    block = tmp_path / "cache" / KEY / "0000001"
    whole = block.read_bytes()
    harmed = {
        "flipped": whole[:5] + bytes([whole[5] ^ 1]) + whole[6:],
        "short": whole[:500],
        "empty": b"",
        "of another": block.with_name("0000002").read_bytes(),
    }
    block.write_bytes(harmed[harm])
    assert read(cache, 0, 3000) == data[:3000]
    assert inner.runs == [(0, 3000), (1000, 1000)]
    assert block.read_bytes() == whole


def test_what_cannot_be_kept_is_read_all_the_same(inner, data, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert read(open_cache(inner, tmp_path), 0, 10_500) == data


def test_threads_share_what_is_on_its_way(inner, data, tmp_path):
    cache, found = open_cache(inner, tmp_path), []
    inner.gate = threading.Event()
    threads = [
        threading.Thread(target=lambda at=at: found.append(read(cache, at, 5000)))
        for at in (0, 500, 1000, 1200)
    ]
    for thread in threads:
        thread.start()
    inner.gate.set()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(data[at : at + 5000] for at in (0, 500, 1000, 1200))
    asked = [at for start, length in inner.runs for at in range(start, start + length, BLOCK)]
    assert len(asked) == len(set(asked))


def test_a_failure_lets_others_try(inner, data, tmp_path):
    cache = open_cache(inner, tmp_path)
    with pytest.raises(CorruptionError, match="10,500"):
        read(cache, 9000, 5000)
    assert read(cache, 9000, 1500) == data[9000:]


def test_what_was_forgotten_is_fetched_again(inner, tmp_path):
    cache = open_cache(inner, tmp_path)
    read(cache, 0, 10)
    cache.read(KEY)
    cache.forget(KEY)
    inner.delete(KEY)
    put(inner, KEY, b"x" * 10_500)
    assert read(cache, 0, 10) == b"x" * 10
    assert cache.read(KEY)[:3] == b"xxx"
