"""Zip directories: entries lie where they say, or the archive is refused."""

import io
import struct
import zipfile

import pytest

from mvc.checkpoints import zip_directory
from mvc.errors import FormatError
from mvc.sources import MemorySource
from support.forged_files import WEIGHTS, patched, stored, tensor_pickle
from support.machine import peak_below
from support.parsed import named_views, parse, torch_archive

PROTOCOL = b"\x80\x02"
GOOD = torch_archive(PROTOCOL + tensor_pickle() + b".", {"0": WEIGHTS})


def central_of(data: bytes, name: bytes) -> int:
    """Return where the central header of an entry begins."""
    return data.rindex(name) - 46


def refused(data: bytes, name: str = "x.pt") -> None:
    with pytest.raises(FormatError):
        zip_directory.parse_zip_directory(MemorySource(data))
    layout = parse(data, name)
    assert (layout.format, layout.segments) == ("opaque", ())
    assert layout.warning


def test_the_good_archive_is_read():
    assert named_views(GOOD, parse(GOOD, "x.pt"))["tensor"][2] == WEIGHTS


def test_entries_that_overlap_are_refused():
    storage = central_of(GOOD, b"archive/data/0")
    pickled = central_of(GOOD, b"archive/data.pkl")
    refused(patched(GOOD, storage + 42, GOOD[pickled + 42 : pickled + 46]))
    # One entry that claims the bytes of the next one as its own, in both headers.
    local = struct.unpack_from("<I", GOOD, storage + 42)[0]
    sizes = struct.pack("<II", 100, 100)
    refused(patched(patched(GOOD, storage + 20, sizes), local + 18, sizes))


def test_an_entry_inside_another_is_refused():
    inner = stored(("archive/data/0", WEIGHTS))
    outer = stored(
        ("archive/data.pkl", PROTOCOL + tensor_pickle() + b"."),
        ("archive/filler", inner + bytes(32)),
    )
    # A third central header that points at the local header inside the filler.
    start = struct.unpack_from("<I", outer, len(outer) - 6)[0]
    directory = outer[start : len(outer) - 22]
    where = outer.index(inner)
    extra = patched(inner[inner.index(b"PK\x01\x02") : -22], 42, struct.pack("<I", where))
    end = struct.pack(
        "<4sHHHHIIH", b"PK\x05\x06", 0, 0, 3, 3, len(directory) + len(extra), start, 0
    )
    refused(outer[:start] + directory + extra + end)


def test_headers_that_disagree_are_refused():
    storage = central_of(GOOD, b"archive/data/0")
    local = struct.unpack_from("<I", GOOD, storage + 42)[0]
    refused(patched(GOOD, local, b"PK\x03\x05"))
    refused(patched(GOOD, local + 8, b"\x08\x00"))  # method
    refused(patched(GOOD, local + 18, struct.pack("<I", 8)))  # compressed size
    refused(patched(GOOD, local + 22, struct.pack("<I", 8)))  # plain size
    refused(patched(GOOD, local + 26, b"\x0d\x00"))  # name length
    refused(patched(GOOD, local + 30, b"Archive"))  # name
    refused(patched(GOOD, local + 28, b"\xff\xff"))  # extra field that moves the data
    refused(patched(GOOD, storage + 20, struct.pack("<I", 8)))
    refused(patched(GOOD, storage + 24, struct.pack("<I", 8)))
    refused(patched(GOOD, storage + 42, struct.pack("<I", 2**31)))
    refused(patched(GOOD, storage + 42, struct.pack("<I", 2**32 - 1)))  # 64-bit value missing
    refused(patched(GOOD, storage + 34, b"\x01\x00"))  # on another disk
    refused(patched(GOOD, storage, b"PK\x01\x03"))


def test_ends_that_lie_are_refused():
    end = len(GOOD) - 22
    refused(patched(GOOD, end + 8, b"\x01\x00\x01\x00"))  # fewer entries
    refused(patched(GOOD, end + 8, b"\xff\xff\xff\xff"))  # more
    refused(patched(GOOD, end + 4, b"\x01\x00"))  # disk number
    refused(patched(GOOD, end + 12, struct.pack("<I", 10)))  # size of the directory
    refused(patched(GOOD, end + 16, struct.pack("<I", 0)))  # its start
    refused(patched(GOOD, end + 16, struct.pack("<I", 2**32 - 1)))
    refused(patched(GOOD, end + 20, b"\x05\x00"))  # a comment that is not there
    refused(GOOD[:-1])
    refused(GOOD + b"\0")
    refused(b"garbage before" + GOOD, "x.pt")
    refused(GOOD[:-22])
    refused(b"PK\x03\x04")
    refused(GOOD[-22:][:4] + bytes(18) + b"x")


def test_an_empty_archive_has_nothing_to_name():
    layout = parse(stored(), "x.pt")
    assert layout.format == "opaque"
    assert "neither" in layout.warning


def test_comments_are_read_but_two_ends_are_refused():
    members = [("archive/data.pkl", PROTOCOL + tensor_pickle() + b"."), ("archive/data/0", WEIGHTS)]
    data = stored(*members, comment=b"a comment")
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS
    data = stored(*members, comment=b"PK\x05\x06 by chance")
    assert parse(data, "x.pt").format == "torch"
    refused(stored(*members, comment=b"PK\x05\x06" + bytes(18)))


def test_names_twice_are_refused():
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = stored(
            ("archive/data.pkl", b"N."), ("archive/data.pkl", PROTOCOL + tensor_pickle() + b".")
        )
    refused(data)


def test_nothing_is_ever_inflated():
    bomb = stored(
        ("archive/data.pkl", PROTOCOL + tensor_pickle() + b"."),
        ("archive/data/0", bytes(50_000_000)),
        kind=zipfile.ZIP_DEFLATED,
    )
    with peak_below(5_000_000):
        layout = parse(bomb, "x.pt")
    assert "compressed" in layout.warning


def test_encrypted_entries_are_not_named():
    pickled = central_of(GOOD, b"archive/data.pkl")
    local = struct.unpack_from("<I", GOOD, pickled + 42)[0]
    data = patched(patched(GOOD, pickled + 8, b"\x01\x00"), local + 6, b"\x01\x00")
    assert "encrypted" in parse(data, "x.pt").warning


def test_more_than_65535_entries():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", PROTOCOL + tensor_pickle(b"69999") + b".")
        for number in range(66_000):
            archive.writestr(zipfile.ZipInfo(f"archive/data/{number}"), b"")
        archive.writestr("archive/data/69999", WEIGHTS)
    data = buffer.getvalue()
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS


def test_the_number_of_entries_and_the_directory_are_capped(monkeypatch):
    monkeypatch.setattr(zip_directory, "MAX_ENTRIES", 3)
    assert "past the limit" in parse(GOOD, "x.pt").warning
    monkeypatch.setattr(zip_directory, "MAX_ENTRIES", 100)
    monkeypatch.setattr(zip_directory, "MAX_DIRECTORY_BYTES", 100)
    assert "past the limit" in parse(GOOD, "x.pt").warning


def test_64_bit_sizes_are_read(tmp_path):
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (
            ("a/data.pkl", PROTOCOL + tensor_pickle() + b"."),
            ("a/data/0", WEIGHTS),
        ):
            with archive.open(name, "w", force_zip64=True) as entry:
                entry.write(content)
    data = path.read_bytes()
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS
    local = data.index(b"PK\x03\x04", 10)
    data = patched(data, local + 18, b"\xff" * 8)  # as Python writes them from 3.11.4 on
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS
    refused(patched(data, local + 30 + len("a/data/0") + 4, struct.pack("<Q", 15)))


def test_archives_written_as_a_stream_are_read():
    class Pipe(io.RawIOBase):
        """A target that cannot seek: sizes follow the data."""

        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, piece):
            self.data += piece
            return len(piece)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        archive.writestr("a/data.pkl", PROTOCOL + tensor_pickle() + b".")
        archive.writestr("a/data/0", WEIGHTS)
    data = bytes(pipe.data)
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS
