"""A pack written by the first version stays readable for ever.

``PYTHONPATH=tests python tests/chunkstore/test_golden.py`` wrote it; run it again only into an
empty folder and add, never replace.
"""

from pathlib import Path

from mvc.chunkstore.store import ChunkStore
from mvc.dtypes import get_dtype
from mvc.storage.local import LocalStorage
from support.chunks import cut, ids_of, read_back, read_one
from support.golden_chunks import CHUNKS

GOLDEN = Path(__file__).parent.parent / "golden"


def test_a_pack_of_the_first_version_is_read():
    store = ChunkStore(LocalStorage(GOLDEN), threads=1)
    assert list(store.check(data=True)) == []
    assert store.repairs == []
    chunks = [plain for plain, _ in CHUNKS.values()]
    assert [read_one(store, plain) for plain in chunks] == chunks
    assert read_back(store, ids_of(chunks), chunks) == chunks
    assert {store.find(chunk_id).encoding for chunk_id in ids_of(chunks)} >= {0, 1, 2}


if __name__ == "__main__":
    with ChunkStore(LocalStorage(GOLDEN), threads=1).writer() as writer:
        for plain, dtype in CHUNKS.values():
            writer.add(*cut([plain], dtype and get_dtype(dtype)))
