"""Entries of the index: when a file is trusted to be unchanged."""

import os
from dataclasses import replace

from mvc.fs import FileStat, find_stat
from mvc.history.values import EMPTY_BLOB, Index
from support.entries import (
    LINK,
    RUNNABLE,
    entry_from_stat,
    entry_of,
    make_racy,
    rewrite_in_place,
    set_index_time,
    write,
)


def test_big_files_and_inodes_are_compared_as_they_are_stored(history):
    big = FileStat(5 * 2**32 + 7, 10**18, 10**18 + 1, 2**40 + 5, 2**33, 0o100644)
    exact = replace(big, size_bytes=2**32)
    blob = history.write_blob(b"manifest")
    write(history, entry_from_stat("big", blob, big), entry_from_stat("exact", blob, exact))
    entries = history.read_index().entries
    assert entries["big"].matches(big)
    assert not entries["big"].matches(replace(big, size_bytes=7 + 2**32 * 5 + 1))
    assert not entries["big"].matches(replace(big, inode=big.inode + 1))
    assert entries["exact"].matches(exact)
    assert not entries["exact"].matches(replace(exact, size_bytes=0))


def test_whatever_a_stat_tells_is_compared(history):
    stat = FileStat(10, 10**18, 10**18 + 1, 5, 6, 0o100644)
    entry = entry_from_stat("f", history.write_blob(b"0123456789"), stat)
    assert entry.matches(stat)
    for change in (
        {"size_bytes": 11}, {"mtime_ns": 10**18 + 1}, {"ctime_ns": 10**18}, {"inode": 4},
        {"mode": 0o100755}, {"mode": 0o120777}, {"mode": 0o40755},
    ):  # fmt: skip
        assert not entry.matches(replace(stat, **change)), change
    assert entry.matches(replace(stat, mode=0o100600))
    assert not replace(entry, mode=LINK).matches(stat)
    assert replace(entry, mode=LINK).matches(replace(stat, mode=0o120777))
    assert replace(entry, mode=RUNNABLE).matches(replace(stat, mode=0o100700))


def test_a_file_changed_within_the_tick_of_the_index_is_not_trusted(history, tmp_path):
    path = tmp_path / "model.bin"
    make_racy(history, path, b"first")
    index = history.read_index()
    entry = index.entries["model.bin"]
    lying = rewrite_in_place(path, b"other")
    assert replace(entry, racy=False).matches(lying)  # the stat data alone would lie
    assert index.is_racy(entry)
    assert not entry.matches(lying)


def test_an_entry_that_was_compared_again_is_trusted_from_then_on(history, tmp_path):
    path = tmp_path / "model.bin"
    blob = make_racy(history, path, b"first")
    stat = find_stat(path)
    write(history, entry_from_stat("model.bin", blob, stat))
    set_index_time(history, stat.mtime_ns + 1)
    index = history.read_index()
    assert not index.is_racy(index.entries["model.bin"])
    assert index.entries["model.bin"].matches(stat)


def test_an_empty_file_may_be_racy(history, tmp_path):
    path = tmp_path / "empty"
    make_racy(history, path, b"")
    entries = history.read_index().entries
    with history.lock():
        history.write_index(Index(entries))
    stat = find_stat(path)
    set_index_time(history, stat.mtime_ns + 1)
    entry = history.read_index().entries["empty"]
    assert entry.blob == EMPTY_BLOB
    assert entry.matches(stat)
    rewrite_in_place(path, b"x")
    assert not entry.matches(replace(find_stat(path), ctime_ns=stat.ctime_ns))


def test_an_old_file_is_trusted(history, tmp_path):
    path = tmp_path / "old"
    path.write_bytes(b"old")
    os.utime(path, ns=(10**18, 10**18))
    write(history, entry_from_stat("old", history.write_blob(b"old"), find_stat(path)))
    index = history.read_index()
    assert index.timestamp_ns == (history.git_dir / "index").stat().st_mtime_ns
    assert not index.is_racy(index.entries["old"])
    assert index.entries["old"].matches(find_stat(path))


def test_entries_without_stat_data_match_nothing(history):
    write(history, entry_of(history, "f", b"x"), entry_of(history, "e", b""))
    entries = history.read_index().entries
    for entry in entries.values():
        assert not entry.matches(FileStat(0, 10**18, 10**18, 1, 1, 0o100644))


def test_times_that_32_bits_cannot_hold_match_nothing(history):
    for time_ns in (-5, 2**32 * 10**9, 2**62):
        stat = FileStat(1, time_ns, time_ns, 1, 1, 0o100644)
        write(history, entry_from_stat("f", history.write_blob(b"x"), stat))
        assert not history.read_index().entries["f"].matches(stat)
