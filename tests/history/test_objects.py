import os
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import fs
from mvc.errors import CorruptionError, FormatError, StorageError, UsageError
from mvc.history import objects as objects_module
from mvc.history.check import check
from mvc.history.git import GitHistory
from support.machine import peak_below
from support.stockgit import at, commit_on_head, git, loose_path, packs_of, spoil


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return GitHistory.init(tmp_path_factory.mktemp("objects") / ".mvc")


@given(data=st.binary(max_size=5000), count=st.integers(0, 6000))
def test_a_blob_comes_back_whole_and_by_its_beginning(shared, data, count):
    blob = shared.write_blob(data)
    assert shared.read_blob(blob) == data
    assert shared.find_blob_size(blob) == len(data)
    assert shared.blob_start(blob, count)[1] == data[:count]


def test_a_prefix_of_incompressible_bytes_needs_only_the_beginning_of_the_file(history):
    data = os.urandom(3_000_000)
    blob = history.write_blob(data)
    path = loose_path(history, blob)
    spoil(path, path.read_bytes()[:70_000])
    assert history.blob_start(blob, 50_000)[1] == data[:50_000]
    with pytest.raises(CorruptionError):
        history.blob_start(blob, 100_000)
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
        history.blob_start(missing, 4)


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
            spoil(path, bytes(damaged))
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
        spoil(path, damaged)
        with pytest.raises(CorruptionError, match=blob):
            history.read_blob(blob)


@given(junk=st.binary(max_size=200), deflate=st.booleans())
def test_garbage_in_place_of_an_object_is_corruption_and_nothing_else(shared, junk, deflate):
    blob = shared.write_blob(b"in the way of garbage")
    spoil(loose_path(shared, blob), zlib.compress(junk) if deflate else junk)
    for read in (shared.read_blob, shared.find_blob_size, lambda b: shared.blob_start(b, 10)):
        try:
            read(blob)
        except FormatError:
            continue
        assert read is not shared.read_blob


def test_an_object_that_lies_about_its_length_takes_no_memory(history):
    bomb = zlib.compress(b"blob 9\0" + bytes(50_000_000), 9)
    blob = history.write_blob(b"")
    spoil(loose_path(history, blob), bomb)
    with peak_below(2**22):
        with pytest.raises(CorruptionError, match="length"):
            history.read_blob(blob)
        spoil(loose_path(history, blob), zlib.compress(b"blob 99999999999\0"))
        with pytest.raises(CorruptionError, match="announces"):
            history.read_blob(blob)


def test_writing_the_same_bytes_again_heals_a_damaged_object(history):
    blob = history.write_blob(b"precious")
    spoil(loose_path(history, blob), b"damaged")
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
        history.blob_start(commit, 3)
    assert history.find_blob_size(commit) is None
    with pytest.raises(FormatError, match="is a blob, not a commit"):
        history.read_commit(history.write_blob(b"x"))


def test_too_large_an_object_is_refused(history, monkeypatch):
    monkeypatch.setattr(objects_module, "MAX_OBJECT_BYTES", 10)
    with pytest.raises(UsageError, match="11 bytes"):
        history.write_blob(bytes(11))


def write_many(history, count=100, text=b"many"):
    return {
        history.write_blob(b"%s %d" % (text, one)): b"%s %d" % (text, one) for one in range(count)
    }


def test_many_objects_of_a_command_become_one_pack(history, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with history.gathering():
        blobs = write_many(history, 2000)
        assert list(history.objects.loose.iterate()) == packs_of(history) == []
        assert write_many(history, 2000) == blobs
        history.sync_objects()
        assert len(synced) == 4
        assert len(packs_of(history)) == 1
    assert list(history.objects.loose.iterate()) == []
    for opened in (history, GitHistory.open(history.git_dir)):
        assert all(opened.read_blob(blob) == content for blob, content in blobs.items())
    git(history.git_dir, "fsck", "--strict", "--full")
    assert list(check(history)) == []
    assert write_many(GitHistory.open(history.git_dir), 2000) == blobs
    assert list(history.objects.loose.iterate()) == []


def test_few_objects_stay_files_of_their_own_and_large_ones_are_not_held(history):
    with history.gathering():
        large = history.write_blob(os.urandom(300_000))
        assert loose_path(history, large).exists()
        blobs = write_many(history, 5)
        assert not any(loose_path(history, blob).exists() for blob in blobs)
    assert all(loose_path(history, blob).exists() for blob in blobs)
    assert packs_of(history) == []


def test_no_more_than_a_few_megabytes_are_held(history):
    data = bytes(250_000)
    with peak_below(2 * objects_module._MAX_GATHERED_BYTES):
        with history.gathering():
            for number in range(500):
                history.write_blob(b"%d" % number + data)
    assert len(packs_of(history)) == 4


def test_what_is_gathered_is_there_for_the_command_itself(history):
    with history.gathering():
        for blob, content in write_many(history).items():
            assert history.read_blob(blob) == content
            assert history.find_blob_size(blob) == len(content)
            assert history.blob_start(blob, 3)[1] == content[:3]
            assert history.has_object(blob)
        commit = history.write_commit(
            tree=history.write_tree({}), parents=[], message="m", author=at()
        )
        history.update_head(commit, expected=None, message="m", stamp=at())
        assert len(packs_of(history)) == 1  # a ref names it
    assert GitHistory.open(history.git_dir).read_commit(commit).subject == "m"


def test_a_command_that_fails_leaves_nothing_it_gathered(history):
    with pytest.raises(RuntimeError), history.gathering(), history.gathering():
        blobs = write_many(history)
        raise RuntimeError
    assert not any(history.has_object(blob) for blob in blobs)
    assert packs_of(history) == []
    assert write_many(history) == blobs  # none is taken to be there
    assert all(loose_path(history, blob).exists() for blob in blobs)


def test_after_ctrl_c_what_was_gathered_stays(history):
    with pytest.raises(KeyboardInterrupt), history.gathering():
        blobs = write_many(history)
        raise KeyboardInterrupt
    assert len(packs_of(history)) == 1
    opened = GitHistory.open(history.git_dir)
    assert all(opened.read_blob(blob) == content for blob, content in blobs.items())
    assert write_many(opened) == blobs
    assert list(history.objects.loose.iterate()) == []


def test_old_packs_are_young_again_once_their_objects_are_used(history):
    with history.gathering():
        blobs = write_many(history)
    (pack,) = packs_of(history)
    os.utime(pack, (1, 1))
    assert history.write_blob(b"many 7") in blobs
    assert time.time() - pack.stat().st_mtime < 3600


def test_a_damaged_pack_is_healed_by_writing_the_same_again(history):
    with history.gathering():
        blobs = write_many(history)
    (pack,) = packs_of(history)
    spoil(pack, pack.read_bytes()[:500])
    opened = GitHistory.open(history.git_dir)
    with pytest.raises(CorruptionError):
        [opened.read_blob(blob) for blob in blobs]
    with opened.gathering():
        write_many(opened)
    assert all(opened.read_blob(blob) == content for blob, content in blobs.items())


def test_folders_that_git_removes_while_an_object_is_written(history, monkeypatch):
    real, left = fs.make_dirs, [0, 1]

    def make_dirs(folder, **options):
        real(folder, **options)
        if left:
            left.pop()
            folder.rmdir()

    monkeypatch.setattr(fs, "make_dirs", make_dirs)
    assert history.read_blob(history.write_blob(b"persistent")) == b"persistent"
    assert left == []
    left += [0] * 100
    with pytest.raises(StorageError, match="again and again"):
        history.write_blob(b"in vain")
