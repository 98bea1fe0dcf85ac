from __future__ import annotations

import hashlib
import os
import struct
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import ConflictError, CorruptionError, FormatError, UnsupportedError, UsageError
from mvc.fs import FileStat, find_stat
from mvc.history.check import check
from mvc.history.index import encode_index, parse_index
from mvc.history.values import EMPTY_BLOB, Index, IndexEntry, stored_size
from support.stockgit import git, run_git

FILE, RUNNABLE, LINK = 0o100644, 0o100755, 0o120000


def entry_of(history, path, data=b"content", **changes):
    options = {"path": path, "blob": history.write_blob(data), "mode": FILE}
    return IndexEntry(**{**options, **changes})


def entry_from_stat(path, blob, stat):
    return IndexEntry(
        path=path, blob=blob, mode=FILE, size_bytes=stat.size_bytes, mtime_ns=stat.mtime_ns,
        ctime_ns=stat.ctime_ns, inode=stat.inode, device=stat.device,
    )  # fmt: skip


def write(history, *entries):
    with history.lock():
        history.write_index(Index({entry.path: entry for entry in entries}))


def test_there_is_an_empty_index_before_the_first_file(history):
    assert history.read_index() == Index({}, 0)


def test_stock_git_reads_the_index(history):
    entries = [
        entry_of(history, "b.txt", size_bytes=7, mtime_ns=10**18 + 5, inode=3, device=4),
        entry_of(history, "a/run.sh", mode=RUNNABLE),
        entry_of(history, "a/link", mode=LINK),
        entry_of(history, "a-b", size_bytes=5_000_000_000),
        entry_of(history, "state/model.safetensors", skip_worktree=True),
        entry_of(history, "é/\udce9"),
    ]
    write(history, *entries)
    shown = run_git(history.git_dir, "ls-files", "-s", "-t", "-z").stdout.split(b"\0")[:-1]
    wanted = sorted(
        b"%s %06o %s 0\t%s"
        % (
            b"S" if e.skip_worktree else b"H",
            e.mode,
            e.blob.encode(),
            e.path.encode("utf-8", "surrogateescape"),
        )
        for e in entries
    )
    assert sorted(shown) == wanted
    debug = git(history.git_dir, "ls-files", "--debug", "b.txt")
    assert "mtime: 1000000000:5" in debug
    assert "size: 7" in debug
    assert history.read_index().entries == {
        e.path: replace(e, size_bytes=stored_size(e.size_bytes)) for e in entries
    }
    git(history.git_dir, "fsck", "--strict")


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_index_of_stock_git_is_read(history, version):
    blob = history.write_blob(b"x")
    lines = "".join(f"100644 {blob}\tfolder/with/a/long/name/file{n}\n" for n in range(20))
    git(
        history.git_dir,
        "-c",
        f"index.version={version}",
        "update-index",
        "--index-info",
        data=lines.encode(),
    )
    if version == 3:
        git(history.git_dir, "update-index", "--skip-worktree", "folder/with/a/long/name/file3")
    tree = git(history.git_dir, "write-tree")  # adds the cache-tree extension
    entries = history.read_index().entries
    assert len(entries) == 20
    assert [e.path for e in entries.values() if e.skip_worktree] == (
        ["folder/with/a/long/name/file3"] if version == 3 else []
    )
    write(history, *entries.values())
    assert git(history.git_dir, "write-tree") == tree


_PATHS = st.lists(
    st.text(alphabet="abc.-é \udce9", min_size=1, max_size=5).filter(
        lambda name: not name.startswith(".")
    ),
    min_size=1,
    max_size=3,
).map("/".join)
_WORD = st.integers(0, 2**32 - 1)
_ENTRIES = st.builds(
    IndexEntry,
    path=_PATHS,
    blob=st.binary(min_size=20, max_size=20).map(bytes.hex),
    mode=st.sampled_from([FILE, RUNNABLE, LINK]),
    size_bytes=_WORD,
    mtime_ns=st.integers(0, 2**32 * 10**9 - 1),
    ctime_ns=st.integers(0, 2**32 * 10**9 - 1),
    inode=_WORD,
    device=_WORD,
    skip_worktree=st.booleans(),
)


@given(st.lists(_ENTRIES, max_size=8, unique_by=lambda entry: entry.path))
def test_any_index_comes_back(entries):
    paths = {entry.path for entry in entries}
    index = Index({entry.path: entry for entry in entries})
    if any(other.startswith(path + "/") for path in paths for other in paths):
        with pytest.raises(UsageError, match="folder"):
            encode_index(index)
        return
    assert parse_index(encode_index(index), 2**63) == index.entries


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


def make_racy(history, path, data):
    """Stage a file and set the index file's own time to that of the file."""
    path.write_bytes(data)
    blob = history.write_blob(data)
    write(history, entry_from_stat(path.name, blob, find_stat(path)))
    set_index_time(history, find_stat(path).mtime_ns)
    return blob


def set_index_time(history, time_ns):
    os.utime(history.git_dir / "index", ns=(time_ns, time_ns))


def rewrite_in_place(path, data):
    """Change a file so that its stat data stay what they were, but for the change time."""
    before = find_stat(path)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns))
    return replace(find_stat(path), ctime_ns=before.ctime_ns)


def test_a_file_changed_within_the_tick_of_the_index_is_not_trusted(history, tmp_path):
    path = tmp_path / "model.bin"
    make_racy(history, path, b"first")
    index = history.read_index()
    entry = index.entries["model.bin"]
    lying = rewrite_in_place(path, b"other")
    assert replace(entry, racy=False).matches(lying)  # the stat data alone would lie
    assert index.is_racy(entry)
    assert not entry.matches(lying)


def test_a_racy_entry_stays_suspect_when_the_index_is_written_again(history, tmp_path):
    path = tmp_path / "model.bin"
    blob = make_racy(history, path, b"first")
    lying = rewrite_in_place(path, b"other")
    carried = history.read_index().entries
    carried["new"] = entry_of(history, "new")
    with history.lock():
        history.write_index(Index(carried))
    set_index_time(history, lying.mtime_ns + 10**10)  # much later: nothing is racy by time now
    index = history.read_index()
    assert not index.is_racy(index.entries["model.bin"])
    assert not index.entries["model.bin"].matches(lying)
    assert index.entries["model.bin"].blob == blob
    assert git(history.git_dir, "status", "-s", "model.bin") == "AM model.bin"


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


def test_the_index_is_written_under_the_lock_only(history):
    with pytest.raises(UsageError, match="lock"):
        history.write_index(Index({}))
    errors = []

    def other_thread():
        try:
            history.write_index(Index({}))
        except UsageError as error:
            errors.append(error)

    with history.lock():
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_an_index_that_git_has_locked_is_left_alone(history):
    write(history, entry_of(history, "a"))
    (history.git_dir / "index.lock").write_bytes(b"")
    with pytest.raises(ConflictError, match="locked") as caught:
        write(history)
    assert "git process" in caught.value.hint
    assert list(history.read_index().entries) == ["a"]


@pytest.mark.parametrize("path", ["../x", ".mvc/HEAD", "", "/a", "a//b", "a/", ".git", "x" * 4095])
def test_paths_that_no_index_may_hold(history, path):
    entry = entry_of(history, path)
    with pytest.raises(UsageError):
        encode_index(Index({path: entry}))
    whole = sealed(encode_index(Index({"abcdefg": replace(entry, path="abcdefg")})), path)
    if whole is not None:
        with pytest.raises(FormatError):
            parse_index(whole, 0)


def sealed(whole, path):
    """Put another path of at most seven letters into an index and make its checksum right."""
    raw = path.encode().ljust(7, b"\0")
    if len(raw) > 7:
        return None
    body = whole[:-20].replace(b"abcdefg", raw)
    flags = struct.pack(">H", len(path))
    body = body[:72] + flags + body[74:]
    return body + hashlib.sha1(body).digest()


def test_every_changed_byte_and_every_cut_is_noticed(history):
    write(history, entry_of(history, "a"), entry_of(history, "b", skip_worktree=True))
    path = history.git_dir / "index"
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        for data in (bytes(damaged), whole[:position]):
            path.write_bytes(data)
            with pytest.raises(CorruptionError, match="index is damaged") as caught:
                history.read_index()
            assert "mvc reset" in caught.value.hint
    assert "index-broken" in [problem.kind for problem in check(history)]


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 5, 99]))
def test_garbage_with_a_right_checksum_is_a_format_error_and_nothing_else(junk, count, version):
    body = b"DIRC" + struct.pack(">LL", version, count) + junk
    for data in (body, junk):
        try:
            parse_index(data + hashlib.sha1(data).digest(), 0)
        except (FormatError, UnsupportedError):
            continue


def test_split_indexes_and_unmerged_paths_are_refused_not_misread(history):
    blob = history.write_blob(b"x")
    for stage in (1, 2, 3):
        line = f"100644 {blob} {stage}\tconflict\n"
        git(history.git_dir, "update-index", "--index-info", data=line.encode())
    with pytest.raises(UnsupportedError, match="unmerged"):
        history.read_index()
    git(history.git_dir, "read-tree", "--empty")
    git(history.git_dir, "update-index", "--index-info", data=f"100644 {blob}\ta\n".encode())
    git(history.git_dir, "update-index", "--split-index")
    with pytest.raises(UnsupportedError, match="link"):
        history.read_index()
