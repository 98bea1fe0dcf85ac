import errno
import gc
import os
import stat

import pytest

from mvc import fs
from mvc.errors import StorageError
from mvc.storage import local
from mvc.storage.local import LocalStorage
from support.storage_contract import SharedStorageContract, put


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path)


class TestLocalStorage(SharedStorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return LocalStorage(tmp_path)


def test_objects_are_read_only_files_at_their_key(storage, tmp_path):
    put(storage, "packs/a.pack", b"x")
    mode = os.stat(tmp_path / "packs" / "a.pack").st_mode
    assert stat.S_IMODE(mode) == 0o444
    assert (tmp_path / "packs" / "a.pack").read_bytes() == b"x"


def test_the_temporary_file_lies_in_the_folder_of_the_key(storage, tmp_path):
    with storage.create("packs/") as pending:
        pending.write([b"x"])
        (name,) = os.listdir(tmp_path / "packs")
        assert name.endswith(fs.TEMP_SUFFIX)
        pending.publish("packs/a")
    assert os.listdir(tmp_path / "packs") == ["a"]


def test_strangers_in_the_folder_are_not_objects(storage, tmp_path):
    put(storage, "packs/a", b"x")
    (tmp_path / "packs" / f"0123{fs.TEMP_SUFFIX}").write_bytes(b"left by a crash")
    (tmp_path / "packs" / "has space").write_bytes(b"x")
    (tmp_path / "packs" / ".hidden").write_bytes(b"x")
    (tmp_path / "packs" / "folder").mkdir()
    (tmp_path / "packs" / "link").symlink_to("/etc/passwd")
    assert [info.key for info in storage.list("packs/")] == ["packs/a"]
    assert storage.find_size("packs/link") is None
    assert storage.find_size("packs/folder") is None
    with pytest.raises(FileNotFoundError):
        storage.read("packs/folder")
    with pytest.raises(FileNotFoundError):
        storage.read_into("packs/folder", 0, memoryview(bytearray(1)))


def test_descriptors_for_reading_are_bounded_and_closed(tmp_path):
    gc.collect()  # what other tests have left
    storage = LocalStorage(tmp_path)
    before = open_descriptors()
    for i in range(3 * local.MAX_OPEN_FILES):
        put(storage, f"packs/{i}", bytes([i]))
        buffer = bytearray(1)
        storage.read_into(f"packs/{i}", 0, memoryview(buffer))
        assert buffer[0] == i
        assert open_descriptors() <= before + local.MAX_OPEN_FILES
    assert open_descriptors() == before + local.MAX_OPEN_FILES
    del storage
    assert open_descriptors() == before


def test_a_descriptor_in_use_survives_its_eviction(storage, monkeypatch):
    monkeypatch.setattr(local, "MAX_OPEN_FILES", 1)
    put(storage, "packs/a", b"a")
    put(storage, "packs/b", b"b")
    real, nested = fs.read_at, []

    def read_at(descriptor, buffer, offset):
        if not nested:
            nested.append(True)
            storage.read_into("packs/b", 0, memoryview(bytearray(1)))
        return real(descriptor, buffer, offset)

    monkeypatch.setattr(fs, "read_at", read_at)
    buffer = bytearray(1)
    storage.read_into("packs/a", 0, memoryview(buffer))
    assert buffer == b"a"


def test_unpublished_objects_leave_no_file_and_no_descriptor(storage, tmp_path):
    gc.collect()  # what other tests have left
    before = open_descriptors()
    for _ in range(3):
        with storage.create("packs/") as pending:
            pending.write([b"x"])
    assert os.listdir(tmp_path / "packs") == []
    assert open_descriptors() == before


def put_rest(pending):
    pending.write([b"x"])
    pending.publish("packs/a")


@pytest.mark.parametrize("call", ["writev", "fsync", "replace", "fchmod"])
def test_a_failing_disk_publishes_nothing(storage, tmp_path, monkeypatch, call):
    real = getattr(os, call)

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with storage.create("packs/") as pending:
        monkeypatch.setattr(os, call, fail)
        with pytest.raises(StorageError, match="no space left") as caught:
            put_rest(pending)
        assert "free some space" in caught.value.hint
        monkeypatch.setattr(os, call, real)
        with pytest.raises(StorageError, match="failed before"):
            pending.publish("packs/a")
    assert os.listdir(tmp_path / "packs") == []
    put(storage, "packs/a", b"x")
    assert storage.read("packs/a") == b"x"


def test_a_failed_writer_cannot_hide_behind_an_existing_object(storage, monkeypatch):
    put(storage, "packs/a", b"xy")
    with storage.create("packs/") as pending:
        pending.write([b"xy"])

        def fail(*args):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", fail)
            with pytest.raises(StorageError):
                pending.write([b"z"])
        with pytest.raises(StorageError):
            pending.publish("packs/a")


def test_a_folder_that_became_a_file(storage, tmp_path):
    (tmp_path / "packs").write_bytes(b"")
    assert list(storage.list("packs/")) == []
    assert storage.find_size("packs/a") is None
    with pytest.raises(FileNotFoundError):
        storage.read("packs/a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_permission_denied_is_a_storage_error(storage, tmp_path):
    put(storage, "packs/a", b"x")
    os.chmod(tmp_path / "packs" / "a", 0)
    with pytest.raises(StorageError, match="permission denied"):
        storage.read("packs/a")
