"""What callers hand to the chunk store: spans that cannot be chunks are refused."""

from __future__ import annotations

import pytest

from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkLocation, ChunkSpan, corruption
from mvc.errors import UsageError
from mvc.formats.pack import MAX_PLAIN_BYTES
from mvc.ids import PackId, hash_chunk
from support.chunks import BytesSource
from support.memory_storage import MemoryStorage


@pytest.mark.parametrize(("offset", "size"), [(0, MAX_PLAIN_BYTES + 1), (0, -1), (-1, 5)])
def test_spans_that_cannot_be_chunks_are_refused(offset, size):
    storage = MemoryStorage()
    with ChunkStore(storage).writer() as writer:
        with pytest.raises(UsageError):
            writer.add(BytesSource(b"x"), [ChunkSpan(0, 1, None), ChunkSpan(offset, size, None)])
        writer.add(BytesSource(b"good"), [ChunkSpan(0, 4, None)])
    assert writer.counts.chunks == 1


def test_an_error_says_where_the_damage_is():
    chunk_id, pack = hash_chunk(b"a"), PackId("ab" * 32)
    location = ChunkLocation(
        chunk_id=chunk_id,
        offset=12_345,
        stored_size_bytes=1,
        plain_size_bytes=1,
        encoding=0,
        pack=pack,
    )
    short = chunk_id.hex()[:12]
    error = corruption(chunk_id, location, "tensor 'w'", "is gone")
    assert (
        error.message
        == f"chunk {short} of tensor 'w' in pack abababababab at offset 12,345: is gone"
    )
    assert "mvc fsck --data" in error.hint
    assert corruption(chunk_id, None, "", "is gone").message == f"chunk {short}: is gone"
