"""The reference block: what it may say, and that nothing else is taken for one."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.formats.pack import (
    MAX_BASES,
    MAX_BLOCK_BYTES,
    REFERENCES_BYTES,
    References,
    encode_references,
    is_referring,
    parse_references,
    scan_pack,
)
from mvc.formats.pack_index import (
    MAX_INDEX_BYTES,
    encode_pack_index,
    index_records,
    parse_pack_index,
)
from mvc.ids import ID_BYTES, ChunkId, hash_chunk
from support.forged import cast, delta, put_pack, whole
from support.memory_storage import MemoryStorage

ids = st.binary(min_size=ID_BYTES, max_size=ID_BYTES).map(ChunkId)
blocks = st.builds(
    References,
    st.lists(ids, min_size=1, max_size=MAX_BASES).map(tuple),
    st.integers(0, 255),
    st.integers(0, 255),
)


@given(blocks, st.binary(max_size=50))
def test_a_block_comes_back_whatever_follows(references, payload):
    block = encode_references(references)
    assert len(block) == references.size_bytes <= MAX_BLOCK_BYTES
    assert parse_references(block + payload) == references
    assert parse_references(memoryview(block + payload)[:MAX_BLOCK_BYTES]) == references


@given(blocks, st.data())
def test_every_flipped_bit_is_noticed(references, data):
    block = bytearray(encode_references(references))
    bit = data.draw(st.integers(0, 8 * len(block) - 1))
    block[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError):
        parse_references(bytes(block))


@given(blocks, st.data())
def test_every_cut_is_noticed(references, data):
    block = encode_references(references)
    with pytest.raises(FormatError):
        parse_references(block[: data.draw(st.integers(0, len(block) - 1))])


@given(st.binary(max_size=2 * MAX_BLOCK_BYTES))
def test_noise_is_refused(noise):
    with pytest.raises(FormatError):
        parse_references(noise)


@pytest.mark.parametrize("count", [0, MAX_BASES + 1, 255])
def test_a_number_of_bases_that_cannot_be(count):
    block = encode_references(References((ChunkId(bytes(ID_BYTES)),) * count, 1, 1))
    with pytest.raises(FormatError, match="impossible references"):
        parse_references(block)


def test_the_reserved_byte_must_be_zero():
    body = bytes((1, 4, 2, 7))
    crc = crc32(bytes(ID_BYTES), crc32(body)).to_bytes(4, "little")
    with pytest.raises(FormatError, match="impossible references"):
        parse_references(body + crc + bytes(ID_BYTES))


def test_only_the_tags_from_four_on_refer():
    assert [tag for tag in range(8) if is_referring(tag)] == [4, 5, 6, 7]
    assert REFERENCES_BYTES == 8


A, B, C = (bytes([i]) * 64 for i in (1, 2, 3))


@pytest.fixture
def pack():
    storage = MemoryStorage()
    records = [whole(A), delta(B, A), cast(bytes(64), [hash_chunk(A), hash_chunk(B)]), delta(C, A)]
    name = put_pack(storage, records)
    return storage, name, storage.read(f"packs/{name}.pack")


def scan(data):
    def read_at(offset, size):
        if offset + size > len(data):
            raise FormatError("ends before")
        return data[offset : offset + size]

    return scan_pack(read_at, len(data))


def test_a_scan_and_an_index_find_the_same_bases(pack):
    storage, name, data = pack
    scanned = list(scan(data))
    assert [record.bases for record in scanned] == [
        (),
        (hash_chunk(A),),
        (hash_chunk(A), hash_chunk(B)),
        (hash_chunk(A),),
    ]
    stored = storage.read(f"packs/{name}.idx")
    index = parse_pack_index(stored)
    assert list(index.records()) == scanned
    assert encode_pack_index(index_records(name, len(data), scanned)) == stored
    assert len(stored) <= MAX_INDEX_BYTES
    assert int.from_bytes(stored[8:12], "little") == 2


def test_a_scan_never_reads_past_a_body(pack):
    *_, data = pack
    scanned = list(scan(data))
    allowed = {(record.offset + 64, record.end) for record in scanned}
    reads = []

    def read_at(offset, size):
        reads.append((offset, offset + size))
        return data[offset : offset + size]

    list(scan_pack(read_at, len(data)))
    bodies = [r for r in reads if any(start <= r[0] < end for start, end in allowed)]
    assert len(bodies) == 3
    assert all(any(s <= a and b <= e for s, e in allowed) for a, b in bodies)


def test_every_damage_to_a_reference_block_ends_a_scan_there(pack):
    *_, data = pack
    second = list(scan(data))[1]
    start = second.offset + 64
    for place in range(start, start + REFERENCES_BYTES + ID_BYTES):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        found = []
        with pytest.raises(FormatError):
            found.extend(scan(bytes(damaged)))
        kept = []
        with pytest.raises(FormatError):
            for record in scan(bytes(damaged)):
                kept.append(record)  # noqa: PERF402  those before the error
        assert [record.chunk_id for record in kept] == [hash_chunk(A)]
