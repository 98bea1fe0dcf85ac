import struct
from zlib import crc32

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.formats import pack
from mvc.formats.pack import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    PackRecord,
    encode_pack_footer,
    encode_pack_header,
    encode_record_header,
    parse_pack_footer,
    parse_pack_header,
    parse_record_header,
    scan_pack,
)


def chunk_id(data):
    return blake3(data).digest()


def make_pack(bodies, encoding=0):
    data = encode_pack_header()
    for body in bodies:
        data += encode_record_header(chunk_id(body), encoding, len(body), len(body)) + body
    return data + encode_pack_footer(len(bodies), len(data) + FOOTER_BYTES)


def scan(data):
    def read_at(offset, size):
        if offset < 0 or offset + size > len(data):
            raise FormatError("read past the end")
        return memoryview(data)[offset : offset + size]

    return list(scan_pack(read_at, len(data)))


def test_the_bytes_are_those_of_the_specification():
    body = b"plain"
    digest = chunk_id(body)
    front = b"mvcr" + bytes([0, 0, 0, 0]) + struct.pack("<II", 5, 5)
    record = front + struct.pack("<I", crc32(front + bytes(12) + digest)) + bytes(12) + digest
    assert make_pack([body]) == (
        b"mvcpack\0\x01\0\0\0\0\0\0\0"
        + record
        + body
        + b"mvcpend\0"
        + struct.pack("<QQQ", 1, 16 + 64 + 5 + 32, 0)
    )


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20, unique=True))
def test_scanning_finds_every_record(bodies):
    data = make_pack(bodies)
    records = scan(data)
    assert [record.chunk_id for record in records] == [chunk_id(body) for body in bodies]
    for record, body in zip(records, bodies, strict=True):
        assert data[record.offset + RECORD_BYTES : record.end] == body
    assert records[0].offset == HEADER_BYTES
    assert records[-1].end == len(data) - FOOTER_BYTES


@given(
    st.integers(0, 255),
    st.integers(0, 2**26),
    st.integers(0, 2**26),
    st.binary(min_size=32, max_size=32),
)
def test_record_headers_round_trip(encoding, plain, stored, digest):
    data = encode_record_header(digest, encoding, plain, stored)
    assert len(data) == RECORD_BYTES
    if stored > plain + pack.MAX_STORED_SLACK_BYTES:
        with pytest.raises(FormatError, match="longer than its plain bytes"):
            parse_record_header(data, 7)
    else:
        assert parse_record_header(data, 7) == PackRecord(digest, encoding, plain, stored, 7)


def test_every_flipped_byte_outside_the_bodies_is_noticed():
    bodies = [b"first body", b"", b"third"]
    data = make_pack(bodies)
    covered = {i for r in scan(data) for i in range(r.offset + RECORD_BYTES, r.end)}
    for i in range(len(data)):
        for mask in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[i] ^= mask
            if i in covered:
                assert scan(bytes(damaged)) == scan(data)
            else:
                with pytest.raises(FormatError):
                    scan(bytes(damaged))


def test_every_truncation_and_extension_is_noticed():
    data = make_pack([b"first body", b"second"])
    for size in range(len(data)):
        with pytest.raises(FormatError):
            scan(data[:size])
    for tail in (b"\0", data[-FOOTER_BYTES:], data):
        with pytest.raises(FormatError):
            scan(data + tail)


def test_records_before_the_damage_are_kept():
    data = bytearray(make_pack([b"one", b"two", b"three"]))
    good = scan(bytes(data))
    data[good[2].offset] ^= 1
    found = []
    with pytest.raises(FormatError, match=f"no record at offset {good[2].offset}"):
        found.extend(scan_pack(lambda offset, size: bytes(data[offset : offset + size]), len(data)))
    assert found == good[:2]


def test_a_pack_without_records_is_none():
    data = encode_pack_header() + encode_pack_footer(0, HEADER_BYTES + FOOTER_BYTES)
    with pytest.raises(FormatError, match="counts 0 records"):
        scan(data)


def resealed(front, reserved=bytes(12), digest=bytes(32)):
    return front + struct.pack("<I", crc32(front + reserved + digest)) + reserved + digest


def test_headers_with_a_right_crc_are_not_trusted_either():
    limit = pack.MAX_PLAIN_BYTES
    for front, reserved, said in [
        (struct.pack("<4sB3xII", b"mvcr", 0, limit + 1, 5), bytes(12), "longer than"),
        (struct.pack("<4sB3xII", b"mvcr", 0, 10, 2**31), bytes(12), "longer than its plain"),
        (struct.pack("<4sB3sII", b"mvcr", 0, b"\0\1\0", 5, 5), bytes(12), "must be zero"),
        (struct.pack("<4sB3xII", b"mvcr", 0, 5, 5), b"\1" + bytes(11), "must be zero"),
        (struct.pack("<4sB3xII", b"mvcR", 0, 5, 5), bytes(12), "no record"),
    ]:
        with pytest.raises(FormatError, match=said):
            parse_record_header(resealed(front, reserved), 16)


def test_other_versions_and_lengths_are_refused():
    with pytest.raises(FormatError, match="format version 2") as caught:
        parse_pack_header(b"mvcpack\0" + struct.pack("<II", 2, 0))
    assert caught.value.hint == "use a newer mvc"
    with pytest.raises(FormatError, match="must be zero"):
        parse_pack_header(b"mvcpack\0" + struct.pack("<II", 1, 1))
    with pytest.raises(FormatError, match="its footer says 99"):
        parse_pack_footer(encode_pack_footer(1, 99), 100)
    with pytest.raises(FormatError, match="must be zero"):
        parse_pack_footer(b"mvcpend\0" + struct.pack("<QQQ", 1, 99, 1), 99)
    for count in (0, pack.MAX_PACK_RECORDS + 1, 2**64 - 1):
        with pytest.raises(FormatError, match="counts"):
            parse_pack_footer(encode_pack_footer(count, 99), 99)
    for size in (0, 47, pack.MAX_PACK_BYTES + 1, 2**62):
        with pytest.raises(FormatError, match="cannot be a pack"):
            list(scan_pack(lambda offset, size: bytes(size), size))


@given(st.binary(max_size=400))
def test_garbage_is_a_format_error(data):
    for attempt in (data, encode_pack_header() + data, make_pack([b"x"])[:-FOOTER_BYTES] + data):
        with pytest.raises(FormatError):
            scan(attempt)
    for parse in (parse_pack_header, lambda d: parse_record_header(d, 0)):
        with pytest.raises(FormatError):
            parse(data)
    with pytest.raises(FormatError):
        parse_pack_footer(data, len(data))
