"""Packs with deltas from elsewhere: all comes over, whole; whatever is wrong is a FormatError."""

import hashlib
import struct
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.history import transfer
from mvc.history.git import GitHistory
from mvc.history.objects import ObjectStore
from mvc.history.transfer import receive_host_pack
from mvc.ids import hash_git_object
from support.stockgit import run_git

COMMON = [f"a line that many versions share, number {number}" for number in range(60)]


@pytest.fixture
def here(tmp_path):
    return GitHistory.init(tmp_path / "here" / ".mvc")


@pytest.fixture
def stock_pack(tmp_path):
    """A pack of stock Git, with chains of deltas, and what is in it."""
    there = GitHistory.init(tmp_path / "there" / ".mvc")
    ids = []
    for number in range(20):
        lines = [*COMMON[: number + 5], f"{number}", *COMMON[number:]]
        ids.append(there.write_blob("\n".join(lines).encode()))
    there.sync_objects()
    return there, ids


def pack_of(there, ids, folder, *options):
    data = run_git(
        there.git_dir, "pack-objects", "--stdout", *options, data="\n".join(ids).encode()
    ).stdout
    path = folder / "some.pack"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("options", [(), ("--delta-base-offset",), ("--depth=50", "--window=50")])
def test_what_stock_git_packs_comes_over_whole(here, stock_pack, tmp_path, options):
    there, ids = stock_pack
    path = pack_of(there, ids, tmp_path, *options)
    assert path.stat().st_size < 3000  # deltas, not copies
    assert set(receive_host_pack(here.objects, path)) == set(ids)
    for one in ids:
        assert here.objects.read(one) == there.objects.read(one)
    assert run_git(here.git_dir, "fsck", "--strict").returncode == 0
    (written,) = (here.git_dir / "objects/pack").glob("*.pack")
    listed = run_git(here.git_dir, "verify-pack", "-v", str(written)).stdout.decode()
    assert "chain length" not in listed
    assert receive_host_pack(here.objects, path) == []


@pytest.fixture(scope="module")
def small_pack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    there = GitHistory.init(folder / "there" / ".mvc")
    ids = [there.write_blob(("x" * 300 + str(one)).encode()) for one in range(4)]
    there.sync_objects()
    return pack_of(there, ids, folder, "--delta-base-offset").read_bytes()


@given(at=st.floats(0, 1), bit=st.integers(0, 7), cut=st.booleans(), resum=st.booleans())
def test_a_pack_that_is_spoilt_is_refused_or_whole(small_pack, at, bit, cut, resum):
    data = bytearray(small_pack)
    place = min(int(at * len(data)), len(data) - 1)
    if cut:
        del data[place:]
    else:
        data[place] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoilt.pack"
        path.write_bytes(sealed(data[:-20]) if resum and len(data) > 32 else data)
        objects = ObjectStore(Path(folder) / "objects")
        try:
            found = receive_host_pack(objects, path)
        except FormatError:
            return
        assert all(hash_git_object(*objects.read(one)) == one for one in found)


def sealed(data):
    return bytes(data) + hashlib.sha1(data).digest()


def entry(kind, data, extra=b""):
    size, head = len(data), bytearray()
    byte, rest = kind << 4 | size & 15, size >> 4
    while rest:
        head.append(byte | 0x80)
        byte, rest = rest & 0x7F, rest >> 7
    return bytes([*head, byte]) + extra + zlib.compress(data)


def pack(*entries):
    return sealed(b"PACK" + struct.pack(">LL", 2, len(entries)) + b"".join(entries))


def length(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def delta(base, made, *codes):
    return length(base) + length(made) + b"".join(codes)


BLOB = entry(3, b"0123456789")
COPY = delta(10, 10, b"\x90\x0a")  # ten bytes from the start


@pytest.mark.parametrize(
    "data",
    [
        pack(entry(6, COPY, b"\x01")),  # its base is no entry
        pack(BLOB, entry(6, COPY, b"\x7f")),  # before the pack
        pack(BLOB, entry(7, COPY, b"\0" * 20)),  # nobody has it
        pack(BLOB, entry(6, delta(11, 10, b"\x90\x0a"), bytes([len(BLOB)]))),  # another length
        pack(BLOB, entry(6, delta(10, 10, b"\x91\x05\x0a"), bytes([len(BLOB)]))),  # beyond it
        pack(BLOB, entry(6, delta(10, 2**40, b"\x90\x0a"), bytes([len(BLOB)]))),
        pack(BLOB, entry(6, b"", bytes([len(BLOB)]))),
        pack(entry(5, b"x")),
        pack(entry(0, b"x")),
        pack(BLOB)[:-1],
        pack(BLOB) + b"x",
        b"PACK" + struct.pack(">LL", 2, 2**31),
        sealed(b"PACK" + struct.pack(">LL", 2, 2**31)),
        b"",
        b"<html>" * 20,
    ],
)
def test_a_forged_pack_is_refused(here, tmp_path, data):
    path = tmp_path / "forged.pack"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        receive_host_pack(here.objects, path)
    assert not list((here.git_dir / "objects/pack").glob("*"))


def test_what_deltas_blow_up_is_bounded(here, tmp_path, monkeypatch):
    path = tmp_path / "bomb.pack"
    grown = delta(10, 40, *[b"\x90\x0a"] * 4)
    path.write_bytes(pack(BLOB, entry(6, grown, bytes([len(BLOB)]))))
    assert len(receive_host_pack(here.objects, path)) == 2
    monkeypatch.setattr(transfer, "_MAX_TOTAL_BYTES", 45)
    with pytest.raises(FormatError, match="more in it"):
        receive_host_pack(here.objects, path)
