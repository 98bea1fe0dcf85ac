import contextlib
import hashlib
import struct
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import ConflictError, CorruptionError, FormatError, UnsupportedError, UsageError
from mvc.history.check import check
from mvc.history.index import encode_index, parse_index
from mvc.history.values import Index, IndexEntry, TreeEntry, stored_size
from support.entries import (
    FILE,
    LINK,
    RUNNABLE,
    entry_of,
    make_racy,
    rewrite_in_place,
    set_index_time,
    write,
)
from support.stockgit import git, run_git


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


def test_a_split_index_is_refused_with_the_command_that_joins_it(history):
    write(history, entry_of(history, "a"), entry_of(history, "b"))
    git(history.git_dir, "update-index", "--split-index")
    with pytest.raises(UnsupportedError, match="the index is split") as caught:
        history.read_index()
    assert caught.value.hint == 'run "git --git-dir=.mvc update-index --no-split-index"'
    git(history.git_dir, "update-index", "--no-split-index")
    assert sorted(history.read_index().entries) == ["a", "b"]


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
    assert parse_index(encode_index(index), 2**63).entries == index.entries


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


@pytest.mark.parametrize("cut", [1, 5], ids=["its padding", "its path"])
def test_a_last_entry_that_is_cut_off_is_refused(history, cut):
    body = encode_index(Index({"abcdefg": entry_of(history, "abcdefg")}))[: -20 - cut]
    with pytest.raises(FormatError, match="last entry is cut off"):
        parse_index(body + hashlib.sha1(body).digest(), 0)


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
        with contextlib.suppress(FormatError, UnsupportedError):
            parse_index(data + hashlib.sha1(data).digest(), 0)


def test_undecided_paths_are_those_of_git(history):
    blobs = [history.write_blob(text) for text in (b"base", b"ours", b"theirs")]
    for stage, blob in enumerate(blobs, 1):
        line = f"100644 {blob} {stage}\tconflict\n"
        git(history.git_dir, "update-index", "--index-info", data=line.encode())
    git(history.git_dir, "update-index", "--index-info", data=f"100644 {blobs[1]} 2\ty\n".encode())
    index = history.read_index()
    assert index.entries == {}
    entries = [TreeEntry(0o100644, blob) for blob in blobs]
    assert index.unmerged == {"conflict": tuple(entries), "y": (None, entries[1], None)}
    assert {blob for _, blob in index.blobs()} == set(blobs)
    listed = git(history.git_dir, "ls-files", "--stage")
    with history.lock():
        history.write_index(replace(index, asleep=frozenset({"y"})))
    assert git(history.git_dir, "ls-files", "--stage") == listed
    again = history.read_index()
    assert (again.unmerged, again.asleep) == (index.unmerged, {"y"})


def test_a_path_is_decided_or_not(history):
    blob = history.write_blob(b"x")
    index = Index(
        {"a": IndexEntry("a", blob, 0o100644)},
        unmerged={"a": (None, TreeEntry(0o100644, blob), None)},
    )
    with pytest.raises(FormatError, match="twice"):
        parse_index(encode_index(index), 0)
