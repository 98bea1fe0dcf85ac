"""How many records a shard has: as the libraries that write the formats say, at one read of each byte."""

import gzip
import io
import json
import os
import re
import struct
import tarfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.shards.records import count_records, find_counter
from mvc.shards.records.stream import FileStream, ShardBytes
from support.machine import peak_below
from support.shard_files import make_mds, make_tar

TABLE = pa.table({"id": list(range(1000)), "text": ["x" * (number % 50) for number in range(1000)],
                  "tags": [{"a": [1, 2], "b": None}] * 1000})  # fmt: skip


def count(data, name, piece_bytes=100):
    parts = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    stream = ShardBytes(iter(parts), len(data), lambda at, size: data[at : at + size])
    found = count_records(stream, name)
    stream.drain()
    assert stream.position == len(data)  # all of it passes, for who hashes it
    return found


def make_parquet(**options):
    file = pa.BufferOutputStream()
    pyarrow.parquet.write_table(TABLE, file, **options)
    return file.getvalue().to_pybytes()


def make_arrow(new, **options):
    file = pa.BufferOutputStream()
    with new(file, TABLE.schema, **options) as writer:
        writer.write_table(TABLE, max_chunksize=99)
    return file.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "options", [{}, {"row_group_size": 10}, {"compression": "zstd", "version": "1.0"}]
)
def test_parquet_tells_its_rows(options):
    assert count(make_parquet(**options), "a/b.parquet") == 1000


def test_arrow_files_and_streams_tell_their_rows():
    assert count(make_arrow(pa.ipc.new_file), "x.arrow") == 1000
    stream = make_arrow(pa.ipc.new_stream)
    assert count(stream, "x.arrow") == 1000
    assert count(stream[:-8], "x.arrow") == 1000  # its end may be left out
    old = pa.ipc.IpcWriteOptions(use_legacy_format=True, metadata_version=pa.ipc.MetadataVersion.V4)
    assert count(make_arrow(pa.ipc.new_stream, options=old), "x.arrow") == 1000
    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    assert count(make_arrow(pa.ipc.new_file, options=packed), "x.feather") == 1000


@pytest.mark.parametrize("fails", [make_parquet, lambda: make_arrow(pa.ipc.new_file),
                                   lambda: make_tar([("a.x", b"1" * 900)]), lambda: make_mds([b"12", b"3"])])  # fmt: skip
def test_what_is_cut_off_has_no_number(fails):
    data = fails()
    name = {b"PAR1": "x.parquet", b"ARRO": "x.arrow", b"a.x\0": "x.tar"}.get(data[:4], "x.mds")
    for end in (1, 7, min(600, len(data) // 2)):
        with pytest.raises(FormatError):
            count(data[:end], name)


def test_an_arrow_file_without_its_end_has_no_number():
    data = make_arrow(pa.ipc.new_file)
    for end in range(8, len(data), 8):  # many are ends of messages
        with pytest.raises(FormatError):
            count(data[:end], "x.arrow", len(data))


@given(
    st.lists(st.sampled_from([b"{}", b"", b"\r", b" ", b"a\rb"]), max_size=12),
    st.integers(1, 9),
    st.booleans(),
)
def test_lines_that_are_not_empty_are_records(lines, piece_bytes, is_ended):
    data = b"\n".join(lines) + b"\n" * is_ended
    assert count(data, "x.jsonl", piece_bytes) == sum(line not in (b"", b"\r") for line in lines)


def test_compressed_lines_are_counted():
    data = b"".join(b'{"n": %d}\n' % number for number in range(5000))
    half = len(data) // 2
    members = [data[:half], data[half:]]
    assert count(gzip.compress(data), "x.jsonl.gz") == 5000
    assert count(b"".join(map(gzip.compress, members)) + b"\0" * 512, "x.jsonl.gz") == 5000
    assert count(b"".join(map(zstandard.compress, members)), "x.jsonl.zst") == 5000
    for packed, name in (
        (gzip.compress(data), "x.jsonl.gz"),
        (b"junk" * 9, "x.jsonl.zst"),
        (b"junk", "x.jsonl.gz"),
    ):
        with pytest.raises(FormatError):
            count(packed[:-20] or packed, name)


@pytest.mark.parametrize("name", ["x.jsonl.zst", "x.jsonl.gz", "x.tar.zst"])
def test_what_is_cut_off_within_its_packing_has_no_number(name):
    data = b"".join(b'{"n": %d}\n' % number for number in range(5000))
    packed = gzip.compress(data) if name.endswith("gz") else zstandard.compress(data)
    for end in range(64, len(packed), 64):
        with pytest.raises(FormatError):
            count(packed[:end], name)


def test_many_tiny_members_are_each_copied_a_few_times(monkeypatch):
    copied = [0]

    class Counting:
        def __init__(self, *arguments):
            self._inner = real(*arguments)

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def decompress(self, data, *arguments):
            copied[0] += len(data)
            return self._inner.decompress(data, *arguments)

    real = zlib.decompressobj
    data = gzip.compress(b"{}\n") * 20_000
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    assert count(data, "x.jsonl.gz", 1 << 20) == 20_000
    assert copied[0] < 100 * len(data)


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr("mvc.shards.records.stream._SMALL_BYTES", 1 << 20)
    bomb = b"\n" * (64 << 20)
    for packed, name in (
        (zlib.compress(bomb, wbits=31), "x.jsonl.gz"),
        (zstandard.compress(bomb), "x.jsonl.zst"),
    ):
        with pytest.raises(FormatError, match="200 times"):
            count(packed, name)


@pytest.mark.parametrize("layout", [0, 1, 2])  # ustar, GNU, pax
def test_samples_of_webdataset_are_counted_as_it_does(layout):
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    long = "" if layout == 0 else "é" * 90
    names = [
        f"{'x/' * (number % 3)}{long}{number:04d}.{kind}"
        for number in range(40)
        for kind in ("jpg", "cls.txt")
    ]
    names += ["__meta__", "__m__/a.b", "none", "again.a", "0000.a", "again.b"]
    data = make_tar(
        [(name, b"q" * (number % 700)) for number, name in enumerate(names)], format=layout
    )
    samples = list(
        group_by_keys({**file, "__url__": ""} for file in tar_file_iterator(io.BytesIO(data)))
    )
    assert count(data, "x.tar") == len(samples) == 43
    assert count(gzip.compress(data), "x.tar.gz") == count(gzip.compress(data), "x.tgz") == 43


def test_folders_and_links_are_no_samples():
    data = bytearray(make_tar([("a.x", b""), ("b.x", b"")]))
    for kind in b"12345":
        data[156] = kind
        total = sum(data[:148]) + 8 * 32 + sum(data[156:512])
        data[148:156] = b"%06o\0 " % total
        assert count(bytes(data), "x.tar") == 1


def tar_header(name=b"a.x", size=b"00000000000\0", kind=b"0"):
    header = bytearray(512)
    header[: len(name)], header[124:136], header[156:157], header[257:263] = (
        name,
        size,
        kind,
        b"ustar\0",
    )
    header[148:156] = b"%06o\0 " % (sum(header) + 8 * 32)
    return bytes(header)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tar_header(size=b"\x80" + b"\xff" * 11), "impossible length"),
        (tar_header(size=b"77777777777\0"), "ends too early"),
        (tar_header(size=b"junk"), "damaged"),
        (tar_header(kind=b"x", size=b"00077777777\0"), "a header of"),
        (tar_header(kind=b"L", size=b"\x80" + b"\0" * 6 + b"\xff" * 5), "a header of"),
        (tar_header(kind=b"S"), "sparse"),
        (tar_header(kind=b"x", size=b"00000000014\0") + b"99 path=x.y\n".ljust(512, b"\0"), "pax"),
        (tar_header(kind=b"x", size=b"00000000014\0") + b"12 size=-10\n".ljust(512, b"\0") + tar_header(), "impossible"),
        (tar_header(kind=b"x", size=b"00000000027\0") + b"23 GNU.sparse.major=1.0".ljust(512, b"\0"), "sparse|pax"),
        (tar_header()[:-1] + b"x", "damaged"),
    ],
)  # fmt: skip
def test_hostile_tar_files_have_no_number(data, reason):
    with pytest.raises(FormatError, match=reason):
        count(data + b"\0" * 1024, "x.tar")


@given(st.text("a./\n", max_size=12))
def test_the_key_of_a_name_is_what_webdataset_takes(name):
    found = re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", name, re.DOTALL)
    data = make_tar([(name, b"")], format=tarfile.GNU_FORMAT)
    assert count(data, "x.tar") == (found is not None)


def test_names_and_samples_of_any_length_are_read_in_one_pass():
    """These took hours and minutes: each slash was tried as the start of the key, and each extension compared."""
    name = b"a/" * (1 << 19)
    data = tar_header(kind=b"L", size=b"00004000000\0") + name + tar_header()
    assert count(data + b"\0" * 1024, "x.tar", 1 << 20) == 0
    files = b"".join(tar_header(b"a.%d" % number) for number in range(40_000))
    assert count(files, "x.tar", 1 << 20) == 1


def test_arrays_tell_their_rows(tmp_path):
    for number, array in enumerate(
        [
            np.zeros((7, 3), np.float32),
            np.zeros(7, "<U5"),
            np.zeros((7, 0)),
            np.asfortranarray(np.ones((7, 2))),
        ]
    ):
        np.save(tmp_path / f"{number}.npy", array)
        data = (tmp_path / f"{number}.npy").read_bytes()
        assert count(data, "x.npy") == 7
        with pytest.raises(FormatError, match="bytes"):
            count(data + b"x", "x.npy")
    for array in (np.float32(1), np.zeros(3, [("a", "f4")])):
        np.save(tmp_path / "odd.npy", array)
        with pytest.raises(FormatError):
            count((tmp_path / "odd.npy").read_bytes(), "x.npy")


def test_mds_shards_tell_their_samples():
    data = make_mds([b"x" * number for number in range(300)])
    assert count(data, "shard.00000.mds") == 300
    assert count(zstandard.compress(data), "shard.00000.mds.zstd") == 300
    assert count(make_mds([]), "x.mds") == 0
    with pytest.raises(FormatError, match="more than"):
        count(data + b"x", "x.mds")
    with pytest.raises(FormatError):
        count(b"\xff" * 40, "x.mds")


def test_the_index_of_mds_shards_holds_no_samples():
    assert count(json.dumps({"version": 2, "shards": [{"samples": 7}]}).encode(), "index.json") == 0
    for data in (b"[]", b"{}", b"[" * 10_000, b"\xff", b'{"shards": [{"samples": 7}'):
        with pytest.raises(FormatError):
            count(data, "index.json")


def test_an_index_of_many_small_values_takes_no_more_than_its_length():
    data = b'{"shards": [' + b"{}," * 500_000 + b"{}]}"
    with peak_below(4 * len(data)):
        assert count(data, "index.json", len(data)) == 0


def test_other_files_have_no_number_and_empty_files_no_records():
    assert find_counter("tokens.bin") is None
    assert count(b"abcd", "tokens.bin") is None
    for name in ("tokens.bin", "x.parquet", "_SUCCESS"):
        assert count(b"", name) == 0


NAMES = [
    "x.parquet",
    "x.arrow",
    "x.jsonl",
    "x.jsonl.gz",
    "x.jsonl.zst",
    "x.tar",
    "x.tar.zst",
    "x.mds",
    "x.npy",
    "index.json",
]
SEEDS = {
    "x.parquet": make_parquet(),
    "x.arrow": make_arrow(pa.ipc.new_file)[:4000],
    "x.tar": make_tar([("é" * 60 + ".a", b"1" * 600), ("b.a", b"")], format=2),
    "x.mds": make_mds([b"1", b"22", b"333"]),
    "x.jsonl.gz": gzip.compress(b"{}\n" * 99),
    "x.jsonl.zst": zstandard.compress(b"{}\n" * 99),
    "x.npy": b"\x93NUMPY\1\0\x46\0{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }        \n" + b"x" * 8,
}  # fmt: skip


def damage(seed, data):
    noise = data.draw(st.binary(max_size=40))
    place = data.draw(st.integers(0, len(seed)))
    return seed[:place] + noise + seed[place + len(noise) :]


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(NAMES), st.data())
def test_any_bytes_have_a_number_or_none(name, data):
    mixed = damage(SEEDS.get(name, b""), data)
    try:
        found = count(mixed, name, data.draw(st.integers(1, 600)))
    except FormatError:
        return
    assert 0 <= found < 2**63


@settings(deadline=None)
@given(st.sampled_from(["x.tar", "x.mds"]), st.data())
def test_a_file_that_is_skipped_through_has_the_same_records(name, data):
    mixed = damage(SEEDS[name], data) if data.draw(st.booleans()) else SEEDS[name]
    file = os.memfd_create("shard")
    try:
        os.write(file, mixed)
        found = []
        for stream in (ShardBytes(iter([mixed]), len(mixed)), FileStream(file)):
            try:
                found.append(count_records(stream, name))
            except FormatError as error:
                found.append(error.message)
    finally:
        os.close(file)
    assert found[0] == found[1]


def test_two_files_of_one_sample_have_two_extensions():
    with pytest.raises(FormatError, match="two files 'jpg' of sample 'a'"):
        count(make_tar([("a.jpg", b"1"), ("a.JPG", b"2")]), "x.tar")


def test_a_footer_that_nests_without_end_is_refused():
    for footer in (
        b"\x1c" * 3000,
        b"\x19\xfc\xff\xff\x7f",
        b"\x19\xfc" + b"\xff" * 20,
        b"\x16\x01",
        b"\x00",
    ):
        data = b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"
        with pytest.raises(FormatError):
            count(data, "x.parquet")
