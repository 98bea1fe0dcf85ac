"""The cache of statistics: what it keeps comes back, and nothing that happens to its file is an error."""

import multiprocessing
import os
import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from mvc.ids import hash_chunk
from mvc.workspace import kept as module
from mvc.workspace.kept import FILE_NAME, Kept, PartDigests
from support.machine import fork_each

ONE, TWO = b"1" * 32, b"2" * 64


@pytest.fixture
def path(tmp_path):
    return tmp_path / FILE_NAME


@pytest.fixture
def kept(path):
    return Kept(path)


def test_entries_come_back_by_kind_and_key(kept, path):
    assert kept.get_many(b"pair", [ONE]) == {}
    assert not path.exists(), "looking alone made a file"
    kept.put_many(b"pair", {ONE: b"first", TWO: b""})
    kept.put_many(b"other", {ONE: b"another kind"})
    kept.put_many(b"pair", {ONE: b"again"})
    kept.put_many(b"pair", {})
    assert kept.get_many(b"pair", [ONE, TWO, b"absent"]) == {ONE: b"again", TWO: b""}
    assert Kept(path).get_many(b"other", iter([ONE])) == {ONE: b"another kind"}
    assert os.listdir(path.parent) == [FILE_NAME]


def _damage_page(path):
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)


def _make_newer(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 7")


def _drop_table(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE kept")


def _make_foreign(path):
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE kept (something TEXT)")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"no database at all" * 99),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        _damage_page,
        _make_newer,
        _drop_table,
        _make_foreign,
    ],
    ids=["garbage", "cut", "page", "version", "table", "foreign"],
)
def test_a_file_that_is_not_sound_is_made_again(kept, path, spoil):
    kept.put_many(b"pair", {bytes([n]) * 32: os.urandom(200) for n in range(100)})
    spoil(path)
    assert kept.get_many(b"pair", [ONE]) == {}
    kept.put_many(b"pair", {ONE: b"new"})
    assert kept.get_many(b"pair", [ONE]) == {ONE: b"new"}


def test_a_changed_entry_is_not_found(kept, path):
    kept.put_many(b"pair", {ONE: b"right", TWO: b"right"})
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "UPDATE kept SET value = substr(value, 1, 8) || x'00' WHERE key = ?", (ONE,)
        )
        database.execute("UPDATE kept SET value = 'text' WHERE key = ?", (TWO,))
    assert kept.get_many(b"pair", [ONE, TWO]) == {}


def test_a_locked_file_is_done_without(kept, path, monkeypatch):
    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    kept.put_many(b"pair", {ONE: b"before"})
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert kept.get_many(b"pair", [ONE]) == {}
        kept.put_many(b"pair", {ONE: b"lost"})
        holder.execute("ROLLBACK")
    assert kept.get_many(b"pair", [ONE]) == {ONE: b"before"}


def test_a_reader_and_a_writer_that_has_not_ended_do_not_meet(kept, path):
    kept.put_many(b"pair", {ONE: b"before"})
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM kept")
        assert kept.get_many(b"pair", [ONE]) == {ONE: b"before"}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_what_is_not_a_file_stays(kept, path, make):
    make(path)
    kept.put_many(b"pair", {ONE: b"x"})
    assert kept.get_many(b"pair", [ONE]) == {}
    assert os.path.lexists(path)


def test_without_a_folder_nothing_is_kept(tmp_path):
    kept = Kept(tmp_path / "gone" / FILE_NAME)
    kept.put_many(b"pair", {ONE: b"x"})
    assert kept.get_many(b"pair", [ONE]) == {}
    assert kept.size_bytes == 0


def _try_as_another_user(path):
    if os.geteuid() == 0:
        os.setuid(65534)
    kept = Kept(path)
    assert kept.get_many(b"pair", [ONE]) == {ONE: b"there"}
    kept.put_many(b"pair", {ONE: b"changed"})
    assert kept.get_many(b"pair", [ONE]) == {ONE: b"there"}


def test_a_read_only_folder_is_read():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name) / FILE_NAME
        Kept(path).put_many(b"pair", {ONE: b"there"})
        path.chmod(0o444)
        os.chmod(name, 0o555)
        fork_each(partial(_try_as_another_user, path))
        os.chmod(name, 0o755)


def _put_range(path, first):
    for number in range(first, first + 100):
        Kept(path).put_many(b"pair", {number.to_bytes(32): b"%d" % number})


def test_processes_write_at_once(kept, path):
    """The file does not exist when they begin: both want to make it."""
    fork_each(*(partial(_put_range, path, 100 * number) for number in range(3)))
    keys = [number.to_bytes(32) for number in range(300)]
    assert kept.get_many(b"pair", keys) == {key: b"%d" % n for n, key in enumerate(keys)}


def _write_without_end(path, started):
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA cache_size = 1")  # so that half of it reaches the file
        database.execute("BEGIN IMMEDIATE")
        for number in range(2000):
            row = (b"pair", number.to_bytes(32), bytes(500))
            database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", row)
        started.set()
        os.kill(os.getpid(), 9)


def test_a_writer_that_is_killed_leaves_what_was_there(kept, path):
    entries = {number.to_bytes(32): b"%d" % number for number in range(2000)}
    kept.put_many(b"pair", entries)
    fork = multiprocessing.get_context("fork")
    started = fork.Event()
    writer = fork.Process(target=_write_without_end, args=(path, started))
    writer.start()
    writer.join()
    assert started.is_set()
    assert path.with_name(f"{FILE_NAME}-journal").stat().st_size > 0
    assert kept.get_many(b"pair", entries) == entries


def test_useless_entries_go_and_the_file_shrinks(kept):
    kept.put_many(b"pair", {number.to_bytes(32): os.urandom(500) for number in range(500)})
    kept.put_many(b"pair", {ONE: b"stays"})
    useless = [entry for entry in kept.list_entries() if entry[1] != ONE]
    assert len(useless) == 500
    before = kept.size_bytes
    assert kept.drop(useless) == before - kept.size_bytes > 200_000
    assert kept.list_entries() == [(b"pair", ONE)]
    assert kept.drop([]) == 0


def test_hashes_of_pieces_are_given_once():
    digests = PartDigests()
    digests.note("piece", memoryview(b"content"))
    assert digests.take("other") is None
    assert digests.take("piece") == hash_chunk(b"content")
    assert digests.take("piece") is None


def test_the_oldest_hashes_are_forgotten():
    digests = PartDigests(kept=3)
    for number in range(5):
        digests.note(number, memoryview(b"x"))
    assert [n for n in range(5) if digests.take(n) is not None] == [2, 3, 4]
