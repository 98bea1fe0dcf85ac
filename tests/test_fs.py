"""Durable writes: whole or not at all, and a writer that failed refuses to go on."""

import ast
import os
import socket
import sys
from pathlib import Path

import pytest

from mvc import fs
from mvc.errors import ConflictError, CorruptionError, StorageError


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_durable_replaces_a_file_as_a_whole(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    stat = fs.write_durable(target, [b"new ", b"", memoryview(b"bytes")])
    assert target.read_bytes() == b"new bytes"
    assert stat.size_bytes == 9
    assert stat.inode == os.stat(target).st_ino
    assert _names(tmp_path) == ["file"]


def test_leaving_without_publish_leaves_nothing(tmp_path):
    with fs.DurableFile(tmp_path) as file:
        file.write([b"half"])
    assert _names(tmp_path) == []


def test_a_length_that_is_not_the_expected_one_is_never_published(tmp_path):
    with (
        pytest.raises(StorageError, match="9 bytes after writing 4"),
        fs.DurableFile(tmp_path) as file,
    ):
        file.write([b"123456789"])
        file.publish(tmp_path / "target", expected_bytes=4)
    assert _names(tmp_path) == []


def test_a_writer_that_failed_refuses_everything_but_abort(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with fs.DurableFile(tmp_path) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", full)
            with pytest.raises(StorageError, match="no space left") as caught:
                file.write([b"x"])
        assert caught.value.hint
        with pytest.raises(StorageError, match="failed before"):
            file.write([b"x"])
        with pytest.raises(StorageError, match="failed before"):
            file.publish(tmp_path / "target")
    assert _names(tmp_path) == []


def test_write_all_survives_partial_writes_and_many_buffers(tmp_path, monkeypatch):
    original = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: original(fd, [bytes(views[0])[:3]]))
    buffers = [bytes([value]) * (value % 7) for value in range(200)]
    fs.write_durable(tmp_path / "file", buffers)
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)


def test_the_disk_begins_while_a_file_is_still_written_in_pieces(tmp_path, monkeypatch):
    begun = []

    def start(descriptor, start=fs.start_writeback):
        start(descriptor)
        begun.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(fs, "start_writeback", start)
    piece = memoryview(bytes(fs.WRITEBACK_BYTES // 2))
    with fs.DurableFile(tmp_path) as file:
        for number in range(5):
            file.write_at(piece, number * len(piece))
        path = file.keep()
        assert begun == [2 * len(piece), 4 * len(piece)]
    assert path.stat().st_size == 5 * len(piece)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_kernel_takes_the_request_to_begin_writing(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.write(b"some bytes")
        file.flush()
        assert fs._find_writeback()(file.fileno(), 0, 0, 2) == 0


def test_read_at_stops_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    descriptor = os.open(path, os.O_RDONLY)
    buffer = bytearray(8)
    assert fs.read_at(descriptor, memoryview(buffer), 6) == 4
    assert bytes(buffer[:4]) == b"6789"
    os.close(descriptor)


def test_a_held_lock_is_a_conflict(tmp_path):
    with fs.exclusive_lock(tmp_path / "lock"):
        with (
            pytest.raises(ConflictError, match="locked"),
            fs.exclusive_lock(tmp_path / "lock", wait=False),
        ):
            pass
    with fs.exclusive_lock(tmp_path / "lock", wait=False):
        pass


def test_symlinks_are_written_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    link = tmp_path / "link"
    link.symlink_to(outside)
    fs.write_symlink(link, b"elsewhere")
    assert os.readlink(link) == "elsewhere"
    assert outside.read_text() == "untouched"


def test_empty_parents_are_removed_up_to_the_stop(tmp_path):
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/keep").write_text("x")
    fs.remove_empty_dirs(tmp_path / "a/b/c", tmp_path)
    assert _names(tmp_path / "a") == ["keep"]


def test_only_fs_renames_and_writes_files():
    """A rename that nobody syncs is lost with the power; ruff sees os.replace, not the methods of Path."""
    root, found = Path(__file__).parent.parent, []
    for path in [*(root / "mvc").rglob("*.py"), *(root / "hooks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "fs.py" else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner, name = ast.unparse(node.func.value), node.func.attr
                # The methods of Path take one argument, those of str and of ours take more.
                renames = (
                    path.is_relative_to(root / "mvc")
                    and name in ("rename", "replace")
                    and len(node.args) == 1
                    and not node.keywords
                )
                is_path = "path" in owner.lower() or "folder" in owner.lower() or owner == "target"
                writes = is_path and name in ("rename", "write_bytes", "write_text")
                found += [f"{path}:{node.lineno}"] * (renames or writes)
    assert found == []


class TestOpenFile:
    def test_a_file_and_a_link_to_it(self, tmp_path):
        (tmp_path / "file").write_bytes(b"bytes")
        (tmp_path / "link").symlink_to("file")
        for name in ("file", "link"):
            with fs.open_file(tmp_path / name) as file:
                assert file.read() == b"bytes"

    def test_a_folder_and_nothing(self, tmp_path):
        with pytest.raises(IsADirectoryError):
            fs.open_file(tmp_path)
        with pytest.raises(FileNotFoundError):
            fs.open_file(tmp_path / "x")

    def test_what_holds_no_bytes_is_refused_at_once(self, tmp_path):
        """Opening a pipe that nobody writes to would wait forever, and a device never ends."""
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("/dev/zero")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "socket"))
            for name, kind in [
                ("pipe", "a named pipe"),
                ("link", "a device"),
                ("socket", "a socket"),
            ]:
                with pytest.raises(CorruptionError, match=f"{name} is {kind}, not a file"):
                    fs.open_file(tmp_path / name)
