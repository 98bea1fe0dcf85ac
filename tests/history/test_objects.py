from __future__ import annotations

import contextlib
import os
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import CorruptionError, FormatError, UsageError
from mvc.history import objects as objects_module
from mvc.history.check import check
from mvc.history.git import GitHistory
from support.stockgit import commit_on_head, git, run_git


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return GitHistory.init(tmp_path_factory.mktemp("objects") / ".mvc")


def loose_path(history, object_id):
    return history.git_dir / "objects" / object_id[:2] / object_id[2:]


def replace(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


@given(data=st.binary(max_size=5000), count=st.integers(0, 6000))
def test_a_blob_comes_back_whole_and_by_its_beginning(shared, data, count):
    blob = shared.write_blob(data)
    assert shared.read_blob(blob) == data
    assert shared.find_blob_size(blob) == len(data)
    assert shared.blob_prefix(blob, count) == data[:count]


def test_ids_and_content_are_those_of_git(history):
    data = b"some bytes\x00\xff" * 1000
    blob = history.write_blob(data)
    assert git(history.git_dir, "hash-object", "--stdin", data=data) == blob
    assert run_git(history.git_dir, "cat-file", "blob", blob).stdout == data
    theirs = git(history.git_dir, "hash-object", "-w", "--stdin", data=b"by stock git")
    assert history.read_blob(theirs) == b"by stock git"


def test_a_prefix_of_incompressible_bytes_needs_only_the_beginning_of_the_file(history):
    data = os.urandom(3_000_000)
    blob = history.write_blob(data)
    path = loose_path(history, blob)
    replace(path, path.read_bytes()[:70_000])
    assert history.blob_prefix(blob, 50_000) == data[:50_000]
    with pytest.raises(CorruptionError):
        history.blob_prefix(blob, 100_000)
    with pytest.raises(CorruptionError, match=blob):
        history.read_blob(blob)


def test_nothing_is_known_of_an_object_that_is_not_there(history):
    missing = "ab" * 20
    assert history.find_blob_size(missing) is None
    assert not history.has_object(missing)
    with pytest.raises(CorruptionError, match=f"{missing} is missing") as caught:
        history.read_blob(missing)
    assert "mvc fsck" in caught.value.hint
    with pytest.raises(CorruptionError):
        history.blob_prefix(missing, 4)


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "AB" * 20, "ab" * 19, "zz" * 20])
def test_what_is_no_id_never_becomes_a_path(history, bad):
    with pytest.raises(UsageError):
        history.read_blob(bad)


def test_every_changed_byte_of_a_loose_object_is_noticed(history):
    data = b"0123456789 some content that is deflated " * 4
    blob = history.write_blob(data)
    path = loose_path(history, blob)
    whole = path.read_bytes()
    harmless = 0  # deflate leaves a few bits of its last byte unused
    for position in range(len(whole)):
        for flip in (0x01, 0x80):
            damaged = bytearray(whole)
            damaged[position] ^= flip
            replace(path, bytes(damaged))
            try:
                assert history.read_blob(blob) == data
                harmless += 1
            except CorruptionError as error:
                assert blob in error.message
    assert harmless <= 1


def test_every_cut_and_every_addition_is_noticed(history):
    blob = history.write_blob(b"0123456789" * 10)
    path = loose_path(history, blob)
    whole = path.read_bytes()
    for damaged in [whole[:end] for end in range(len(whole))] + [whole + b"\0", whole + whole]:
        replace(path, damaged)
        with pytest.raises(CorruptionError, match=blob):
            history.read_blob(blob)


@given(junk=st.binary(max_size=200), deflate=st.booleans())
def test_garbage_in_place_of_an_object_is_corruption_and_nothing_else(shared, junk, deflate):
    blob = shared.write_blob(b"in the way of garbage")
    replace(loose_path(shared, blob), zlib.compress(junk) if deflate else junk)
    for read in (shared.read_blob, shared.find_blob_size, lambda b: shared.blob_prefix(b, 10)):
        try:
            read(blob)
        except FormatError:
            continue
        assert read is not shared.read_blob


def test_an_object_that_lies_about_its_length_takes_no_memory(history):
    bomb = zlib.compress(b"blob 9\0" + bytes(50_000_000), 9)
    blob = history.write_blob(b"")
    replace(loose_path(history, blob), bomb)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="length"):
            history.read_blob(blob)
        replace(loose_path(history, blob), zlib.compress(b"blob 99999999999\0"))
        with pytest.raises(CorruptionError, match="announces"):
            history.read_blob(blob)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**22


def test_writing_the_same_bytes_again_heals_a_damaged_object(history):
    blob = history.write_blob(b"precious")
    replace(loose_path(history, blob), b"damaged")
    assert GitHistory.open(history.git_dir).write_blob(b"precious") == blob
    assert history.read_blob(blob) == b"precious"


def test_an_object_is_written_once(history):
    blob = history.write_blob(b"once")
    before = loose_path(history, blob).stat()
    assert history.write_blob(b"once") == blob
    assert loose_path(history, blob).stat().st_ino == before.st_ino


def test_a_half_written_object_is_in_nobodys_way(history):
    name = git(history.git_dir, "hash-object", "--stdin", data=b"torn")
    folder = history.git_dir / "objects" / name[:2]
    folder.mkdir()
    (folder / "tmp_obj_0123456789ab").write_bytes(b"half")
    blob = history.write_blob(b"torn")
    assert history.read_blob(blob) == b"torn"
    assert list(check(history)) == []
    git(history.git_dir, "fsck", "--strict")


def test_asking_for_the_wrong_kind_is_an_error(history):
    commit = commit_on_head(history, "one")
    with pytest.raises(FormatError, match="is a commit, not a blob"):
        history.read_blob(commit)
    with pytest.raises(FormatError, match="is a commit, not a blob"):
        history.blob_prefix(commit, 3)
    assert history.find_blob_size(commit) is None
    with pytest.raises(FormatError, match="is a blob, not a commit"):
        history.read_commit(history.write_blob(b"x"))


def test_too_large_an_object_is_refused(history, monkeypatch):
    monkeypatch.setattr(objects_module, "MAX_OBJECT_BYTES", 10)
    with pytest.raises(UsageError, match="11 bytes"):
        history.write_blob(bytes(11))


def test_a_repository_packed_by_git_stays_readable(history):
    blobs = {history.write_blob(b"blob %d" % number * 50): number for number in range(30)}
    files = {f"f{number}": f"blob {number}" * 50 for number in range(30)}
    commit_on_head(history, "packed", files=files)
    for number in range(5):
        commit_on_head(history, f"more {number}", files={**files, "n": str(number)})
    git(history.git_dir, "tag", "-a", "-m", "tagged", "v1")
    head = history.head().commit
    git(history.git_dir, "gc", "--quiet", "--prune=now")
    assert not list((history.git_dir / "objects").glob("[0-9a-f][0-9a-f]"))
    with GitHistory.open(history.git_dir) as packed:
        for blob, number in blobs.items():
            assert packed.read_blob(blob) == b"blob %d" % number * 50
            assert packed.blob_prefix(blob, 6) == (b"blob %d" % number * 50)[:6]
            assert packed.find_blob_size(blob) == len(b"blob %d" % number * 50)
        assert packed.head().commit == head
        assert packed.resolve(head[:7]) == packed.resolve("v1") == head
        assert len(list(packed.walk([head]))) == 6
        assert list(check(packed)) == []
        assert packed.write_blob(b"blob 3" * 50) in blobs
        after = commit_on_head(packed, "after")
        assert packed.resolve("HEAD~1") == head
        assert git(packed.git_dir, "rev-parse", "HEAD") == after
    git(history.git_dir, "fsck", "--strict")


def test_a_process_that_was_open_sees_what_git_packs_meanwhile(history):
    blob = history.write_blob(b"moves into a pack")
    commit_on_head(history, "x", files={"a": "moves into a pack"})
    git(history.git_dir, "gc", "--quiet", "--prune=now")
    assert history.read_blob(blob) == b"moves into a pack"
    commit_on_head(history, "y", files={"a": "moves into a pack", "b": "second"})
    git(history.git_dir, "gc", "--quiet", "--prune=now")
    assert history.read_blob(blob) == b"moves into a pack"
    assert len(list(history.walk([history.head().commit]))) == 2


def make_packed(history):
    """Commit versions of a long file that Git packs as deltas; return blob → content."""
    chooser = random.Random(4)
    lines = [f"{number} {chooser.random()}" for number in range(20_000)]
    contents = {}
    for number in range(6):
        lines[number * 50] = lines[-number - 1] = f"changed {number}"
        lines.insert(0, f"new {number}")
        text = "\n".join(lines)
        commit_on_head(history, f"c{number}", files={"long": text, "short": text[: number * 9]})
        contents[history.write_blob(text.encode())] = text.encode()
    git(history.git_dir, "gc", "--quiet", "--prune=now")
    return contents


def test_the_start_of_a_packed_object_is_read_without_the_rest(history, monkeypatch):
    contents = make_packed(history)
    listing = git(
        history.git_dir, "verify-pack", "-v", *(history.git_dir / "objects").rglob("*.idx")
    )
    assert "chain length = 3" in listing
    real, read = os.pread, []

    def pread(descriptor, count, offset):
        read.append(count)
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr("dulwich.object_store.DiskObjectStore.get_raw", None)
    for blob, content in contents.items():
        read.clear()
        assert history.has_object(blob)
        assert history.find_blob_size(blob) == len(content)
        for count in (0, 1, 40, 200):
            assert history.blob_prefix(blob, count) == content[:count]
        assert sum(read) < 300_000 < 5 * max(map(len, contents.values()))


def test_any_start_of_any_packed_object_is_that_of_the_whole(history):
    make_packed(history)
    with GitHistory.open(history.git_dir) as packed:
        for name in packed.objects.packs.names():
            for object_id in packed.objects.packs.read_ids(name):
                kind, data = packed.objects.read(object_id)
                for count in (0, 7, 1000, 70_000, abs(len(data) - 1), len(data), len(data) + 9):
                    start = packed.objects.packs.find_start(object_id, count)
                    assert start == (kind, len(data), data[:count])


def test_a_damaged_start_of_a_packed_object_is_a_format_error_and_nothing_else(history):
    make_packed(history)
    (pack,) = (history.git_dir / "objects" / "pack").glob("*.pack")
    (index,) = (history.git_dir / "objects" / "pack").glob("*.idx")
    whole = pack.read_bytes()
    ids = git(history.git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    offsets = [
        int(line.split()[0])
        for line in git(history.git_dir, "show-index", data=index.read_bytes()).splitlines()
    ]
    for offset in offsets:
        for shift in (0, 1, 2, 3, 5, 9, 20):
            damaged = bytearray(whole)
            damaged[min(offset + shift, len(whole) - 1)] ^= 0x5D
            replace(pack, bytes(damaged))
            with GitHistory(history.git_dir) as opened:
                for object_id in ids.split():
                    with contextlib.suppress(FormatError):
                        opened.objects.find_header(object_id)
                        opened.objects.read_prefix(object_id, 100)


def test_every_changed_byte_of_a_pack_is_noticed_or_harmless(history):
    for number in range(3):
        commit_on_head(history, f"c{number}", files={"f": f"line {number}\n" * 20})
    git(history.git_dir, "gc", "--quiet", "--prune=now")
    (pack,) = (history.git_dir / "objects" / "pack").glob("*.pack")
    ids = git(history.git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    whole = pack.read_bytes()
    expected = {one: history.objects.read(one) for one in ids.split()}
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        replace(pack, bytes(damaged))
        with GitHistory(history.git_dir) as opened:
            assert [problem.kind for problem in check(opened)], position
            for object_id, content in expected.items():
                try:
                    assert opened.objects.read(object_id) == content
                except FormatError:
                    continue


def test_a_damaged_pack_index_is_corruption(history):
    head = commit_on_head(history, "one")
    git(history.git_dir, "gc", "--quiet", "--prune=now")
    (index,) = (history.git_dir / "objects" / "pack").glob("*.idx")
    whole = index.read_bytes()
    for damaged in (b"", whole[:100], whole[:1040], b"\xff" * len(whole), whole[:-30]):
        replace(index, damaged)
        with GitHistory(history.git_dir) as opened:
            with pytest.raises(FormatError):
                opened.read_commit(head)
            assert any(problem.kind == "object-damaged" for problem in check(opened))
