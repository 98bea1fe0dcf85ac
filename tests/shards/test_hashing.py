"""Hashing: each byte once, what did not change not at all, what changes meanwhile is refused."""

import hashlib
import os
import threading

import pytest

from mvc.errors import ConflictError, UnsupportedError
from mvc.shards.hashing import StatCache, hash_shard, hash_shards
from mvc.shards.places import Folder, choose, open_place
from mvc.sources import FileSource
from mvc.workspace.kept import Kept
from support.shard_files import make_tar, write_jsonl


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    write_jsonl(folder / "a.jsonl", 1000)
    write_jsonl(folder / "sub" / "b.jsonl.gz", 500, "gz")
    (folder / "c.bin").write_bytes(os.urandom((3 << 20) + 17))
    (folder / "d.tar").write_bytes(make_tar([("a.x", b"1"), ("b.x", b"2")]))
    (folder / "empty").write_bytes(b"")
    return folder


@pytest.fixture
def read(monkeypatch):
    """Counts the bytes that files are asked for."""
    counted = [0]
    real, lock = FileSource.read_into, threading.Lock()

    def read_into(self, offset, buffer):
        with lock:
            counted[0] += len(buffer)
        real(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", read_into)
    return counted


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_each_byte_is_read_once(data, read):
    place = open_place("data", data.parent)
    done = hash_shards(place, place.list(None), threads=2)
    assert read[0] == size_of(data)
    assert [hashed.shard.path for hashed in done] == [
        "a.jsonl",
        "c.bin",
        "d.tar",
        "empty",
        "sub/b.jsonl.gz",
    ]
    assert [hashed.shard.records for hashed in done] == [1000, None, 2, 0, 500]
    for hashed in done:
        content = (data / hashed.shard.path).read_bytes()
        assert hashed.shard.sha256 == hashlib.sha256(content).digest()
        assert hashed.shard.size_bytes == len(content)


def test_a_counter_that_fails_leaves_the_hash_right(data):
    for name in ("x.tar", "x.parquet", "x.jsonl.zst", "x.npy", "x.arrow"):
        (data / name).write_bytes(b"\x93 no such format" * 100_000)
    place = Folder(data, "data")
    for hashed in hash_shards(place, place.list("x.*"), threads=2):
        assert (
            hashed.shard.sha256 == hashlib.sha256((data / hashed.shard.path).read_bytes()).digest()
        )
        assert hashed.shard.records is None
        assert hashed.warning


def test_only_what_changed_is_not_known(data, tmp_path):
    place, kept = Folder(data, "data"), Kept(tmp_path / "shards.db")
    cache = StatCache(kept, place)
    found = place.list(None)
    assert cache.find(found) == {}
    cache.keep(found, hash_shards(place, found, threads=1))
    known = StatCache(kept, place).find(place.list(None))
    assert len(known) == 5
    assert known["a.jsonl"].records == 1000
    old = (data / "a.jsonl").stat()
    (data / "a.jsonl").write_bytes((data / "a.jsonl").read_bytes().swapcase())
    os.utime(data / "a.jsonl", ns=(old.st_atime_ns, old.st_mtime_ns))  # as tar and rsync do
    (data / "d.tar").unlink()
    (data / "d.tar").write_bytes(make_tar([("c.x", b"1"), ("d.x", b"2")]))
    assert cache.find(place.list(None)).keys() == {"c.bin", "empty", "sub/b.jsonl.gz"}
    assert StatCache(kept, Folder(tmp_path, "other")).find(found) == {}
    assert StatCache(None, place).find(found) == {}


def test_a_damaged_cache_is_an_empty_one(data, tmp_path):
    place, path = Folder(data, "data"), tmp_path / "shards.db"
    cache, found = StatCache(Kept(path), place), place.list(None)
    cache.keep(found, hash_shards(place, found, threads=1))
    path.write_bytes(b"junk" * 1000)
    assert cache.find(found) == {}


def test_a_file_that_changes_while_it_is_read_is_refused(data, monkeypatch):
    place = Folder(data, "data")
    (found,) = place.list("c.bin")
    real = FileSource.read_into

    def read_into(self, offset, buffer):
        real(self, offset, buffer)
        if offset == 0:
            with (data / "c.bin").open("r+b") as file:
                file.seek(2 << 20)
                file.write(b"x")

    monkeypatch.setattr(FileSource, "read_into", read_into)
    with pytest.raises(ConflictError, match=r"'c\.bin' changed while it was read"):
        hash_shard(place, found)


def test_a_file_that_changed_since_it_was_listed_is_refused(data):
    place = Folder(data, "data")
    found = place.list("c.bin")
    (data / "c.bin").write_bytes(b"short")
    with pytest.raises(ConflictError, match="changed"):
        hash_shards(place, found, threads=2)


def test_what_belongs_to_a_map():
    paths = [
        "a.tar",
        "b/c.tar",
        "b/.x/d.tar",
        ".hidden",
        "old.shards",
        "b/e.mvc-tmp",
        "a b.tar",
        "z\n.tar",
    ]
    assert choose(paths, None) == ["a b.tar", "a.tar", "b/c.tar", "z\n.tar"]
    assert choose(paths, "*.tar") == ["a b.tar", "a.tar", "z\n.tar"]
    assert choose(paths, "**/*.tar") == ["a b.tar", "a.tar", "b/c.tar", "z\n.tar"]
    assert choose(paths, "[a-b].tar") == ["a.tar"]


def test_links_pipes_and_what_cannot_be_read_are_refused(data, tmp_path):
    place = Folder(data, "data")
    (tmp_path / "secret").write_text("s")
    (data / "link.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(UnsupportedError, match=r"'link\.bin' in data is a link"):
        hash_shards(place, place.list("*.bin"), threads=1)
    (data / "link.bin").unlink()
    os.mkfifo(data / "pipe.bin")
    with pytest.raises(UnsupportedError, match="neither a file nor a folder"):
        hash_shards(place, place.list(None), threads=1)
    assert place.find("pipe.bin") is None


def test_nothing_beyond_a_link_is_found(data, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.bin").write_bytes(b"x")
    (data / "away").symlink_to(tmp_path / "outside")
    assert Folder(data, "data").find("away/x.bin") is None
    (tmp_path / "to-data").symlink_to(data)
    (data / "away").unlink()
    assert len(Folder(tmp_path / "to-data", "x").list(None)) == 5  # the root itself may be a link
