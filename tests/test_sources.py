import os

import pytest

from mvc.errors import ConflictError, FormatError, StorageError, UnsupportedError
from mvc.sources import FileSource, MemorySource, SlicedSource, read_beside, read_bytes


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    return path


def test_both_sources_fill_buffers_at_any_offset(path):
    with FileSource.open(path) as file:
        for source in (file, MemorySource(path.read_bytes()), MemorySource(bytearray(range(200)))):
            assert source.size_bytes == 200
            buffer = bytearray(5)
            source.read_into(195, memoryview(buffer))
            assert bytes(buffer) == bytes(range(195, 200))
            assert read_bytes(source, 0, 0) == b""
            assert read_bytes(source, 3, 2) == b"\x03\x04"


def test_the_stat_is_that_of_the_opened_file(path):
    with FileSource.open(path) as source:
        path.unlink()
        path.write_bytes(b"another")
        assert source.stat.size_bytes == 200
        assert source.stat.inode != os.stat(path).st_ino
        assert read_bytes(source, 199, 1) == b"\xc7"


def test_a_file_that_became_shorter_is_a_conflict(path):
    with FileSource.open(path) as source:
        os.truncate(path, 100)
        with pytest.raises(ConflictError, match="became shorter"):
            read_bytes(source, 90, 20)


def test_reading_past_the_end_never_happens(path):
    with FileSource.open(path) as source:
        for offset, size in ((199, 2), (-1, 1), (0, 2**62), (2**62, 1), (5, -1)):
            with pytest.raises(FormatError):
                read_bytes(source, offset, size)
    with pytest.raises(ConflictError):
        MemorySource(b"abc").read_into(2, memoryview(bytearray(2)))


def test_only_regular_files_are_opened(tmp_path, path):
    link = tmp_path / "link"
    link.symlink_to(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for other in (link, pipe, tmp_path):
        with pytest.raises(UnsupportedError), FileSource.open(other):
            pass
    with pytest.raises(FileNotFoundError), FileSource.open(tmp_path / "nothing"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_a_storage_error(path):
    path.chmod(0)
    with pytest.raises(StorageError), FileSource.open(path):
        pass


def test_the_descriptor_is_closed_even_when_the_block_fails(path):
    with pytest.raises(RuntimeError), FileSource.open(path) as source:
        raise RuntimeError
    with pytest.raises(OSError):
        os.fstat(source.descriptor)


def test_a_slice_of_a_source(path):
    data = path.read_bytes()
    with FileSource.open(path) as source:
        part = SlicedSource(source, 50, 100)
        assert (part.size_bytes, read_bytes(part, 10, 20)) == (100, data[60:80])
        assert part.view(0, 1) is None
        with pytest.raises(FormatError):
            read_bytes(part, 90, 11)
    assert bytes(SlicedSource(MemorySource(b"abcdef"), 2, 3).view(1, 2)) == b"de"


def test_a_file_beside(path):
    path.with_name("small").write_bytes(b"hello")
    path.with_name("link").symlink_to("small")
    with FileSource.open(path) as source:
        assert read_beside(source, "small", 5) == b"hello"
        assert read_beside(source, "small", 4) is None
        assert read_beside(source, "link", 5) is None
        assert read_beside(source, "nothing", 5) is None
    assert read_beside(MemorySource(b""), "small", 5) is None
