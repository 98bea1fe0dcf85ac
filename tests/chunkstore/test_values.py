"""What callers hand to the chunk store: spans that cannot be chunks are refused."""

import pytest

from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkSpan
from mvc.errors import UsageError
from mvc.formats.pack import MAX_PLAIN_BYTES
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
