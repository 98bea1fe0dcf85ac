import io
import os
import zipfile
import zlib

import pytest

from mvc.checkpoints.torch_writer import ALIGNMENT, plan_zip
from mvc.checkpoints.zip_directory import find_archive_start, parse_zip_directory
from mvc.sources import FileSource, MemorySource


def write(entries) -> bytes:
    plan = plan_zip([(name, len(data)) for name, data in entries])
    archive = bytearray(plan.size_bytes)
    crc32s = [zlib.crc32(data) for _, data in entries]
    for number, (member, (_, data)) in enumerate(zip(plan.members, entries, strict=True)):
        header = plan.encode_local(number, crc32s[number])
        assert member.local_start + len(header) == member.data_start
        archive[member.local_start : member.data_start] = header
        archive[member.data_start : member.data_start + len(data)] = data
    archive[plan.directory_start :] = plan.encode_directory(crc32s)
    return bytes(archive)


ENTRIES = [("a/data.pkl", b"pickle"), ("a/empty", b""), ("a/ünicode", os.urandom(1000))]


def test_other_programs_read_it():
    with zipfile.ZipFile(io.BytesIO(write(ENTRIES))) as archive:
        assert archive.testzip() is None
        assert [(one, archive.read(one)) for one in archive.namelist()] == ENTRIES


def test_our_own_reader_does():
    data = write(ENTRIES)
    entries = parse_zip_directory(MemorySource(data))
    assert [(one.name, one.size_bytes, one.crc32) for one in entries] == [
        (name, len(content), zlib.crc32(content)) for name, content in ENTRIES
    ]
    assert all(one.is_stored and one.data_start % ALIGNMENT == 0 for one in entries)
    assert find_archive_start(MemorySource(b"before" + data)) == len(b"before")


@pytest.mark.parametrize("size_bytes", [2**32 - 2, 2**32 - 1, 2**32, 2**33])
def test_entries_past_4_gib(tmp_path, size_bytes):
    """Only what is around the data is written; the file is a hole else."""
    plan = plan_zip([("big", size_bytes), ("after", 5)])
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        for number, member in enumerate(plan.members):
            file.seek(member.local_start)
            file.write(plan.encode_local(number, 7))
        file.seek(plan.directory_start)
        file.write(plan.encode_directory([7, 7]))
    with FileSource.open(path) as source:
        entries = parse_zip_directory(source)
    assert [(one.name, one.size_bytes, one.data_start) for one in entries] == [
        (member.name.decode(), member.size_bytes, member.data_start) for member in plan.members
    ]
    with zipfile.ZipFile(path) as archive:
        assert [one.file_size for one in archive.infolist()] == [size_bytes, 5]
