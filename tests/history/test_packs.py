"""Objects that stock Git packed: read, seen as they come, and every damage noticed."""

import contextlib
import os
import random

import pytest

from mvc.errors import FormatError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.packs import PackedObjects
from support.stockgit import collect_garbage, commit_on_head, git, packs_of, spoil


def test_a_repository_packed_by_git_stays_readable(history):
    blobs = {history.write_blob(b"blob %d" % number * 50): number for number in range(30)}
    files = {f"f{number}": f"blob {number}" * 50 for number in range(30)}
    commit_on_head(history, "packed", files=files)
    for number in range(5):
        commit_on_head(history, f"more {number}", files={**files, "n": str(number)})
    git(history.git_dir, "tag", "-a", "-m", "tagged", "v1")
    head = history.head().commit
    collect_garbage(history)
    assert not list((history.git_dir / "objects").glob("[0-9a-f][0-9a-f]"))
    with GitHistory.open(history.git_dir) as packed:
        for blob, number in blobs.items():
            assert packed.read_blob(blob) == b"blob %d" % number * 50
            assert packed.blob_start(blob, 6)[1] == (b"blob %d" % number * 50)[:6]
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
    collect_garbage(history)
    assert history.read_blob(blob) == b"moves into a pack"
    commit_on_head(history, "y", files={"a": "moves into a pack", "b": "second"})
    collect_garbage(history)
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
    collect_garbage(history)
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
            assert history.blob_start(blob, count)[1] == content[:count]
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
    (pack,) = packs_of(history)
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
            spoil(pack, bytes(damaged))
            with GitHistory(history.git_dir) as opened:
                for object_id in ids.split():
                    with contextlib.suppress(FormatError):
                        opened.objects.find_header(object_id)
                        opened.objects.read_start(object_id, 100)


def test_every_changed_byte_of_a_pack_is_noticed_or_harmless(history):
    for number in range(3):
        commit_on_head(history, f"c{number}", files={"f": f"line {number}\n" * 20})
    collect_garbage(history)
    (pack,) = packs_of(history)
    ids = git(history.git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    whole = pack.read_bytes()
    expected = {one: history.objects.read(one) for one in ids.split()}
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        spoil(pack, bytes(damaged))
        with GitHistory(history.git_dir) as opened:
            assert [problem.kind for problem in check(opened)], position
            for object_id, content in expected.items():
                with contextlib.suppress(FormatError):
                    assert opened.objects.read(object_id) == content


def test_a_damaged_pack_index_is_corruption(history):
    head = commit_on_head(history, "one")
    collect_garbage(history)
    (index,) = (history.git_dir / "objects" / "pack").glob("*.idx")
    whole = index.read_bytes()
    for damaged in (b"", whole[:100], whole[:1040], b"\xff" * len(whole), whole[:-30]):
        spoil(index, damaged)
        with GitHistory(history.git_dir) as opened:
            with pytest.raises(FormatError):
                opened.read_commit(head)
            assert any(problem.kind == "object-damaged" for problem in check(opened))


def make_packs(history, count):
    """Write as many packs as asked, of forty blobs each; return blob → content."""
    contents = {}
    for number in range(count):
        with history.gathering():
            for one in range(40):
                data = b"pack %d blob %d" % (number, one)
                contents[history.write_blob(data)] = data
    return contents


def test_any_number_of_packs_needs_few_open_files(history):
    contents = make_packs(history, 30)
    assert len(packs_of(history)) == 30
    before = len(os.listdir("/proc/self/fd"))
    with GitHistory.open(history.git_dir) as opened:
        for blob, content in contents.items():
            assert opened.read_blob(blob) == content
            assert opened.find_blob_size(blob) == len(content)
        assert len(os.listdir("/proc/self/fd")) - before <= 16
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_other_packs_have_is_read_beside_a_damaged_one(history):
    contents = make_packs(history, 2)
    spoil(packs_of(history)[0].with_suffix(".idx"), b"damaged")
    with GitHistory.open(history.git_dir) as opened:
        unread = []
        for blob, content in contents.items():
            try:
                assert opened.read_blob(blob) == content
            except FormatError as error:
                assert "index of Git pack" in error.message
                unread.append(blob)
        assert len(unread) == 40


def test_a_pack_with_an_index_of_the_first_version(history):
    make_packed(history)
    (pack,) = packs_of(history)
    ids = git(history.git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    with GitHistory.open(history.git_dir) as opened:
        expected = {one: opened.objects.read(one) for one in ids.split()}
    index = pack.with_suffix(".idx")
    index.unlink()
    git(history.git_dir, "index-pack", "--index-version=1", "-o", str(index), str(pack))
    assert not index.read_bytes().startswith(b"\xff")
    with GitHistory.open(history.git_dir) as opened:
        for one, found in expected.items():
            assert opened.objects.read(one) == found
            assert one in opened.objects.find_prefix(one[:5])
        assert not opened.has_object("ab" * 20)


def test_what_another_repository_lends(history, tmp_path):
    contents = make_packs(history, 1)
    loose = history.write_blob(b"loose")
    history.sync_objects()
    with GitHistory.init(tmp_path / "other" / ".mvc") as other:
        lent = other.git_dir / "objects" / "info" / "alternates"
        lent.write_text(f"{history.git_dir / 'objects'}\n")
        assert other.read_blob(loose) == b"loose"
        for blob, content in contents.items():
            assert other.read_blob(blob) == content
            assert other.blob_start(blob, 4)[1] == content[:4]
            assert other.has_object(blob)
            assert blob in other.objects.find_prefix(blob[:6])


def test_packs_replaced_while_they_are_listed(history, monkeypatch):
    contents = make_packs(history, 2)
    texts = [data.decode() for data in contents.values()]
    commit_on_head(history, "c", files={f"f{one}": text for one, text in enumerate(texts)})
    real, left = PackedObjects.names, [0, 1]

    def names(self):
        found = real(self)
        if left:
            left.pop()
            commit_on_head(history, f"{len(left)}", files={"x": "y", "f": "pack 0 blob 7"})
            git(history.git_dir, "repack", "-a", "-d", "-q")
        return found

    monkeypatch.setattr(PackedObjects, "names", names)
    with GitHistory.open(history.git_dir) as opened:
        blob, content = next(iter(contents.items()))
        assert opened.has_object(blob)
        assert left == []
        left.append(0)
        assert opened.read_blob(blob) == content
