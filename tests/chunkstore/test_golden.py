"""A pack written by the first version stays readable for ever.

``python tests/chunkstore/test_golden.py`` wrote it; run it again only into an empty folder and
add, never replace.
"""

import sys
from pathlib import Path

import pytest
from blake3 import blake3

from mvc.chunkstore.catalog import scan_stored_pack
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ReadRequest
from mvc.formats.pack import (
    FOOTER_BYTES,
    RECORD_BYTES,
    encode_pack_footer,
    encode_pack_header,
    encode_record_header,
)
from mvc.formats.pack_index import encode_pack_index, index_records, parse_pack_index
from mvc.ids import hash_chunk
from mvc.storage.local import LocalStorage
from support.chunks import read_one

GOLDEN = Path(__file__).parent.parent / "golden"
PACKS = sorted((GOLDEN / "packs").glob("*.pack"))


def load_chunks():
    from support.golden_chunks import CHUNKS

    return CHUNKS


@pytest.fixture
def store():
    return ChunkStore(LocalStorage(GOLDEN), threads=1)


def test_every_chunk_comes_back(store):
    assert list(store.check(data=True)) == []
    assert store.repairs == []
    found = {}
    requests = []
    for name, (plain, _) in load_chunks().items():
        assert read_one(store, plain) == plain, name
        requests.append(ReadRequest(hash_chunk(plain), len(plain), 0, name))
    store.read_many(requests, lambda r, plain: found.update({r.context: bytes(plain)}))
    assert found == {name: plain for name, (plain, _) in load_chunks().items()}


def test_every_encoding_of_the_first_version_is_there(store):
    tags = {store.find(hash_chunk(plain)).encoding for plain, _ in load_chunks().values()}
    assert tags >= {0, 1, 2}


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.stem[:8])
def test_pack_and_index_are_written_the_same_way_today(path):
    data = path.read_bytes()
    records = list(scan_stored_pack(LocalStorage(GOLDEN), path.stem, len(data)))
    again = encode_pack_header()
    for record in records:
        again += encode_record_header(
            record.chunk_id, record.encoding, record.plain_size_bytes, record.stored_size_bytes
        )
        again += data[record.offset + RECORD_BYTES : record.end]
    again += encode_pack_footer(len(records), len(again) + FOOTER_BYTES)
    assert again == data
    assert blake3(again).hexdigest() == path.stem
    index = path.with_suffix(".idx").read_bytes()
    assert encode_pack_index(index_records(path.stem, len(data), records)) == index
    assert list(parse_pack_index(index).records()) == records


def test_there_is_a_golden_pack():
    assert PACKS


def write_golden(folder: Path) -> None:
    from mvc.chunkstore.values import ChunkSpan
    from mvc.dtypes import get_dtype
    from support.chunks import BytesSource

    with ChunkStore(LocalStorage(folder), threads=1).writer() as writer:
        for plain, dtype in load_chunks().values():
            span = ChunkSpan(0, len(plain), dtype and get_dtype(dtype))
            writer.add(BytesSource(plain), [span])


if __name__ == "__main__":
    sys.path.insert(0, str(GOLDEN.parent))
    write_golden(GOLDEN)
