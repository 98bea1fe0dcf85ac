import struct

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.formats.pack import MAX_PACK_RECORDS, MAX_PLAIN_BYTES, PackRecord
from mvc.formats.pack_index import (
    MAX_INDEX_BYTES,
    encode_pack_index,
    index_records,
    parse_pack_index,
)

PACK = "ab" * 32
FRONT = struct.Struct("<8sII32sQQ")


def lay_out(chunks):
    """Place (id, encoding, plain, stored, bases...) one by one; return records and pack size."""
    records, offset = [], 16
    for chunk_id, encoding, plain, stored, *bases in chunks:
        records.append(PackRecord(chunk_id, encoding, plain, stored, offset, tuple(*bases)))
        offset = records[-1].end
    return records, offset + 32


def encode(records, size):
    return encode_pack_index(index_records(PACK, size, records))


SAMPLE = [
    (b"\x05" * 32, 2, 100, 70),
    (b"\x01" * 31 + b"\0", 0, 8, 8),
    (b"\0" * 32, 0, 0, 0),
    (b"\x01" * 30 + b"\0\0", 1, 50, 60),
]


def build(rows, *, pack=PACK, size=None, count=None, version=1, zero=0):
    """Encode rows (id, offset, stored, plain, tag) as they come, however wrong."""
    size = 16 + sum(64 + row[2] for row in rows) + 32 if size is None else size
    data = FRONT.pack(
        b"mvcidx\0\0",
        version,
        zero,
        bytes.fromhex(pack),
        size,
        len(rows) if count is None else count,
    )
    data += b"".join(row[0] for row in rows)
    for number, kind in ((1, "Q"), (2, "I"), (3, "I"), (4, "B")):
        data += struct.pack(f"<{len(rows)}{kind}", *(row[number] for row in rows))
    return data + blake3(data).digest()


def test_the_bytes_are_those_of_the_specification():
    records, size = lay_out(SAMPLE)
    rows = sorted(
        (r.chunk_id, r.offset, r.stored_size_bytes, r.plain_size_bytes, r.encoding) for r in records
    )
    assert encode(records, size) == build(rows)


def test_round_trip_keeps_ids_that_end_in_zero_bytes():
    records, size = lay_out(SAMPLE)
    index = parse_pack_index(encode(records, size))
    assert (index.pack, index.pack_size_bytes, len(index)) == (PACK, size, 4)
    assert list(index.records()) == records
    assert [index.chunk_id(row) for row in range(4)] == sorted(r.chunk_id for r in records)
    assert index.record(0).chunk_id == bytes(32)


ids = st.binary(min_size=32, max_size=32)
sizes = (st.integers(0, MAX_PLAIN_BYTES), st.integers(0, 1024))
chunks = st.lists(
    st.tuples(ids, st.integers(0, 3), *sizes)
    | st.tuples(ids, st.integers(4, 255), *sizes, st.lists(ids, min_size=1, max_size=2)),
    min_size=1,
    max_size=30,
    unique_by=lambda chunk: chunk[0],
)


@given(chunks)
def test_any_records_round_trip(chunks):
    records, size = lay_out(chunks)
    assert list(parse_pack_index(encode(records, size)).records()) == records


def test_every_flip_and_truncation_is_noticed():
    data = encode(*lay_out(SAMPLE))
    for i in range(len(data)):
        for mask in (1, 0x80):
            damaged = bytearray(data)
            damaged[i] ^= mask
            with pytest.raises(FormatError):
                parse_pack_index(bytes(damaged))
        with pytest.raises(FormatError):
            parse_pack_index(data[:i])
    with pytest.raises(FormatError):
        parse_pack_index(data + b"\0")


A, B = b"a" * 32, b"b" * 32
GOOD = [(A, 16, 10, 20, 0), (B, 90, 5, 5, 0)]


def test_the_good_one_is_good():
    assert len(parse_pack_index(build(GOOD))) == 2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(B, 16, 10, 20, 0), (A, 90, 5, 5, 0)], "out of order"),
        ([(A, 16, 10, 20, 0), (A, 90, 5, 5, 0)], "twice"),
        ([(A, 16, 10, 20, 0), (B, 91, 5, 5, 0)], "holes"),
        ([(A, 16, 10, 20, 0), (B, 89, 5, 5, 0)], "overlap"),
        ([(A, 16, 10, 20, 0), (B, 16, 5, 5, 0)], "overlap"),
        ([(A, 17, 10, 20, 0), (B, 91, 5, 5, 0)], "holes"),
        ([(A, 0, 10, 20, 0), (B, 74, 5, 5, 0)], "overlap"),
        ([(A, 16, 10, 20, 0), (B, 2**64 - 1, 5, 5, 0)], "overlap"),
        ([(A, 16, 10, MAX_PLAIN_BYTES + 1, 0), (B, 90, 5, 5, 0)], "too long"),
        ([(A, 16, 2**32 - 1, 20, 0), (B, 16 + 64 + 2**32 - 1, 5, 5, 0)], "too long"),
        ([(A, 16, 1045, 20, 0), (B, 16 + 64 + 1045, 5, 5, 0)], "too long"),
    ],
)
def test_indexes_with_a_right_hash_are_not_trusted_either(rows, said):
    size = 16 + 64 + rows[0][2] + 64 + rows[1][2] + 32
    with pytest.raises(FormatError, match=said):
        parse_pack_index(build(rows, size=min(size, 2**31)))


@pytest.mark.parametrize(
    "change",
    [
        {"size": 190},
        {"size": 192},
        {"size": 0},
        {"size": 2**63},
        {"count": 1},
        {"count": 3},
        {"count": 0},
        {"count": 2**63},
        {"count": MAX_PACK_RECORDS + 1},
        {"version": 2},
        {"zero": 1},
    ],
)
def test_headers_with_a_right_hash_are_not_trusted_either(change):
    with pytest.raises(FormatError):
        parse_pack_index(build(GOOD, **change))
    with pytest.raises(FormatError):
        parse_pack_index(build([], **change))


def test_a_pack_holds_a_chunk_once():
    records, size = lay_out([SAMPLE[0], SAMPLE[0]])
    with pytest.raises(FormatError, match="twice"):
        index_records(PACK, size, records)


def test_an_index_that_is_too_long_is_not_looked_at():
    data = np.zeros(MAX_INDEX_BYTES + 1, np.uint8).data
    with pytest.raises(FormatError, match="not a pack index"):
        parse_pack_index(data)


@given(st.binary(max_size=300), st.integers(0, 3))
def test_garbage_is_a_format_error(data, how):
    if how == 1:
        data = b"mvcidx\0\0" + data
    elif how == 2:
        data = build(GOOD)[: len(data)] + data
    elif how == 3:
        body = FRONT.pack(b"mvcidx\0\0", 1, 0, bytes(32), 191, max(1, len(data) // 49)) + data
        data = body + blake3(body).digest()
    with pytest.raises(FormatError):
        parse_pack_index(data)


def referring_index(tag=4, bases=(b"\x07" * 32, b"\x08" * 31 + b"\0")):
    records, size = lay_out([(b"\x05" * 32, 2, 100, 70), (b"\x06" * 32, tag, 100, 90, bases)])
    return encode(records, size)


def reseal(data):
    return data[:-32] + blake3(data[:-32]).digest()


def test_version_two_adds_the_bases_behind_the_tags():
    data = referring_index()
    assert struct.unpack_from("<I", data, 8) == (2,)
    assert data[-32 - 64 - 2 : -32] == b"\0\2" + b"\x07" * 32 + b"\x08" * 31 + b"\0"
    index = parse_pack_index(data)
    assert index.bases(0) == ()
    assert index.bases(1) == (b"\x07" * 32, b"\x08" * 31 + b"\0")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: -32 - 66] + b"\1\1" + data[-32 - 64 :],  # a base for one that has none
        lambda data: data[: -32 - 66] + b"\0\3" + data[-32 - 64 :] + bytes(32),  # too many
        lambda data: data[: -32 - 66] + b"\0\0" + data[-32:],  # none for one that needs one
        lambda data: data[: -32 - 64] + data[-64:],  # an id too few
        lambda data: data[:8] + b"\1" + data[9 : -32 - 66] + data[-32:],  # as version 1
    ],
)
def test_bases_that_cannot_be_are_refused(damage):
    with pytest.raises(FormatError):
        parse_pack_index(reseal(damage(referring_index())))
